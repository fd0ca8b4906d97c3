"""Waiting runs: they hold nothing, and are answered exactly once."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import durable_agents
from core.harness import Programs, crash, eventually
from durable_agents import errors, runs
from durable_agents._core import RUN, Pause, Request, engine, step
from durable_agents._core import run as run_module
from durable_agents._core.store import Store
from plain import Plain

Agent = Callable[..., Plain]
here = pytest.mark.usefixtures("launched")


def ask(**questions: Any) -> dict[str, Any]:
    run = RUN.get()
    assert run is not None
    return run.wait(questions)


def waits(runner: Plain, run_id: str, **given: Any) -> errors.RunWaiting:
    with pytest.raises(errors.RunWaiting) as caught:
        runner.run(run_id=run_id, **given)
    return caught.value


@here
def test_a_waiting_run_holds_no_process_thread_or_connection(agent: Agent, store: Store) -> None:
    runner = agent(lambda _: ask(approve={"amount": 3})["approve"])
    waiting = waits(runner, "w", thread="t")
    assert (waiting.run_id, waiting.questions) == ("w", {"approve": {"amount": 3}})
    run = runs.get("w")
    assert (run.status, run.questions) == ("waiting", {"approve": {"amount": 3}})
    row = store.query(
        "SELECT status, owner_xid, executor_id, deduplication_id FROM workflow_status WHERE workflow_uuid = 'w'"
    )
    assert row == [("DELAYED", None, None, None)]
    assert engine.current()._live == {}
    with pytest.raises(errors.RunWaiting):
        run.result()
    with pytest.raises(errors.RunWaiting):
        asyncio.run(run.aresult())


@here
def test_an_answer_continues_the_run_over_its_records(agent: Agent) -> None:
    calls: list[str] = []

    def body(_: None) -> list[Any]:
        step("tool", "draft", lambda: calls.append("draft"))
        answer = ask(q="?")["q"]
        step("tool", "send", lambda: calls.append("send"))
        return [answer]

    waits(agent(body), "w")
    run = runs.get("w")
    run.answer({"ok": (1, 2)})
    assert run.result(10) == [{"ok": (1, 2)}]
    assert calls == ["draft", "send"]
    assert run.questions == {}


@here
def test_the_same_answer_again_is_no_error_and_another_one_is(agent: Agent) -> None:
    waits(agent(lambda _: ask(q="?")["q"]), "w")
    run = runs.get("w")
    run.answer("yes", question="q")
    for _ in range(2):
        run.answer("yes", question="q")
        run.answer("yes")
        with pytest.raises(errors.AlreadyAnswered):
            run.answer("no")
        assert run.result(10) == "yes"


@here
def test_the_same_answer_again_while_the_next_question_is_open(agent: Agent) -> None:
    """A client that repeats its request must not answer another question, and is told no error."""
    waits(agent(lambda _: [ask(one=1)["one"], ask(two=2)["two"]]), "w")
    run = runs.get("w")
    run.answer("first", question="one")
    eventually(lambda: run.questions == {"two": 2})
    run.answer("first", question="one")
    with pytest.raises(errors.AlreadyAnswered):
        run.answer("other", question="one")
    assert run.questions == {"two": 2}
    run.answer("second", question="two")
    assert run.result(10) == ["first", "second"]


@here
def test_several_questions_are_answered_one_by_one(agent: Agent) -> None:
    waits(agent(lambda _: ask(a=1, b=2)), "w")
    run = runs.get("w")
    with pytest.raises(errors.NotWaiting, match="question="):
        run.answer("?")
    with pytest.raises(errors.NotWaiting, match="'c'"):
        run.answer("?", question="c")
    run.answer("A", question="a")
    eventually(lambda: run.questions == {"b": 2})
    run.answer("B")
    assert run.result(10) == {"a": "A", "b": "B"}


@here
def test_only_waiting_runs_take_answers(agent: Agent) -> None:
    agent(lambda _: 1).run(run_id="over")
    with pytest.raises(errors.NotWaiting):
        runs.get("over").answer(1)
    with pytest.raises(errors.RunNotFound):
        runs.Run("nothing").answer(1)


@here
def test_an_answer_that_cannot_be_stored_is_refused(agent: Agent) -> None:
    waits(agent(lambda _: ask(q=1)["q"]), "w")
    with pytest.raises(errors.EncodingError):
        runs.get("w").answer(object())
    assert runs.get("w").status == "waiting"
    runs.get("w").answer(1)
    assert runs.get("w").result(10) == 1


class Choosy(Plain):
    """A runner that knows which answers it can take."""

    def check_answer(self, asked: Any, answer: Any) -> None:
        if answer not in asked:
            raise errors.ConfigurationError(f"{answer!r} is none of {asked}")


@here
def test_an_answer_that_the_framework_cannot_take_is_refused() -> None:
    runner = Choosy(lambda _: ask(q=["yes", "no"])["q"], "choosy")
    waits(runner, "w")
    with pytest.raises(errors.ConfigurationError, match="perhaps"):
        runs.get("w").answer("perhaps")
    with pytest.raises(errors.ConfigurationError, match="perhaps"):
        runner.call(Request(None, answers={"q": "perhaps"}), "w")
    assert (runs.get("w").status, runs.get("w").questions) == ("waiting", {"q": ["yes", "no"]})
    runs.get("w").answer("no")
    assert runs.get("w").result(10) == "no"


@here
def test_what_became_of_a_tool_is_not_asked_of_the_framework() -> None:
    """The core's own questions have answers of their own."""
    runner = Choosy(lambda _: step("tool", "charge", lambda: "charged"), "careful", at_most_once=["charge"])
    runner.run(run_id="m")
    crash("m", after=2)  # its start is recorded, its end is not
    waits(runner, "m")
    runs.get("m").answer({"result": "charged by hand"})
    assert runs.get("m").result(10) == "charged by hand"


