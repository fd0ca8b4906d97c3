"""Graphs and swarms: nodes at once, a join, conditions, loops, handoffs, questions, one inside the other."""

import asyncio
from typing import Any

from strands import tool
from strands.hooks import BeforeNodeCallEvent
from strands.multiagent import GraphBuilder, Swarm

from crashmatrix import Resume, Scenario, Turn, World, scenario

from .interrupts import asking_tool
from .kit import Scripted, agent_of, answer, invoke, respond, say, text_of, told, tools_of, wants

NAMES = ("carol", "alice", "bob")


def late_tool(world: World) -> Any:
    @tool
    async def late(rank: int) -> str:
        """Take time."""
        await asyncio.sleep(world.latency(rank, 3))
        world.effect(f"late {rank}")
        return f"late {rank}"

    return late


def node_of(world: World, name: str, rank: int, *tools: Any) -> Any:
    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("late", {"rank": rank}))
        return say(f"{name}: {text_of(messages[-1])}")

    return agent_of(world, plan, [late_tool(world), *tools], label=name, name=name)


class Joining(Scripted):
    """Natively the order of what it gets is that of hashes, so that is not part of what happens."""

    def happens(self, replies: int, messages: Any) -> str:
        return self.label


def fan_out(world: World) -> Any:
    """Three nodes at once, then one that gets what all of them said."""
    builder = GraphBuilder()
    for rank, name in enumerate(NAMES):
        builder.add_node(node_of(world, name, rank), name)

    def join(replies: int, messages: Any) -> Any:
        return say(f"joined: {text_of(messages[-1])}")

    joining = agent_of(world, join, label="join", name="join")
    joining.model = Joining(world, join, "join")
    builder.add_node(joining, "join")
    for name in NAMES:
        builder.add_edge(name, "join")
        builder.set_entry_point(name)
    builder.set_max_node_executions(10)
    return builder.build()


def sorted_result(task: str, is_async: bool = False, run_id: str = "r1") -> Turn:
    """A turn whose native result differs from process to process in order alone."""

    def shown(result: Any) -> Any:
        joined = result.results["join"].result.message["content"][0]["text"]
        parts = sorted(part.strip() for part in joined.split("|"))
        return result.status.value, sorted(node.node_id for node in result.execution_order), parts

    def call(app: Any, **run: Any) -> Any:
        return shown(app(task, **run))

    async def acall(app: Any, **run: Any) -> Any:
        return shown(await app.invoke_async(task, **run))

    return Turn(run_id, acall if is_async else call)


@scenario
def graph(world: World) -> Scenario:
    return told(fan_out(world), sorted_result("report"))


@scenario
def async_graph(world: World) -> Scenario:
    return told(fan_out(world), sorted_result("report", is_async=True), is_async=True)


@scenario
def graph_with_loop(world: World) -> Scenario:
    """A condition leads back to the writer until the reviewer is content; then the graph is called again."""
    charge, _ = tools_of(world)

    def write(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("charge", {"amount": len(messages)}))
        return say(f"draft {len(messages)}")

    def review(replies: int, messages: Any) -> Any:
        return say("good" if len(messages) > 2 else "again")

    builder = GraphBuilder()
    builder.add_node(agent_of(world, write, [charge], label="writer", name="writer"), "writer")
    builder.add_node(agent_of(world, review, label="reviewer", name="reviewer"), "reviewer")
    builder.add_edge("writer", "reviewer")
    builder.add_edge(
        "reviewer", "writer", condition=lambda state: "again" in str(state.results["reviewer"].result)
    )
    builder.set_entry_point("writer")
    builder.set_max_node_executions(10)
    return told(builder.build(), invoke("write"), invoke("write more", "r2"))


@scenario
def graph_asks(world: World) -> Scenario:
    """One of two nodes at once asks; the other is not run again."""

    def ask(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("ask", {"question": "ship"}))
        return say(f"asked: {text_of(messages[-1])}")

    builder = GraphBuilder()
    builder.add_node(agent_of(world, ask, [asking_tool(world)], label="asker", name="asker"), "asker")
    builder.add_node(node_of(world, "worker", 1), "worker")

    def last(replies: int, messages: Any) -> Any:
        return say(f"last {replies}")

    builder.add_node(agent_of(world, last, label="last", name="last"), "last")
    for name in ("asker", "worker"):
        builder.set_entry_point(name)
    builder.add_edge("asker", "last")
    builder.set_max_node_executions(10)
    return told(builder.build(), _status("report"), _status_of(respond("yes")))


def _status(task: str) -> Turn:
    return Turn("r1", lambda app, **run: app(task, **run).status.value)


def _status_of(step: Any) -> Any:
    return Resume(step.run_id, lambda app, **run: step.call(app, **run).status.value)


@scenario
def graph_node_needs_approval(world: World) -> Scenario:
    """A hook of the graph asks before a node."""
    builder = GraphBuilder()
    builder.add_node(node_of(world, "first", 0), "first")
    builder.add_node(node_of(world, "second", 1), "second")
    builder.add_edge("first", "second")
    builder.set_entry_point("first")
    builder.set_max_node_executions(10)
    graph = builder.build()

    def approve(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "second" and event.interrupt("go on", reason="?") != "yes":
            event.cancel_node = "refused"

    graph.add_hook(approve, BeforeNodeCallEvent)
    return told(graph, invoke("report"), answer("yes"))


def team(world: World) -> Swarm:
    """Two handoffs, each after some work."""
    charge, mail = tools_of(world)

    def first(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("charge", {"amount": 1}))
        if replies == 1:
            return wants(
                (
                    "handoff_to_agent",
                    {
                        "agent_name": "ben",
                        "message": "take it",
                        "context": {"receipt": text_of(messages[-1])},
                    },
                )
            )
        return say("ann is done")

    def second(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("mail", {"to": "customer"}))
        if replies == 1:
            return wants(("handoff_to_agent", {"agent_name": "cid", "message": "check it"}))
        return say("ben is done")

    def third(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("charge", {"amount": 2}))
        return say(f"checked {text_of(messages[0])[:300]}")

    return Swarm(
        [
            agent_of(world, first, [charge], label="ann", name="ann"),
            agent_of(world, second, [mail], label="ben", name="ben"),
            agent_of(world, third, [charge], label="cid", name="cid"),
        ]
    )


@scenario
def swarm(world: World) -> Scenario:
    return told(team(world), invoke("do it"), invoke("and again", "r2"))


@scenario
def async_swarm(world: World) -> Scenario:
    return told(team(world), invoke("do it", is_async=True), is_async=True)


@scenario
def swarm_asks(world: World) -> Scenario:
    """The second agent asks, after a handoff."""
    charge, _ = tools_of(world)

    def first(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("charge", {"amount": 1}))
        if replies == 1:
            return wants(("handoff_to_agent", {"agent_name": "ben", "message": "ask them"}))
        return say("ann is done")

    def second(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("ask", {"question": "ship"}))
        return say(f"ben: {text_of(messages[-1])}")

    swarm = Swarm(
        [
            agent_of(world, first, [charge], label="ann", name="ann"),
            agent_of(world, second, [asking_tool(world)], label="ben", name="ben"),
        ]
    )
    return told(swarm, invoke("do it"), respond("yes"))


@scenario
def swarm_in_a_graph(world: World) -> Scenario:
    builder = GraphBuilder()
    builder.add_node(team(world), "team")
    builder.add_node(node_of(world, "last", 0), "last")
    builder.add_edge("team", "last")
    builder.set_entry_point("team")
    builder.set_max_node_executions(10)
    return told(builder.build(), invoke("do it"))
