"""Tools at most once, live arguments, changed code; runs that are resumed, forked, batched, started inside others."""

import asyncio
import operator
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

import durable_agents
from durable_agents import RunWaiting, runs
from durable_agents._core import engine as core_engine
from durable_agents.errors import (
    AlreadyAnswered,
    CodeChanged,
    ConfigurationError,
    NotRecoverable,
    NotSupported,
    RunOver,
)
from durable_agents.langgraph import DurableGraph

EFFECTS: list[str] = []


class Killed(BaseException):
    """Ends a run where it stands, without an outcome, as the death of its process does."""


@pytest.fixture(autouse=True)
def engine(database_url: str) -> Iterator[None]:
    EFFECTS.clear()
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()
    core_engine.RUNNERS.clear()


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


@tool
def charge(amount: int) -> str:
    """Charge a card."""
    EFFECTS.append("charge")
    if EFFECTS.count("charge") == 1:
        raise Killed
    return f"charged {amount}"


class Cashier(BaseChatModel):
    """Charges once, then says what came of it."""

    @property
    def _llm_type(self) -> str:
        return "cashier"

    def bind_tools(self, *args: Any, **kwargs: Any) -> "Cashier":
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if messages[-1].type == "tool":
            message = AIMessage(f"done: {messages[-1].content}")
        else:
            call = {"name": "charge", "args": {"amount": 3}, "id": "call_1"}
            message = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])


ASK: Any = {"messages": [("user", "charge me")]}


def cashier(**options: Any) -> Any:
    return DurableGraph(create_agent(Cashier(), [charge]), "cashier", **options)


def last(result: Any) -> str:
    return str(result["messages"][-1].content)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("said", "content", "count"),
    [
        ({"result": "charged 3"}, "done: charged 3", 1),
        ("run again", "done: charged 3", 2),
        ({"error": "declined"}, "declined", 1),
    ],
)
def test_a_tool_that_was_cut_off_waits_for_an_answer(
    is_async: bool, said: Any, content: str, count: int
) -> None:
    app = cashier(at_most_once={"charge"})

    def invoke() -> Any:
        config = {"configurable": {"thread_id": "t"}}
        return (
            asyncio.run(app.ainvoke(ASK, config, run_id="r"))
            if is_async
            else app.invoke(ASK, config, run_id="r")
        )

    with pytest.raises(Killed):
        invoke()
    with pytest.raises(RunWaiting, match="outcome:"):
        invoke()
    with pytest.raises(RunWaiting, match="outcome:"):  # the graph asks nothing: this is no answer to anything
        app.invoke(Command(resume="yes"), {"configurable": {"thread_id": "t"}})
    ((_, asked),) = runs.get("r").questions.items()
    assert (asked["unknown_outcome"], asked["arguments"]) == ("charge", '{"amount": 3}')
    runs.get("r").answer(said)
    if "error" in said and said != "run again":
        with pytest.raises(Exception, match=content):
            invoke()
    else:
        assert last(invoke()) == content
    assert EFFECTS.count("charge") == count


def test_an_error_that_somebody_reports_is_handled_as_the_tools_own() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [Cashier().invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([charge], handle_tool_errors="it failed"))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    app = DurableGraph(graph.compile(), "forgiving", at_most_once={"charge"})
    with pytest.raises(Killed):
        app.invoke(ASK, run_id="r")
    with pytest.raises(RunWaiting):
        app.invoke(ASK, run_id="r")
    runs.get("r").answer({"error": "declined"})
    assert last(app.invoke(ASK, run_id="r")) == "done: it failed"


def test_an_interrupt_before_and_after_an_unknown_outcome() -> None:
    def ask(state: Log) -> Log:
        return {"log": [interrupt("first?")]}

    def pay(state: Log) -> Log:
        return {"log": [charge.invoke({"amount": 1})]}

    def ask_again(state: Log) -> Log:
        return {"log": [interrupt("second?")]}

    app = DurableGraph(
        line(("ask", ask), ("pay", pay), ("ask_again", ask_again)), "asking", at_most_once={"charge"}
    )
    config: Any = {"configurable": {"thread_id": "t"}}
    assert app.invoke({"log": []}, config, run_id="r")["__interrupt__"][0].value == "first?"
    with pytest.raises(Killed):
        app.invoke(Command(resume="a"), config)
    with pytest.raises(RunWaiting):
        app.invoke({"log": []}, config, run_id="r")
    runs.get("r").answer({"result": "paid"})
    assert app.invoke({"log": []}, config, run_id="r")["__interrupt__"][0].value == "second?"
    assert app.invoke(Command(resume="b"), config) == {"log": ["a", "paid", "b"]}
    assert EFFECTS == ["charge"]


