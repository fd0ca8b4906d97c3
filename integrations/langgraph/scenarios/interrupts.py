"""Questions to people, and their answers."""

from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from crashmatrix import Answer, Scenario, Turn, World, scenario

from .kit import (
    ASK,
    BEGIN,
    THREAD,
    Log,
    Model,
    acting,
    answer,
    as_tool,
    both,
    in_a_row,
    invoke,
    kept,
    node,
    resume,
    told,
    tools_of,
    two_tools,
    verb,
    wants,
)


def asking(world: World, name: str, is_async: bool = False) -> Callable[[Any], Any]:
    """A node that acts, asks, and acts on the answer."""

    def act(state: Any) -> Any:
        world.effect(f"prepare {name}")
        said = interrupt(f"{name}?")
        world.effect(f"{name} said {said}")
        return {"log": [f"{name} {said}"]}

    return node(act, is_async)


@both
def interrupt_resumed(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(before=acting(world, "before", is_async), ask=asking(world, "ship", is_async)))
    return told(graph, invoke(BEGIN, is_async=is_async), resume("yes", is_async=is_async), is_async=is_async)


@both
def interrupt_answered(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(ask=asking(world, "ship", is_async), after=acting(world, "after", is_async)))
    return told(graph, invoke(BEGIN, is_async=is_async), answer("yes", is_async=is_async), is_async=is_async)


def _asking_twice(world: World) -> Any:
    """A node whose two questions have a recorded step between them, and one before and after."""
    charge, mail = tools_of(world)

    def act(state: Any) -> Any:
        mail.invoke({"to": "ask"})
        first = interrupt("first?")
        paid = charge.invoke({"amount": len(first)})
        second = interrupt("second?")
        world.effect(f"{first}, {second}")
        return {"log": [first, paid, second, mail.invoke({"to": second})]}

    return kept(in_a_row(act=act, after=acting(world, "after")))


@scenario
def two_interrupts_in_a_node(world: World) -> Scenario:
    return told(_asking_twice(world), invoke(BEGIN), resume("one"), resume("two"))


@scenario
def two_interrupts_answered(world: World) -> Scenario:
    return told(_asking_twice(world), invoke(BEGIN), answer("one"), answer("two"))


@both
def interrupted_sibling(world: World, is_async: bool) -> Scenario:
    """Of three parallel nodes one asks."""
    builder: Any = StateGraph(Log)
    nodes = {
        "a": acting(world, "a", is_async),
        "ask": asking(world, "ship", is_async),
        "c": acting(world, "c", is_async),
    }
    for name, body in nodes.items():
        builder.add_node(name, body)
        builder.add_edge(START, name)
    builder.add_node("join", acting(world, "join", is_async))
    builder.add_edge(list(nodes), "join")
    turns = (invoke(BEGIN, is_async=is_async), resume("yes", is_async=is_async))
    return told(kept(builder), *turns, is_async=is_async)


@scenario
def two_questions_at_once(world: World) -> Scenario:
    """Two parallel nodes ask; each is answered on its own."""

    def picking(asked: str) -> Callable[[dict[str, Any]], str]:
        return lambda open: next(question for question, text in open.items() if text == asked)

    def natively(asked: str, value: str) -> Callable[[Any], Any]:
        def call(app: Any) -> Any:
            open = {i.id: i.value for task in app.get_state(THREAD).tasks for i in task.interrupts}
            return app.invoke(Command(resume={picking(asked)(open): value}), THREAD)

        return call

    def ask_both(app: Any, **run: Any) -> Any:
        result = app.invoke(BEGIN, THREAD, **run)
        if "__interrupt__" not in result:  # somebody else has answered both by now
            return result
        return sorted(asked.value for asked in result["__interrupt__"])  # natively in the order of arrival

    builder: Any = StateGraph(Log)
    for name in ("pay", "ship"):
        builder.add_node(name, asking(world, name))
        builder.add_edge(START, name)
    return told(
        kept(builder),
        Turn("r1", ask_both),
        answer("later", picking("ship?"), natively("ship?", "later")),
        answer("now", picking("pay?"), natively("pay?", "now")),
    )


