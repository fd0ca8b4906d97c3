"""The native arguments of the verbs, and threads that come from elsewhere."""

import asyncio
import operator
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphDrained, UnknownInterruptError
from langgraph.graph import START, StateGraph
from langgraph.runtime import RunControl
from langgraph.types import Command, GraphOutput, interrupt
from pydantic import BaseModel

import durable_agents
from durable_agents import runs
from durable_agents._core import engine as core_engine
from durable_agents.errors import ConfigurationError, ResultNotRecorded
from durable_agents.langgraph import DurableGraph

CALLED: list[str] = []
T: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture(autouse=True)
def engine(database_url: str) -> Iterator[None]:
    CALLED.clear()
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()
    core_engine.RUNNERS.clear()


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Decision(BaseModel):
    approved: bool


def named(name: str) -> Any:
    def act(state: Log) -> Log:
        CALLED.append(name)
        return {"log": [name]}

    return act


def ask(state: Log) -> Log:
    CALLED.append("ask")
    return {"log": [interrupt("ship?")]}


def chain(**nodes: Any) -> Any:
    builder: Any = StateGraph(Log)
    above = START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(above, name)
        above = name
    return builder


def started_again(app: Any) -> Any:
    """The runner as another process has it."""
    core_engine.RUNNERS.clear()
    return DurableGraph(app.builder.compile(), app.durable.name.removeprefix("langgraph."))


@pytest.mark.parametrize("mode", ["updates", ["updates", "values"]])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_invoke_returns_the_chunks_of_a_stream_mode(mode: Any, version: Any) -> None:
    graph = chain(a=named("a"), b=named("b")).compile(checkpointer=InMemorySaver())
    app = DurableGraph(graph, "app")
    asked: Any = {"stream_mode": mode, "version": version}
    natively = graph.invoke({"log": []}, T, **asked)
    CALLED.clear()
    assert app.invoke({"log": []}, T, run_id="r", **asked) == natively
    assert started_again(app).invoke({"log": []}, T, run_id="r", **asked) == natively
    assert CALLED == ["a", "b"]


def test_chunks_from_before_a_crash_are_not_passed_over() -> None:
    class Died(BaseException):
        pass

    def fails_once(state: Log) -> Log:
        CALLED.append("b")
        if CALLED.count("b") == 1:
            raise Died
        return {"log": ["b"]}

    app = DurableGraph(chain(a=named("a"), b=fails_once).compile(), "app")
    with pytest.raises(Died):
        app.invoke({"log": []}, T, run_id="r", stream_mode="updates")
    with pytest.raises(ResultNotRecorded, match="some of the chunks"):
        app.invoke({"log": []}, T, run_id="r", stream_mode="updates")
    assert app.get_state(T).values == {"log": ["a", "b"]}
    assert CALLED == ["a", "b", "b"]


def test_version_2_returns_an_output_with_its_interrupts() -> None:
    app = DurableGraph(chain(ask=ask, b=named("b")).compile(), "app")
    asked = app.invoke({"log": []}, T, run_id="r", version="v2")
    assert isinstance(asked, GraphOutput)
    assert [each.value for each in asked.interrupts] == ["ship?"]
    done = app.invoke(Command(resume="yes"), T, version="v2")
    assert done == GraphOutput(value={"log": ["yes", "b"]})


def test_version_2_is_told_another_process_too() -> None:
    app = DurableGraph(chain(a=named("a")).compile(), "app")
    done = app.invoke({"log": []}, T, run_id="r", version="v2")
    assert (
        runs.get("r").result() == done == started_again(app).invoke({"log": []}, T, run_id="r", version="v2")
    )


@pytest.mark.parametrize("is_async", [False, True])
def test_a_drained_run_stops_between_two_nodes_and_goes_on_when_it_is_resumed(is_async: bool) -> None:
    control = RunControl()

    def a(state: Log) -> Log:
        CALLED.append("a")
        control.request_drain("deploy")
        return {"log": ["a"]}

    app = DurableGraph(chain(a=a, b=named("b")).compile(), "app")

    def invoke() -> Any:
        if is_async:
            return asyncio.run(app.ainvoke({"log": []}, T, run_id="r", control=control))
        return app.invoke({"log": []}, T, run_id="r", control=control)

    with pytest.raises(GraphDrained, match="deploy"):
        invoke()
    assert runs.get("r").status == "failed"
    assert app.get_state(T).next == ("b",)
    runs.get("r").resume()
    assert runs.get("r").result(timeout=10) == {"log": ["a", "b"]}
    assert CALLED == ["a", "b"]


def test_a_graph_that_saves_at_its_exit_has_one_checkpoint_for_each_call() -> None:
    app = DurableGraph(chain(a=named("a"), ask=ask, b=named("b")).compile(), "app")
    app.invoke({"log": []}, T, run_id="r", durability="exit")
    assert len(list(app.get_state_history(T))) == 1
    assert app.invoke(Command(resume="yes"), T, durability="exit") == {"log": ["a", "yes", "b"]}
    assert len(list(app.get_state_history(T))) == 2
    assert CALLED == ["a", "ask", "ask", "b"]