def line(*nodes: tuple[str, Any], **options: Any) -> Any:
    """A compiled graph of these nodes, one after the other."""
    graph = StateGraph(Log, **options)
    before = START
    for name, node in nodes:
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph.compile()


# -- resume


def test_a_failed_run_is_resumed_at_the_node_that_failed() -> None:
    down = [True]

    def first(state: Log) -> Log:
        EFFECTS.append("first")
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        if down:
            raise ConnectionError("down")
        return {"log": ["second"]}

    app = DurableGraph(line(("first", first), ("second", second)), "failing")
    with pytest.raises(ConnectionError):
        app.invoke({"log": []}, run_id="r")
    with pytest.raises(ConnectionError):
        app.invoke({"log": []}, run_id="r")
    down.clear()
    runs.get("r").resume()
    assert runs.get("r").result(timeout=10) == {"log": ["first", "second"]}
    assert EFFECTS == ["first"]


def test_a_failed_tool_in_a_finished_superstep_of_siblings() -> None:
    """The siblings of the node that failed have finished: they do not run again."""
    down = [True]

    def node(name: str) -> Any:
        def run(state: Log) -> Log:
            EFFECTS.append(name)
            if name == "b" and down:
                raise ConnectionError("down")
            return {"log": [name]}

        return run

    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, node(name))
        graph.add_edge(START, name)
    app = DurableGraph(graph.compile(), "siblings")
    with pytest.raises(ConnectionError):
        app.invoke({"log": []}, run_id="r")
    down.clear()
    runs.get("r").resume()
    assert runs.get("r").result(timeout=10) == {"log": ["a", "b", "c"]}
    assert sorted(EFFECTS)[-1] == "c"
    assert EFFECTS.count("b") == 2


# -- live arguments


@dataclass
class Context:
    user: Any


class Secret:
    """No durable form."""

    name = "secret"


def greet(state: Log, runtime: Runtime[Context]) -> Log:
    EFFECTS.append("greet")
    if EFFECTS.count("greet") == 1:
        raise Killed
    return {"log": [runtime.context.user.name]}


@pytest.mark.parametrize("given", [False, True])
def test_a_context_that_cannot_be_recorded(given: bool) -> None:
    options: Any = {"restore": lambda run: {"context": Context(Secret())}} if given else {}
    app = DurableGraph(line(("greet", greet), context_schema=Context), "greeter", **options)
    with pytest.raises(Killed):
        app.invoke({"log": []}, context=Context(Secret()), run_id="r")
    core_engine.current()._interrupted.clear()  # as in another process
    core_engine.current().wake()
    if given:
        assert runs.get("r").result(timeout=10) == {"log": ["secret"]}
        assert app.start({"log": []}, context=Context(Secret())).result(timeout=10) == {"log": ["secret"]}
    else:
        with pytest.raises(NotRecoverable, match=r"context.*restore="):
            runs.get("r").result(timeout=10)
        with pytest.raises(NotRecoverable, match="context"):
            app.start({"log": []}, context=Context(Secret()))


# -- changed code


def test_a_graph_with_other_nodes_waits_for_the_old_one_or_goes_on_as_told() -> None:
    def killed(state: Log) -> Log:
        raise Killed

    def pay(state: Log) -> Log:
        return {"log": ["paid"]}

    def redeploy(*nodes: tuple[str, Any], **options: Any) -> Any:
        core_engine.RUNNERS.clear()
        return DurableGraph(line(*nodes), "deployed", **options)

    with pytest.raises(Killed):
        redeploy(("pay", killed)).invoke({"log": []}, run_id="r")
    changed = ("check", lambda state: {"log": ["checked"]}), ("pay", pay)
    with pytest.raises(CodeChanged, match=r"edges lost '__start__ -> pay'.*nodes got 'check'"):
        redeploy(*changed).invoke({"log": []}, run_id="r")
    assert redeploy(("pay", pay)).invoke({"log": []}, run_id="r") == {"log": ["paid"]}  # a bug was mended
    with pytest.raises(Killed):
        redeploy(("pay", killed)).invoke({"log": []}, run_id="s")
    redeploy(*changed, on_code_change="continue").invoke({"log": []}, run_id="s")
    assert runs.get("s").status == "succeeded"


