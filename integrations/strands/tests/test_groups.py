"""Graphs and swarms: what their runs return, stream, ask, and refuse."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from strands import ToolContext, tool
from strands.hooks import BeforeNodeCallEvent
from strands.multiagent import GraphBuilder, Swarm
from strands.multiagent.base import Status
from strands.multiagent.graph import GraphResult
from strands.multiagent.swarm import SwarmResult
from strands_kit import agent_of

import durable_agents
from durable_agents import runs
from durable_agents.errors import ConfigurationError, NotSupported
from durable_agents.strands import DurableAgent, DurableMultiAgent


class Killed(BaseException):
    """Ends a run where it stands, as the death of its process does."""


class World:
    def __init__(self) -> None:
        self.worked: list[str] = []
        self.joined = 0
        self.dies: list[BaseException] = []


def relaunch(url: str) -> None:
    durable_agents.shutdown()
    durable_agents.launch(url, heartbeat=0.05, grace=0.2, poll=0.05)


def graph_of(world: World, asks: bool = False) -> Any:
    """Two nodes at once and a join; the first one asks."""

    @tool(context=True)
    def work(who: str, tool_context: ToolContext) -> str:
        """Work."""
        if asks and who == "b":
            tool_context.interrupt("sure", reason=who)
        world.worked.append(who)
        return f"{who} worked"

    def join(replies: int, messages: Any) -> str:
        world.joined += 1
        if world.dies:
            raise world.dies.pop()
        return "joined"

    builder = GraphBuilder()
    for name in ("b", "a"):
        builder.add_node(
            agent_of(
                lambda n, _, who=name: [("work", {"who": who})] if n == 0 else f"{who} done", work, name=name
            ),
            name,
        )
        builder.set_entry_point(name)
    builder.add_node(agent_of(join, name="join"), "join")
    builder.add_edge("b", "join")
    builder.add_edge("a", "join")
    builder.set_max_node_executions(10)
    return builder.build()


def test_a_stored_result_is_the_native_one(name: str, engine: str) -> None:
    graph = graph_of(World())
    app = DurableMultiAgent(graph, name)
    live = app("task", run_id="r")
    relaunch(engine)
    for result in (live, runs.get("r").result()):
        assert isinstance(result, GraphResult)
        assert result.status == Status.COMPLETED
        assert result.execution_order == [graph.nodes[node] for node in ("b", "a", "join")]
        assert all(node is graph.nodes[node.node_id] for node in result.execution_order)
        assert list(result.results) == ["b", "a", "join"]
        assert str(result.results["join"].result).strip() == "joined"
        assert result.accumulated_usage == {"inputTokens": 35, "outputTokens": 10, "totalTokens": 45}
        assert [(edge[0].node_id, edge[1].node_id) for edge in result.edges] == [("b", "join"), ("a", "join")]
    assert runs.get("r").usage.input_tokens == 35


def test_a_join_runs_once_and_no_node_twice(name: str, engine: str) -> None:
    """Natively a resumed graph runs its fan-in again (#3633)."""
    world = World()
    world.dies = [Killed()]
    app = DurableMultiAgent(graph_of(world), name)
    with pytest.raises(Killed):
        app("task", run_id="r")
    assert app("task", run_id="r").status == Status.COMPLETED
    assert sorted(world.worked) == ["a", "b"]
    assert world.joined == 2, "once before and once after"


def test_a_graph_is_left_as_it_was(name: str, engine: str) -> None:
    graph = graph_of(World())
    before = graph.state, graph.edges, graph.entry_points
    DurableMultiAgent(graph, name)("task", run_id="r")
    assert all(
        one is other
        for one, other in zip(before, (graph.state, graph.edges, graph.entry_points), strict=True)
    )
    assert all(node.executor.messages == [] for node in graph.nodes.values())
    assert {node.execution_status for node in graph.nodes.values()} == {Status.PENDING}


def test_a_node_asks_and_anybody_answers(name: str, engine: str) -> None:
    world = World()
    app = DurableMultiAgent(graph_of(world, asks=True), name)
    paused = app("task", run_id="r")
    assert paused.status == Status.INTERRUPTED
    assert [(each.name, each.reason) for each in paused.interrupts] == [("sure", "b")]
    assert world.worked == ["a"]
    relaunch(engine)
    again = app("task", run_id="r")
    assert again.status == Status.INTERRUPTED
    assert again.interrupts == paused.interrupts
    runs.get("r").answer("yes")
    result = runs.get("r").result(timeout=20)
    assert result.status == Status.COMPLETED
    assert world.worked == ["a", "b"]
    assert world.joined == 1


def test_a_hook_of_the_graph_asks(name: str, engine: str) -> None:
    world = World()
    graph = graph_of(world)

    def approve(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "join" and event.interrupt("join them", reason="?") != "yes":
            event.cancel_node = "refused"

    graph.add_hook(approve, BeforeNodeCallEvent)
    app = DurableMultiAgent(graph, name)
    paused = app("task", run_id="r")
    assert world.joined == 0
    relaunch(engine)
    responses = [{"interruptResponse": {"interruptId": paused.interrupts[0].id, "response": "yes"}}]
    assert app(responses).status == Status.COMPLETED
    assert world.joined == 1
    assert sorted(world.worked) == ["a", "b"]


def test_streams_are_the_native_ones(name: str, engine: str) -> None:
    def sorted_events(events: list[Any]) -> list[str]:
        return sorted(f"{event.get('type')} {event.get('node_id')}" for event in events)

    async def heard(target: Any, **run: Any) -> list[Any]:
        return [event async for event in target.stream_async("task", **run)]

    native = asyncio.run(heard(graph_of(World())))
    durable = asyncio.run(heard(DurableMultiAgent(graph_of(World()), name), run_id="r"))
    assert sorted_events(durable) == sorted_events(native)
    assert isinstance(durable[-1]["result"], GraphResult)
    assert runs.get("r").status == "succeeded"


def test_leaving_a_stream_is_the_native_stop(name: str, engine: str) -> None:
    graph = graph_of(World())
    app = DurableMultiAgent(graph, name)

    async def left() -> None:
        events = app.stream_async("task", run_id="r")
        async for _ in events:
            break
        await events.aclose()

    asyncio.run(left())
    assert runs.get("r").status == "cancelled"
    assert app("task", run_id="r2").status == Status.COMPLETED


def test_a_swarm_keeps_its_shared_knowledge(name: str, engine: str) -> None:
    def first(replies: int, messages: Any) -> Any:
        if replies == 0:
            return [("handoff_to_agent", {"agent_name": "ben", "message": "go", "context": {"order": 55}})]
        return "handed"

    def second(replies: int, messages: Any) -> str:
        return f"known: {'55' in str(messages)}"

    swarm = Swarm([agent_of(first, name="ann"), agent_of(second, name="ben")])
    app = DurableMultiAgent(swarm, name)
    result = app("task", run_id="r")
    assert isinstance(result, SwarmResult)
    assert [node.node_id for node in result.node_history] == ["ann", "ben"]
    relaunch(engine)
    stored = runs.get("r").result()
    assert str(stored.results["ben"].result).strip() == "known: True"
    assert stored.node_history == [swarm.nodes["ann"], swarm.nodes["ben"]]
    assert swarm.shared_context.context == {}
    assert not any(step.name == "handoff_to_agent" for step in runs.get("r").steps())


def test_a_tool_of_that_name_outside_of_a_swarm_is_a_step(name: str, engine: str) -> None:
    @tool
    def handoff_to_agent(agent_name: str) -> str:
        """Tell somebody."""
        return "told"

    app = DurableAgent(
        agent_of(
            lambda n, _: [("handoff_to_agent", {"agent_name": "x"})] if n == 0 else "done", handoff_to_agent
        ),
        name,
    )
    app("please", run_id="r")
    assert [step.name for step in runs.get("r").steps() if step.kind == "tool"] == ["handoff_to_agent"]


def test_what_is_refused(name: str, engine: str) -> None:
    class Other:
        async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> Any: ...

        def __call__(self, prompt: Any = None, **kwargs: Any) -> Any: ...

        async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
            yield {}

    builder = GraphBuilder()
    builder.add_node(Other(), "other")
    builder.set_max_node_executions(2)
    with pytest.raises(NotSupported, match="call others in a tool"):
        DurableMultiAgent(builder.build(), name)
    with pytest.raises(ConfigurationError, match="Graph or Swarm"):
        DurableMultiAgent(agent_of(lambda n, _: "x"), name)
    expert = agent_of(lambda n, _: "x", name="expert")
    with pytest.raises(NotSupported, match="'expert'"):
        DurableAgent(agent_of(lambda n, _: "x", expert.as_tool()), name, at_most_once={"expert"})
    app = DurableMultiAgent(graph_of(World()), name)
    with pytest.raises(NotSupported, match="serialize_state"):
        app.serialize_state()
    agent = DurableAgent(agent_of(lambda n, _: "x"), f"{name}-agent")
    with pytest.raises(NotSupported, match="structured_output_model"):
        agent.structured_output(dict)


def test_a_node_that_is_visited_again_keeps_its_place(name: str, engine: str) -> None:
    def graph() -> Any:
        builder = GraphBuilder()
        for node in ("z", "a", "last"):
            builder.add_node(agent_of(lambda n, messages: f"{len(messages)} messages", name=node), node)
        builder.add_edge("z", "a")
        builder.add_edge("a", "z", condition=lambda state: len(state.execution_order) < 4)
        builder.add_edge("z", "last", condition=lambda state: len(state.execution_order) > 2)
        builder.set_entry_point("z")
        builder.set_max_node_executions(10)
        return builder.build()

    native = graph()("task")
    durable = DurableMultiAgent(graph(), name)("task", run_id="r")
    for result in (durable, runs.get("r").result()):
        assert list(result.results) == list(native.results)
        assert sorted(node.node_id for node in result.execution_order) == sorted(
            node.node_id for node in native.execution_order
        )


def test_an_error_of_a_node_keeps_its_type(name: str, engine: str) -> None:
    def plan(replies: int, messages: Any) -> str:
        raise ConnectionError("overloaded")

    builder = GraphBuilder()
    builder.add_node(agent_of(plan, name="broken"), "broken")
    builder.set_max_node_executions(10)
    app = DurableMultiAgent(builder.build(), name)
    with pytest.raises(ConnectionError, match="overloaded"):
        app("task", run_id="r")
    relaunch(engine)
    run = runs.get("r")
    assert run.status == "failed"
    assert isinstance(run.error, ConnectionError)
    with pytest.raises(ConnectionError, match="overloaded"):
        app("task", run_id="r")