@both
def subgraph_asks_twice(world: World, is_async: bool) -> Scenario:
    """The answer to the first question must never answer the second."""
    inner = in_a_row(
        first=asking(world, "first", is_async),
        between=acting(world, "between", is_async),
        second=asking(world, "second", is_async),
    )
    graph = kept(in_a_row(inner=inner.compile(), after=acting(world, "after", is_async)))
    turns = (
        invoke(BEGIN, is_async=is_async), resume("one", is_async=is_async), resume("two", is_async=is_async)
    )  # fmt: skip
    return told(graph, *turns, is_async=is_async)


@scenario
def called_subgraph_asks(world: World) -> Scenario:
    inner = in_a_row(before=acting(world, "inner before"), ask=asking(world, "ship")).compile()

    def call(state: Any) -> Any:
        return {"log": inner.invoke({"log": ["x"]})["log"]}

    return told(kept(in_a_row(call=call, after=acting(world, "after"))), invoke(BEGIN), resume("yes"))


@scenario
def task_asks(world: World) -> Scenario:
    @task
    def work(name: str) -> str:
        world.effect(name)
        return f"{name} done"

    @entrypoint(checkpointer=InMemorySaver())
    def flow(name: str) -> list[str]:
        drafted = work(name).result()
        said = interrupt(f"send {drafted}?")
        return [drafted, said, work(f"send {said}").result()]

    return told(flow, invoke("draft"), resume("now"))


@both
def approved_tool(world: World, is_async: bool) -> Scenario:
    """LangChain's human in the loop before one of two parallel tools."""
    graph: Any = create_agent(
        Model(world=world, plan=two_tools),
        list(tools_of(world)),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"charge": True})],
        checkpointer=InMemorySaver(),
    )
    approve = {"decisions": [{"type": "approve"}]}
    return told(graph, invoke(ASK, is_async=is_async), resume(approve, is_async=is_async), is_async=is_async)


@scenario
def tool_asks(world: World) -> Scenario:
    """A tool acts, asks, and acts on; its sibling runs beside it."""
    charge, mail = tools_of(world)

    def ask(question: str) -> str:
        """Ask the user."""
        paid = charge.invoke({"amount": 9})
        said = interrupt(question)
        return f"{paid} {said} {mail.invoke({'to': said})}"

    def plan(replies: int, messages: list[BaseMessage]) -> AIMessage:
        if replies == 0:
            return wants(("ask", {"question": "who?"}), ("charge", {"amount": 2}))
        return AIMessage(f"done: {messages[-2].text}")

    graph: Any = create_agent(
        Model(world=world, plan=plan), [as_tool(ask), charge], checkpointer=InMemorySaver()
    )
    return told(graph, invoke(ASK), resume("ann"))


@scenario
def superseded(world: World) -> Scenario:
    """A new input on a thread that waits drops the question."""
    builder = in_a_row(before=acting(world, "before"), ask=asking(world, "ship"))
    graph = kept(builder)
    return told(graph, invoke(BEGIN), invoke({"log": ["again"]}, "r2"), resume("yes", "r2"))


def _again(input: Any, place: Callable[[Any], Any], is_async: bool) -> Callable[..., Any]:
    """`invoke` or `ainvoke` with this input, from a checkpoint of the thread's past."""

    def call(app: Any, **run: Any) -> Any:
        return (app.ainvoke if is_async else app.invoke)(input, place(app), **run)

    return call


def _before_asking(app: Any) -> Any:
    """The oldest checkpoint at which the graph was about to ask."""
    return [past for past in app.get_state_history(THREAD) if past.next == ("ask",)][-1].config


def _paying(world: World, is_async: bool) -> Any:
    def act(state: Any) -> Any:
        world.effect("look it up")
        said = interrupt("amount?")
        world.effect(f"pay {said}")
        return {"log": [said]}

    return node(act, is_async)


@both
def asked_again_from_the_past(world: World, is_async: bool) -> Scenario:
    """A finished thread is taken back to its question, which gets another answer, from elsewhere."""
    graph = kept(in_a_row(first=acting(world, "first", is_async), ask=_paying(world, is_async)))
    back = Turn("r2", _again(None, _before_asking, is_async))
    other = Answer("r2", 2, native=verb(Command(resume=2), is_async))
    turns = invoke(BEGIN, is_async=is_async), resume(1, is_async=is_async), back, other
    return told(graph, *turns, is_async=is_async)