# -- batches, forks, children


def test_each_item_of_a_batch_is_a_run() -> None:
    def count(state: Log) -> Log:
        EFFECTS.append("count")
        return {"log": [len(state["log"])]}

    app = DurableGraph(line(("count", count)), "counter")
    inputs: Any = [{"log": ["x"] * n} for n in range(3)]
    expected = [{"log": ["x"] * n + [n]} for n in range(3)]
    for _ in range(2):
        assert app.batch(inputs, run_id="b") == expected
    assert sorted(run.id for run in runs.list()) == ["b/0", "b/1", "b/2"]
    assert asyncio.run(app.abatch(inputs, run_id="c")) == expected
    assert dict(app.batch_as_completed(inputs, run_id="b")) == dict(enumerate(expected))

    async def completed() -> dict[int, Any]:
        return {number: result async for number, result in app.abatch_as_completed(inputs, run_id="c")}

    assert asyncio.run(completed()) == dict(enumerate(expected))
    assert len(EFFECTS) == 6
    assert app.batch(inputs) == expected


def test_a_run_is_not_forked_by_step_yet() -> None:
    app = DurableGraph(line(("a", lambda state: {"log": ["a"]})), "forked")
    app.invoke({"log": []}, run_id="r")
    with pytest.raises(NotSupported, match="time travel"):
        runs.get("r").fork("1/node:a")
    with pytest.raises(NotSupported, match="steps"):
        next(runs.get("r").stream())


def test_a_run_that_a_node_starts_is_started_once() -> None:
    child = DurableGraph(line(("a", lambda state: {"log": ["child"]})), "child")
    calls: list[str] = []

    def start(state: Log) -> Log:
        calls.append(child.start({"log": []}).id)
        if len(calls) == 1:
            raise Killed
        return {"log": [calls[-1]]}

    parent = DurableGraph(line(("start", start)), "parent")
    with pytest.raises(Killed):
        parent.invoke({"log": []}, run_id="p")
    parent.invoke({"log": []}, run_id="p")
    assert calls[0] == calls[1]
    assert runs.get(calls[0]).result(timeout=10) == {"log": ["child"]}
    assert len(runs.list()) == 2


# -- runs whose thread was edited, or has moved on


class Order(TypedDict):
    to: str
    log: Annotated[list[Any], operator.add]


def orders() -> Any:
    """Charges, then mails, which fails without an address."""

    def pay(state: Order) -> Any:
        EFFECTS.append("pay")
        return {"log": ["paid"]}

    def mail(state: Order) -> Any:
        if not state["to"]:
            raise ValueError("no address")
        return {"log": [f"mailed {state['to']}"]}

    builder = StateGraph(Order)
    builder.add_sequence([("pay", pay), ("mail", mail)])
    builder.add_edge(START, "pay")
    return DurableGraph(builder.compile(), "orders")


T: Any = {"configurable": {"thread_id": "t"}}


def test_a_failed_run_goes_on_from_the_state_that_was_mended() -> None:
    app = orders()
    with pytest.raises(ValueError, match="no address"):
        app.invoke({"to": "", "log": []}, T, run_id="r")
    app.update_state(T, {"to": "ann"})
    runs.get("r").resume()
    assert runs.get("r").result(timeout=10) == {"to": "ann", "log": ["paid", "mailed ann"]}
    assert EFFECTS == ["pay"]


def test_a_failed_run_whose_thread_has_moved_on_is_not_resumed() -> None:
    app = orders()
    with pytest.raises(ValueError, match="no address"):
        app.invoke({"to": "", "log": []}, T, run_id="r1")
    app.invoke({"to": "ann", "log": []}, T, run_id="r2")
    with pytest.raises(RunOver, match="'r2'"):
        runs.get("r1").resume()
    # Whoever queues it all the same, with DBOS's own tools for example, repeats nothing either.
    store = core_engine.current().store
    store.execute(
        "UPDATE workflow_status SET status = 'ENQUEUED', executor_id = NULL WHERE workflow_uuid = 'r1'"
    )
    with pytest.raises(RunOver, match="'r2'"):
        app.invoke({"to": "", "log": []}, T, run_id="r1")
    assert EFFECTS == ["pay", "pay"]