@pytest.mark.parametrize("by_caller", [True, False], ids=["caller", "worker"])
def test_an_answered_run_goes_on_where_it_waited_and_not_where_it_began(by_caller: bool) -> None:
    """It began at a checkpoint of the past, whose question had another answer then."""
    app = DurableGraph(chain(a=named("a"), ask=ask, b=named("b")).compile(), "app")
    app.invoke({"log": []}, T, run_id="r1")
    app.invoke(Command(resume="old"), T)
    past = next(state for state in app.get_state_history(T) if state.next == ("ask",)).config
    if by_caller:
        core_engine.current().shun("r2")
    app.invoke(None, past, run_id="r2")
    runs.get("r2").answer("new")
    result = app.invoke(None, past, run_id="r2") if by_caller else runs.get("r2").result(timeout=10)
    assert result == {"log": ["a", "new", "b"]}
    assert app.get_state(T).values == result


def test_an_answer_may_bring_an_update_and_the_way_to_another_node() -> None:
    builder = chain(ask=ask, b=named("b"))
    builder.add_node("aside", named("aside"))
    graph = builder.compile(checkpointer=InMemorySaver())
    said: Any = Command(resume="yes", update={"log": ["by hand"]}, goto="aside")
    graph.invoke({"log": []}, T)
    natively = graph.invoke(said, T)
    for number, answer in enumerate([False, True]):
        app = DurableGraph(graph, f"app-{number}")
        app.invoke({"log": []}, T, run_id=f"r{number}")
        if answer:
            run = runs.get(f"r{number}")
            run.answer(said)
            assert run.result(timeout=10) == natively
        else:
            assert app.invoke(said, T) == natively


def test_an_update_beside_an_answer_to_nothing_is_refused() -> None:
    app = DurableGraph(chain(ask=ask).compile(), "app")
    app.invoke({"log": []}, T, run_id="r")
    with pytest.raises(ConfigurationError, match=r"none of the open questions of run 'r'"):
        app.invoke(Command(resume={"0" * 32: "yes"}, update={"log": ["lost"]}), T)
    assert runs.get("r").status == "waiting"


def test_in_strict_mode_an_answer_must_fit_the_open_question() -> None:
    app = DurableGraph(chain(ask=ask).compile(), "app")
    app.invoke({"log": []}, T, run_id="r")
    strict: Any = {"configurable": {**T["configurable"], "__pregel_strict_resume": True}}
    with pytest.raises(UnknownInterruptError, match="already-consumed") as refused:
        app.invoke(Command(resume={"0" * 32: "yes"}), strict)
    assert refused.value.pending_ids == tuple(runs.get("r").questions)
    with pytest.raises(UnknownInterruptError, match="names no interrupt"):
        app.invoke(Command(resume={}), strict)
    assert app.invoke(Command(resume="yes"), strict) == {"log": ["yes"]}


def test_a_graph_with_a_checkpointer_wants_a_thread_or_a_run_id() -> None:
    app = DurableGraph(chain(a=named("a")).compile(checkpointer=InMemorySaver()), "app")
    with pytest.raises(ValueError, match="thread_id"):
        app.invoke({"log": []})
    assert app.invoke({"log": []}, run_id="r") == {"log": ["a"]}


def test_a_class_that_a_node_names_may_be_stored() -> None:
    def decide(state: Log) -> Log:
        return {"log": [interrupt("approve?", response_schema=Decision)]}

    app = DurableGraph(chain(decide=decide).compile(), "app")
    app.invoke({"log": []}, T, run_id="r")
    assert app.invoke(Command(resume={"approved": True}), T) == {"log": [Decision(approved=True)]}
    assert started_again(app).get_state(T).values == {"log": [Decision(approved=True)]}


def _threads(path: Path) -> SqliteSaver:
    return SqliteSaver(sqlite3.connect(path, check_same_thread=False))


def test_a_thread_is_imported_with_its_history_and_its_question(tmp_path: Path) -> None:
    saver = _threads(tmp_path / "old.sqlite")
    graph = chain(a=named("a"), ask=ask, b=named("b")).compile(checkpointer=saver)
    graph.invoke({"log": ["in"]}, T)
    history = list(graph.get_state_history(T))
    app = DurableGraph(graph, "app", ignore_checkpointer=True)
    assert app.import_thread(saver, "t") == len(history) == 3
    assert list(app.get_state_history(T)) == history
    assert app.invoke(Command(resume="yes"), T, run_id="r") == {"log": ["in", "a", "yes", "b"]}
    assert CALLED == ["a", "ask", "ask", "b"]
    assert list(graph.get_state_history(T)) == history  # it was only read


def test_a_thread_is_imported_by_an_async_process() -> None:
    saver = InMemorySaver()
    graph = chain(a=named("a")).compile(checkpointer=saver)
    app = DurableGraph(graph, "app")

    async def main() -> Any:
        await graph.ainvoke({"log": []}, T)
        assert await app.aimport_thread(saver, "t") == 3
        return await app.ainvoke({"log": ["again"]}, T)

    assert asyncio.run(main()) == {"log": ["a", "again", "a"]}


def test_what_cannot_be_imported_is_said() -> None:
    saver = InMemorySaver()
    graph = chain(a=named("a")).compile(checkpointer=saver)
    app = DurableGraph(graph, "app")
    with pytest.raises(ConfigurationError, match="no checkpoint of thread 't'"):
        app.import_thread(saver, "t")
    graph.invoke({"log": []}, T)
    app.import_thread(saver, "t")
    with pytest.raises(ConfigurationError, match="has state here already"):
        app.import_thread(saver, "t")
