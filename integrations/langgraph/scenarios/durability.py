"""Graphs that save their state when they exit, and answers that say more than an answer."""

from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from crashmatrix import Resume, Scenario, Turn, World, scenario

from .kit import BEGIN, THREAD, Log, acting, both, in_a_row, invoke, kept, node, told, tools_of


def at_exit(input: Any, is_async: bool = False) -> Callable[..., Any]:
    """`invoke` or `ainvoke` with this input, which saves when it is over."""

    def call(app: Any, **run: Any) -> Any:
        return (app.ainvoke if is_async else app.invoke)(input, THREAD, durability="exit", **run)

    return call


def _asking(world: World, is_async: bool) -> Any:
    charge, mail = tools_of(world)

    def act(state: Any) -> Any:
        paid = charge.invoke({"amount": len(state["log"])})
        said = interrupt("go on?")
        return {"log": [paid, said, mail.invoke({"to": said})]}

    return node(act, is_async)


@both
def saved_at_the_exit(world: World, is_async: bool) -> Scenario:
    """Two nodes side by side, one that asks, and one after it."""
    builder: Any = StateGraph(Log)
    for name in ("left", "right", "after"):
        builder.add_node(name, acting(world, name, is_async))
    builder.add_node("ask", _asking(world, is_async))
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "ask")
    builder.add_edge("ask", "after")
    first, second = at_exit(BEGIN, is_async), at_exit(Command(resume="yes"), is_async)
    return told(kept(builder), Turn("r1", first), Resume("r1", second), is_async=is_async)


@scenario
def tasks_saved_at_the_exit(world: World) -> Scenario:
    @task
    def charge(amount: int) -> str:
        world.effect(f"charge {amount}")
        return f"receipt {amount}"

    @entrypoint()
    def flow(amounts: list[int]) -> list[str]:
        paid = [one.result() for one in [charge(amount) for amount in amounts]]
        return [*paid, interrupt("more?"), charge(sum(amounts)).result()]

    flow.checkpointer = InMemorySaver()
    return told(flow, Turn("r1", at_exit([1, 2])), Resume("r1", at_exit(Command(resume="yes"))))


@both
def subgraphs_saved_at_the_exit(world: World, is_async: bool) -> Scenario:
    """A graph with a memory of its own, which two nodes call one after the other, in two turns."""
    inner = in_a_row(a=acting(world, "a", is_async), b=acting(world, "b", is_async)).compile(
        checkpointer=True
    )

    def calling(name: str) -> Any:
        def act(state: Any) -> Any:
            world.effect(f"{name} calls")
            found = inner.invoke({"log": [name]})
            return {"log": [f"{name}: {len(found['log'])} lines"]}

        async def aact(state: Any) -> Any:
            world.effect(f"{name} calls")
            found = await inner.ainvoke({"log": [name]})
            return {"log": [f"{name}: {len(found['log'])} lines"]}

        return aact if is_async else act

    graph = kept(in_a_row(first=calling("first"), second=calling("second")))
    turns = [Turn(run, at_exit({"log": [run]}, is_async)) for run in ("r1", "r2")]
    return told(graph, *turns, is_async=is_async)


@scenario
def answer_with_an_update(world: World) -> Scenario:
    """The answer brings lines for the state, and the way to another node."""
    charge, _ = tools_of(world)

    def ask(state: Any) -> Any:
        said = interrupt("amount?")
        return {"log": [charge.invoke({"amount": said})]}

    builder: Any = StateGraph(Log)
    builder.add_node("ask", ask)
    builder.add_node("aside", acting(world, "aside"))
    builder.add_node("after", acting(world, "after"))
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "after")
    said = Command(resume=3, update={"log": ["by hand"]}, goto="aside")

    def answered(app: Any, **run: Any) -> Any:
        return app.invoke(said, THREAD, **run)

    return told(kept(builder), invoke(BEGIN), Resume("r1", answered))