def test_the_same_native_answer_to_a_named_run_attaches() -> None:
    def ask(state: Log) -> Any:
        return {"log": [interrupt("?")]}

    builder = StateGraph(Log)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    app = DurableGraph(builder.compile(), "asking")
    app.invoke({"log": []}, T, run_id="r")
    for _ in range(2):
        assert app.invoke(Command(resume="a"), T, run_id="r") == {"log": ["a"]}
    with pytest.raises(AlreadyAnswered):
        app.invoke(Command(resume="b"), T, run_id="r")


def test_a_command_that_answers_nothing_leaves_the_question_open() -> None:
    def ask(state: Log) -> Any:
        return {"log": [interrupt("?")]}

    builder = StateGraph(Log)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    app = DurableGraph(builder.compile(), "asking")
    app.invoke({"log": []}, T, run_id="r")
    with pytest.raises(ConfigurationError, match="answers nothing"):
        app.invoke(Command(resume=None), T)
    assert runs.get("r").status == "waiting"


# -- code that has lost the node a run was to go on in


def renamed(first: str, second: str, asks: bool) -> Any:
    def one(state: Log) -> Any:
        EFFECTS.append("one")
        return {"log": ["one"]}

    def two(state: Log) -> Any:
        if asks:
            return {"log": [interrupt("?")]}
        if EFFECTS.count("two") == 0:
            EFFECTS.append("two")
            raise Killed
        return {"log": ["two"]}

    builder = StateGraph(Log)
    builder.add_sequence([(first, one), (second, two)])
    builder.add_edge(START, first)
    core_engine.RUNNERS.clear()
    return DurableGraph(builder.compile(), "renamed", on_code_change="continue")


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("new", [("one", "second"), ("first", "two"), ("first", "second")])
def test_a_run_that_was_to_go_on_in_a_node_that_is_gone_waits_for_it(
    asks: bool, new: tuple[str, str]
) -> None:
    """LangGraph would pass over the node, and the run succeed without its work."""
    app = renamed("one", "two", asks)
    if asks:
        app.invoke({"log": []}, T, run_id="r")
    else:
        with pytest.raises(Killed):
            app.invoke({"log": []}, T, run_id="r")
    answer: Any = Command(resume="yes") if asks else {"log": []}
    expected = {"log": ["one", "yes" if asks else "two"]}
    changed = renamed(*new, asks)
    if new == (
        "first",
        "two",
    ):  # whether it was in "one" or behind that is a matter of what was committed by then
        with suppress(CodeChanged):
            assert changed.invoke(answer, T, run_id="r") == expected
    else:
        with pytest.raises(CodeChanged, match="go on at"):
            changed.invoke(answer, T, run_id="r")
        assert "go on at" in str(runs.get("r").blocked)
    core_engine.current().store.execute("UPDATE workflow_status SET delay_until_epoch_ms = NULL")  # its rest
    assert renamed("one", "two", asks).invoke(answer, T, run_id="r") == expected


def test_a_name_in_at_most_once_that_no_tool_has_is_told(caplog: Any) -> None:
    DurableGraph(create_agent(Cashier(), [charge]), "typo", at_most_once={"chrage"})
    assert "chrage" in caplog.text
    caplog.clear()
    core_engine.RUNNERS.clear()
    DurableGraph(create_agent(Cashier(), [charge]), "typo", at_most_once={"charge"})
    assert "at_most_once" not in caplog.text


def test_what_a_tool_with_an_artifact_has_returned_is_told_as_json() -> None:
    @tool(response_format="content_and_artifact")
    def charge(amount: int) -> tuple[str, dict[str, int]]:
        """Charge a card."""
        EFFECTS.append("charge")
        raise Killed

    app = DurableGraph(create_agent(Cashier(), [charge]), "artifacts", at_most_once={"charge"})
    with pytest.raises(Killed):
        app.invoke({"messages": [("user", "please")]}, run_id="r")
    with pytest.raises(RunWaiting):
        app.invoke({"messages": [("user", "please")]}, run_id="r")
    runs.get("r").answer({"result": ["receipt 7", {"number": 7}]})
    told = runs.get("r").result(timeout=10)["messages"][-2]
    assert (told.content, told.artifact) == ("receipt 7", {"number": 7})
    assert EFFECTS == ["charge"]