@here
@pytest.mark.parametrize("question", [object(), float("nan"), {1: 2}], ids=["object", "nan", "int key"])
def test_a_question_that_is_no_data_ends_the_run(agent: Agent, question: Any) -> None:
    with pytest.raises((TypeError, ValueError, errors.RunWaiting)):
        agent(lambda _: ask(q=question)).run(run_id="bad")
    assert runs.get("bad").status in ("failed", "waiting")


@here
def test_a_runner_may_stop_with_a_pause_of_its_framework(agent: Agent) -> None:
    def body(_: None) -> Any:
        run = RUN.get()
        assert run is not None
        if "ok" in run.answers:
            return [run.pauses[0].state, run.answers["ok"]]
        return Pause({"ok": "go on?"}, state={"at": 3}, result="interrupted")

    assert agent(body).run(run_id="p") == "interrupted"
    assert runs.get("p").questions == {"ok": "go on?"}
    runs.get("p").answer(True)
    assert runs.get("p").result(10) == [{"at": 3}, True]


@here
def test_a_native_answer_is_driven_by_its_caller(agent: Agent) -> None:
    def body(_: None) -> Any:
        return [ask(q=1)["q"], RUN.get().live, threading.current_thread().name]  # type: ignore[union-attr]

    runner = agent(body)
    waits(runner, "w", thread="t")
    found = runner.waiting_run("t")
    assert found is not None
    assert (found[0], found[1].questions) == ("w", {"q": 1})

    def answer(value: str, live: Any) -> Any:
        return runner.call(Request(None, "t", live, answers={None: value}), "w")

    mine = ["yes", "callback", threading.current_thread().name]
    assert answer("yes", "callback") == mine
    assert answer("yes", None) == mine
    with pytest.raises(errors.AlreadyAnswered):
        answer("no", None)
    assert runner.waiting_run("t") is None


