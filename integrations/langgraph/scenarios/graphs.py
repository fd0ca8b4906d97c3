"""Shapes of graphs."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send

from crashmatrix import Scenario, Turn, World, scenario

from .kit import (
    ASK,
    BEGIN,
    THREAD,
    Log,
    Model,
    acting,
    both,
    in_a_row,
    invoke,
    kept,
    node,
    told,
    tools_of,
    verb,
    wants,
)


@both
def chain(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(**{name: acting(world, name, is_async) for name in ("a", "b", "c")}))
    return told(graph, invoke(BEGIN, is_async=is_async), is_async=is_async)


@both
def parallel(world: World, is_async: bool) -> Scenario:
    builder: Any = StateGraph(Log)
    for name in ("a", "b", "c"):
        builder.add_node(name, acting(world, name, is_async))
        builder.add_edge(START, name)
    builder.add_node("join", acting(world, "join", is_async))
    builder.add_edge(["a", "b", "c"], "join")
    return told(kept(builder), invoke(BEGIN, is_async=is_async), is_async=is_async)


@both
def fan_out(world: World, is_async: bool) -> Scenario:
    def work(item: Any) -> Any:
        world.effect(f"item {item}")
        return {"log": [item * item]}

    builder = in_a_row(plan=acting(world, "plan", is_async))
    builder.add_node("work", node(work, is_async))
    builder.add_conditional_edges("plan", lambda state: [Send("work", item) for item in range(5)], ["work"])
    builder.add_node("collect", acting(world, "collect", is_async))
    builder.add_edge("work", "collect")
    return told(kept(builder), invoke(BEGIN, is_async=is_async), is_async=is_async)


@scenario
def routing(world: World) -> Scenario:
    def decide(state: Any) -> Command[Any]:
        world.effect(f"decide {len(state['log'])}")
        return Command(goto="small" if len(state["log"]) < 3 else "large", update={"log": ["decided"]})

    builder = in_a_row(first=acting(world, "first"))
    builder.add_conditional_edges("first", lambda state: "decide" if state["log"] else END, ["decide", END])
    builder.add_node("decide", decide, destinations=("small", "large"))
    builder.add_node("small", _counting(world, "small"))
    builder.add_edge("small", "decide")
    builder.add_node("large", acting(world, "large"))
    return told(kept(builder), invoke(BEGIN))


def _counting(world: World, name: str) -> Callable[[Any], Any]:
    """A node that is visited several times, each visit another effect."""

    def act(state: Any) -> Any:
        world.effect(f"{name} {len(state['log'])}")
        return {"log": [name]}

    return act


def inner_graph(world: World) -> Any:
    charge, mail = tools_of(world)
    return in_a_row(
        pay=lambda state: {"log": [charge.invoke({"amount": len(state["log"])})]},
        notify=lambda state: {"log": [mail.invoke({"to": f"bob {len(state['log'])}"})]},
    )


@scenario
def subgraph_as_node(world: World) -> Scenario:
    graph = in_a_row(
        before=acting(world, "before"), inner=inner_graph(world).compile(), after=acting(world, "after")
    )
    return told(kept(graph), invoke(BEGIN))


@scenario
def subgraph_in_node(world: World) -> Scenario:
    inner = inner_graph(world).compile()

    def call(state: Any) -> Any:
        world.effect("before the call")
        first = inner.invoke({"log": ["x"]})["log"]
        return {"log": [*first, *inner.invoke({"log": ["x", "y"]})["log"]]}

    return told(kept(in_a_row(call=call, after=acting(world, "after"))), invoke(BEGIN))


@scenario
def subgraphs_in_threads(world: World) -> Scenario:
    return _in_threads(world, inner_graph(world).compile())


@scenario
def stateless_subgraphs_in_threads(world: World) -> Scenario:
    return _in_threads(world, inner_graph(world).compile(checkpointer=False))


def _in_threads(world: World, inner: Any) -> Scenario:
    """A node calls a graph twice at once; after a crash the second call comes first."""

    def late(rank: int) -> Any:
        time.sleep(world.latency(rank, 2))
        return inner.invoke({"log": ["x"] * (1 + 2 * rank)})["log"]

    def call(state: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(copy_context().run, late, rank) for rank in range(2)]
            return {"log": [line for called in calls for line in called.result()]}

    return told(kept(in_a_row(call=call, after=acting(world, "after"))), invoke(BEGIN))


@both
def functional(world: World, is_async: bool) -> Scenario:
    def act(name: str) -> str:
        world.effect(name)
        return f"{name} done"

    async def aact(name: str) -> str:
        await asyncio.sleep(0)
        return act(name)

    @task
    def work(name: str) -> str:
        return act(name)

    @task
    async def awork(name: str) -> str:
        return await aact(name)

    @entrypoint(checkpointer=InMemorySaver())
    def flow(names: list[str]) -> list[str]:
        found = [future.result() for future in [work(name) for name in names]]
        return [*found, work("last").result()]

    @entrypoint(checkpointer=InMemorySaver())
    async def aflow(names: list[str]) -> list[str]:
        found = await asyncio.gather(*[awork(name) for name in names])
        return [*found, await awork("last")]

    return told(aflow if is_async else flow, invoke(["x", "y"], is_async=is_async), is_async=is_async)


@both
def queued(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(**{name: acting(world, name, is_async) for name in ("a", "b")}))

    def start(app: Any, run_id: str) -> Any:
        run = app.start(BEGIN, THREAD, run_id=run_id)
        return run.aresult(timeout=20) if is_async else run.result(timeout=20)

    return told(graph, Turn("r1", start, native=verb(BEGIN, is_async)), is_async=is_async)


@scenario
def loop(world: World) -> Scenario:
    """A model node and a tool node that call each other, by hand."""
    charge, _ = tools_of(world)
    model = Model(
        world=world, plan=lambda n, messages: wants(("charge", {"amount": n})) if n < 3 else AIMessage("done")
    )

    def think(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def act(state: Any) -> Any:
        return {"messages": [charge.invoke(call) for call in state["messages"][-1].tool_calls]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("act", act)
    builder.add_edge(START, "think")
    builder.add_conditional_edges(
        "think", lambda state: "act" if state["messages"][-1].tool_calls else END, ["act", END]
    )
    builder.add_edge("act", "think")
    return told(kept(builder), invoke(ASK))


@scenario
def gathered_tasks(world: World) -> Scenario:
    """`@task`s called from gathered coroutines, which arrive the other way round after a crash."""

    @task
    async def work(rank: int) -> str:
        world.effect(f"work {rank}")
        return f"{rank} done"

    async def late(rank: int) -> str:
        await asyncio.sleep(world.latency(rank, 3))
        return await work(rank)

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(ranks: list[int]) -> list[str]:
        found = await asyncio.gather(*[late(rank) for rank in ranks])
        return [*found, await work(9)]

    return told(flow, invoke([0, 1, 2], is_async=True), is_async=True)


@scenario
def spawned_call(world: World) -> Scenario:
    """A tool call in a task of the node's making, awaited after another call of the node itself."""
    charge, _ = tools_of(world)

    async def act(state: Any) -> Any:
        spawned = asyncio.create_task(charge.ainvoke({"amount": 2}))
        first = await charge.ainvoke({"amount": 1})
        return {"log": [first, await spawned, await charge.ainvoke({"amount": 3})]}

    return told(kept(in_a_row(act=act)), invoke(BEGIN, is_async=True), is_async=True)