def test_of_four_processes_that_answer_at_once_one_is_accepted(programs: Programs, launched: str) -> None:
    with pytest.raises(errors.RunWaiting):
        Plain(lambda _: ask(q="who?")["q"], "race").run(run_id="race")
    racers = [programs.start("answers", "race", json.dumps(f"racer {n}")) for n in range(4)]
    for racer in racers:
        racer.until("ready")
    (programs.home / "go").touch()
    assert [racer.ends() for racer in racers] == [0] * 4
    verdicts = [racer.output.splitlines()[-1] for racer in racers]
    assert sorted(verdicts) == ["AlreadyAnswered"] * 3 + ["accepted"]
    assert runs.get("race").result(10) == f"racer {verdicts.index('accepted')}"


def test_an_answer_in_another_process_and_a_crash_right_after_it(programs: Programs) -> None:
    asker = programs.start("agents", "run", "asking", "a")
    assert asker.ends() == 1
    assert "RunWaiting" in asker.output
    answering = programs.start("answers", "a", '"yes"', die="after:answer")
    (programs.home / "go").touch()
    assert answering.ends() < 0
    durable_agents.launch(programs.database_url, poll=3600)
    try:
        assert runs.get("a").status in ("queued", "running")
        worker = programs.start("agents", "work")
        eventually(lambda: runs.get("a").status == "succeeded", what=worker.output)
    finally:
        durable_agents.shutdown()
    assert programs.ledger.effects() == ["draft", "answer", "send"]


def test_a_process_killed_inside_the_answer_leaves_the_run_waiting(programs: Programs, launched: str) -> None:
    with pytest.raises(errors.RunWaiting):
        Plain(lambda _: ask(q="who?")["q"], "torn").run(run_id="torn")
    program = programs.start("answers", "torn", '"yes"', "before commit")
    (programs.home / "go").touch()
    assert program.ends() < 0
    assert runs.get("torn").status == "waiting"
    runs.get("torn").answer("after all")
    assert runs.get("torn").result(10) == "after all"


@here
def test_several_open_questions_are_answered_one_after_the_other(agent: Agent) -> None:
    """The run goes on with the first answer; the second is taken as soon as it is asked for again."""

    def body(_: Any) -> Any:
        step("tool", "before", lambda: None)
        answers = ask(a="A?", b="B?")
        return [answers["a"], answers["b"]]

    runner = agent(body)
    waits(runner, "w")
    run = runs.get("w")
    for question, asked in run.questions.items():
        run.answer(f"to {asked}", question)
    assert run.result(timeout=10) == ["to A?", "to B?"]


@here
def test_an_answer_refused_an_instant_before_its_question_is_asked_again(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(_: Any) -> Any:
        return ask(a="A?", b="B?")

    waits(agent(body), "w")
    run, native = runs.get("w"), run_module.answer
    run.answer("to A", "a")

    def late(*given: Any) -> Any:
        try:
            return native(*given)
        except errors.NotWaiting:
            eventually(lambda: run.status == "waiting")
            raise

    monkeypatch.setattr(run_module, "answer", late)
    run.answer("to B", "b")
    assert run.result(10) == {"a": "to A", "b": "to B"}


@here
def test_a_process_without_the_runner_reads_and_answers_typed_answers(agent: Agent) -> None:
    """Its codec knows no types: what was answered before is nothing it has to decode."""
    runner = agent(lambda _: [ask(a=1)["a"], ask(b=2)["b"]])
    waits(runner, "w")
    run = runs.get("w")
    run.answer(1)
    eventually(lambda: list(run.questions) == ["b"])
    engine.current().store.execute(
        "UPDATE operation_outputs SET output = output WHERE workflow_uuid = 'w'"  # its chain is intact
    )
    del engine.RUNNERS[runner.name]
    assert run.questions == {"b": 2}
    with pytest.raises(errors.RunWaiting):
        run.result()
    run.answer({"any": "thing"})
    engine.RUNNERS[runner.name] = runner
    engine.current().wake()
    assert run.result(timeout=10) == [1, {"any": "thing"}]
