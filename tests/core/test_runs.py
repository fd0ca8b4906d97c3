"""Runs: their ids, attaching to them in every state, and what they tell."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import durable_agents
from core.harness import Programs, crash, eventually
from durable_agents import errors, runs
from durable_agents._core import RUN, Usage, engine, execution, step
from plain import Plain

Agent = Callable[..., Plain]
here = pytest.mark.usefixtures("launched")


def hold(gate: threading.Event, calls: list[Any]) -> Callable[[Any], Any]:
    def body(input: Any) -> Any:
        def tool() -> str:
            calls.append(input)
            assert gate.wait(30)
            return "done"

        return step("tool", "t", tool)

    return body


# -- one id, one run


@here
def test_a_run_id_called_twice_is_one_run(agent: Agent) -> None:
    calls: list[Any] = []
    runner = agent(lambda x: step("tool", "t", lambda: calls.append(x) or f"did {x}"))
    assert runner.run("a", run_id="twice") == "did a"
    assert runner.run("a", run_id="twice") == "did a"
    assert asyncio.run(runner.arun("a", run_id="twice")) == "did a"
    assert runner.start("a", run_id="twice").result(5) == "did a"
    assert calls == ["a"]


@here
def test_another_input_thread_or_runner_is_an_error(agent: Agent) -> None:
    runner, other = agent(lambda x: x), agent(lambda x: x)
    runner.run({"order": 55}, run_id="same", thread="t")
    for verb in (runner.run, runner.start):
        with pytest.raises(errors.InputMismatch, match="another input"):
            verb({"order": 56}, run_id="same", thread="t")
        with pytest.raises(errors.InputMismatch, match="another input"):
            verb({"order": 55}, run_id="same", thread="u")
    with pytest.raises(errors.InputMismatch, match=f"belongs to the runner '{runner.name}'"):
        other.run({"order": 55}, run_id="same", thread="t")
    assert runner.run({"order": 55}, run_id="same", thread="t") == {"order": 55}


@here
def test_an_input_without_durable_form_is_refused_at_once(agent: Agent) -> None:
    with pytest.raises(errors.EncodingError):
        agent(lambda x: x).run(object(), run_id="no")
    with pytest.raises(errors.RunNotFound):
        runs.get("no")


@here
@pytest.mark.parametrize(
    "bad", ["zero\0byte", "lone\ud800", "line\nfeed", "x" * 256, 7], ids=lambda bad: str(bad)[:4].strip()
)
def test_an_id_or_thread_that_is_not_printable_or_too_long_is_refused_at_once(agent: Agent, bad: Any) -> None:
    runner = agent(lambda _: 1)
    for verb in (runner.run, runner.start):
        with pytest.raises(errors.ConfigurationError, match="run_id must be 1 to 255 printable"):
            verb(run_id=bad)
        with pytest.raises(errors.ConfigurationError, match="thread must be 1 to 255 printable"):
            verb(thread=bad)
    assert runs.list() == []


@here
def test_ids_and_threads_may_be_any_text_a_person_can_read(agent: Agent) -> None:
    runner = agent(lambda x: x)
    for given in ("x" * 255, "é☃😀", "a/b#2@3%:", "0"):
        assert runner.run(1, run_id=given, thread=given) == 1
        assert runs.get(given).status == "succeeded"
    with pytest.raises(errors.ConfigurationError, match="thread must be 1 to 255"):
        runner.run(thread="")


@here
def test_a_run_without_an_id_gets_a_new_one(agent: Agent) -> None:
    runner = agent(lambda x: x)
    assert [runner.run(1), runner.run(2, run_id=None)] == [1, 2]
    assert len({run.id for run in runs.list()}) == 2


@here
def test_an_unknown_id_is_an_error() -> None:
    with pytest.raises(errors.RunNotFound, match="'nothing'"):
        runs.get("nothing")


@here
def test_errors_never_show_the_password(agent: Agent, launched: str) -> None:
    secret = launched.split("@")[0].rsplit(":", 1)[-1]
    for provoke in (lambda: runs.get("nothing"), lambda: durable_agents.launch("sqlite:///other.sqlite")):
        with pytest.raises(errors.DurableError) as caught:
            provoke()
        assert "postgresql" not in launched or secret not in str(caught.value)


# -- attaching


@here
def test_attach_to_a_run_this_process_drives(agent: Agent) -> None:
    gate, calls = threading.Event(), []
    runner = agent(hold(gate, calls))
    results: list[Any] = []
    callers = [threading.Thread(target=lambda: results.append(runner.run(1, run_id="r"))) for _ in range(3)]
    for caller in callers:
        caller.start()
    eventually(lambda: calls)
    assert runs.get("r").status == "running"
    gate.set()
    for caller in callers:
        caller.join(10)
    assert results == ["done"] * 3
    assert calls == [1]


@here
def test_attach_to_a_queued_run_drives_it(agent: Agent) -> None:
    runner = agent(lambda x: threading.current_thread().name)
    engine.current().shun("q")  # the claim loop leaves it alone
    assert runner.start(run_id="q").status == "queued"
    assert runner.run(run_id="q") == threading.current_thread().name
    assert runs.get("q").status == "succeeded"


@here
def test_attach_to_a_failed_run_raises_its_error(agent: Agent) -> None:
    calls: list[int] = []

    def body(_: None) -> None:
        calls.append(1)
        raise ValueError("no")

    runner = agent(body)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            runner.run(run_id="f")
    with pytest.raises(ValueError, match="no"):
        runs.get("f").result(1)
    assert len(calls) == 1


@here
def test_attach_to_a_cancelled_run_raises(agent: Agent) -> None:
    runner = agent(lambda _: RUN.get().wait({"q": 1}))
    with pytest.raises(errors.RunWaiting):
        runner.run(run_id="c")
    runs.get("c").cancel()
    for ask in (lambda: runner.run(run_id="c"), lambda: runs.get("c").result(1)):
        with pytest.raises(errors.RunCancelled):
            ask()


@here
def test_attach_to_a_waiting_run_says_what_it_waits_for(agent: Agent) -> None:
    runner = agent(lambda _: RUN.get().wait({"q": {"amount": 1}}))
    for _ in range(2):
        with pytest.raises(errors.RunWaiting) as caught:
            runner.run(run_id="w")
        assert caught.value.questions == {"q": {"amount": 1}}
        assert caught.value.run_id == "w"


def test_attach_to_a_run_of_another_process_waits_for_its_result(
    programs: Programs, database_url: str
) -> None:
    first = programs.start("agents", "run", "gated", "g")
    eventually(lambda: "held" in programs.ledger.effects(), what=first.output)
    second = programs.start("agents", "run", "gated", "g")
    (programs.home / "open").touch()
    assert (first.ends(), second.ends()) == (0, 0)
    assert first.says('["through", "last"]')
    assert second.says('["through", "last"]')
    assert programs.ledger.effects() == ["first", "held", "last"]


def test_attach_to_an_orphaned_run_continues_it(programs: Programs) -> None:
    assert programs.start("agents", "run", "order", "o", die="before:mail").ends() < 0
    program = programs.start("agents", "run", "order", "o")
    assert program.ends() == 0
    assert program.says('["reserve", "charge", "mail"]')
    assert programs.ledger.effects() == ["reserve", "charge", "mail"]


def test_a_result_is_read_in_another_process(programs: Programs, launched: str) -> None:
    assert programs.start("agents", "run", "order", "x").ends() == 0
    with pytest.raises(errors.ConfigurationError, match=r"plain\.order"):
        runs.get("x").result(1)
    Plain(lambda _: None, "order")
    assert runs.get("x").result(1) == ["reserve", "charge", "mail"]


# -- what runs tell


@here
def test_a_run_tells_its_steps_status_and_usage(agent: Agent) -> None:
    def body(_: None) -> str:
        step("model", "gpt", lambda: "a", usage=lambda _: Usage("gpt", 5, 2))
        with pytest.raises(ValueError, match="bad"):
            step("tool", "bad", lambda: (_ for _ in ()).throw(ValueError("bad")))
        return str(step("tool", "retried", lambda: "b", attempt=2))

    runner = agent(body)
    runner.run(run_id="told")
    run = runs.get("told")
    assert (run.id, run.status, run.runner, run.error, run.questions) == (
        "told",
        "succeeded",
        runner.name,
        None,
        {},
    )
    assert run.usage == Usage("gpt", 5, 2)
    model, bad, retried = run.steps()
    assert (model.path, model.kind, model.name, model.attempts, model.error) == (
        "model:gpt",
        "model",
        "gpt",
        1,
        None,
    )
    assert (bad.error, retried.attempts) == ("bad", 2)
    assert {s.epoch for s in run.steps()} == {1}
    assert all(s.started <= s.ended for s in run.steps())


@here
def test_list_filters_by_status_and_runner(agent: Agent) -> None:
    good = agent(lambda _: 1)
    bad = agent(lambda _: 1 / 0)
    asks = agent(lambda _: RUN.get().wait({"q": 1}))
    for n in range(3):
        good.run(run_id=f"g{n}")
        time.sleep(0.003)  # the order is by milliseconds
    with pytest.raises(ZeroDivisionError):
        bad.run(run_id="b")
    with pytest.raises(errors.RunWaiting):
        asks.run(run_id="a")
    assert [r.id for r in runs.list(status="succeeded")] == ["g2", "g1", "g0"]
    assert [r.id for r in runs.list(status="failed")] == ["b"]
    assert [r.id for r in runs.list(status=("waiting", "failed"))] == ["a", "b"]
    assert [r.id for r in runs.list(runner=good.name, limit=2)] == ["g2", "g1"]
    assert len(runs.list()) == 5
    assert runs.list(status="cancelled") == []
    with pytest.raises(errors.ConfigurationError, match="no such status: 'done'"):
        runs.list(status="done")  # type: ignore[arg-type]


@pytest.mark.usefixtures("idle")
def test_a_limit_counts_the_runs_of_the_status(agent: Agent) -> None:
    """A queued run and one between two workers have the same DBOS status."""
    runner = agent(lambda _: 1)
    for n in range(2):
        engine.current().shun(f"queued{n}")  # the claim loop leaves it alone
    queued = [runner.start(run_id=f"queued{n}").id for n in range(2)]
    runner.run(run_id="between")
    crash("between", after=1)
    assert runs.get("between").status == "running"
    found = [r.id for r in runs.list(status="queued", limit=1)]
    assert len(found) == 1
    assert found[0] in queued


@here
def test_result_waits_no_longer_than_asked(agent: Agent) -> None:
    gate, calls = threading.Event(), []
    run = agent(hold(gate, calls)).start(1, run_id="slow")
    eventually(lambda: calls)
    with pytest.raises(TimeoutError):
        run.result(0.1)
    with pytest.raises(TimeoutError):
        asyncio.run(run.aresult(0.1))
    gate.set()
    assert run.result(10) == "done"
    assert asyncio.run(run.aresult(1)) == "done"


# -- cancel


@here
def test_cancel_of_a_waiting_run_is_at_once(agent: Agent) -> None:
    runner = agent(lambda _: RUN.get().wait({"q": 1}))
    with pytest.raises(errors.RunWaiting):
        runner.run(run_id="w")
    runs.get("w").cancel()
    assert runs.get("w").status == "cancelled"
    with pytest.raises(errors.NotWaiting):
        runs.get("w").answer(1)


@here
def test_cancel_of_a_running_run_lets_the_step_in_flight_finish(agent: Agent) -> None:
    gate, calls = threading.Event(), []

    def body(input: Any) -> Any:
        hold(gate, calls)(input)
        return step("tool", "next", lambda: calls.append("next"))

    run = agent(body).start("first", run_id="r")
    eventually(lambda: calls)
    run.cancel()
    eventually(lambda: engine.current()._live["r"].closing)
    gate.set()
    with pytest.raises(errors.RunCancelled):
        run.result(10)
    assert run.status == "cancelled"
    assert calls == ["first"]
    assert [s.path for s in run.steps()] == ["tool:t"]


@here
def test_cancel_of_a_queued_run_is_at_once(agent: Agent) -> None:
    gate, calls = threading.Event(), []
    runner = agent(hold(gate, calls))
    first = runner.start(1, run_id="1", thread="t")
    eventually(lambda: calls)
    second = runner.start(2, run_id="2", thread="t")
    second.cancel()
    assert second.status == "cancelled"
    gate.set()
    assert first.result(10) == "done"
    assert calls == [1]


@here
def test_cancel_of_a_run_that_is_over_changes_nothing(agent: Agent) -> None:
    agent(lambda _: 1).run(run_id="over")
    runs.get("over").cancel()
    assert runs.get("over").status == "succeeded"
    with pytest.raises(errors.RunNotFound):
        runs.Run("nothing").cancel()


@here
def test_cancel_just_before_the_run_parks_is_not_lost(agent: Agent) -> None:
    def body(_: None) -> Any:
        runs.get("c").cancel()
        return RUN.get().wait({"q": 1})

    with pytest.raises((errors.RunWaiting, errors.RunCancelled)):
        agent(body).run(run_id="c")
    eventually(lambda: runs.get("c").status == "cancelled", 3)


# -- what the agent's code throws


@here
@pytest.mark.parametrize("text", ["half a character \ud83d", "a NUL \x00 inside"])
def test_an_error_whose_text_no_database_takes(agent: Agent, text: str) -> None:
    def body(_: Any) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match=r"half|NUL") as raised:
        agent(body).run(run_id="r")
    assert str(raised.value) == text
    assert runs.get("r").status == "failed"
    assert str(runs.get("r").error) == text


@here
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_queued_run_that_would_end_its_worker_fails(agent: Agent, error: type[BaseException]) -> None:
    def body(_: Any) -> None:
        step("tool", "t", lambda: (_ for _ in ()).throw(error("bye")))

    run = agent(body).start(run_id="r")
    with pytest.raises(errors.RecordedError, match=f"{error.__name__}.*bye"):
        run.result(timeout=10)
    assert run.status == "failed"


@here
@pytest.mark.parametrize("run_id", ["", 0, b"r"])
def test_an_id_that_is_none_is_no_new_run(agent: Agent, run_id: Any) -> None:
    calls: list[int] = []
    runner = agent(lambda _: calls.append(1))
    with pytest.raises(errors.ConfigurationError, match="run_id"):
        runner.run(run_id=run_id)
    with pytest.raises(errors.ConfigurationError, match="run_id"):
        runner.start(run_id=run_id)
    assert calls == []


@here
@pytest.mark.parametrize("limit", [-1, None, "a", 2**70])
def test_an_odd_limit(limit: Any) -> None:
    with pytest.raises(errors.ConfigurationError, match="limit"):
        runs.list(limit=limit)


@here
def test_a_run_whose_owner_died_after_it_was_cancelled(agent: Agent) -> None:
    calls: list[int] = []
    runner = agent(lambda _: step("tool", "t", lambda: calls.append(1)))
    runner.run(run_id="r")
    crash("r", after=1)
    engine.current().store.execute(
        "UPDATE workflow_status SET attributes = '{\"cancel\":true}' WHERE workflow_uuid = 'r'"
    )
    with pytest.raises(errors.RunCancelled):
        runner.run(run_id="r")
    assert runs.get("r").status == "cancelled"
    assert len(calls) == 1


@here
def test_a_cancelled_run_that_is_driven_here_begins_no_further_step(agent: Agent) -> None:
    calls: list[int] = []

    def cancels() -> None:
        calls.append(1)
        runs.get("r").cancel()

    runner = agent(lambda _: [step("tool", "t", cancels) for _ in range(5)])
    with pytest.raises(errors.RunCancelled):
        runner.run(run_id="r")
    assert calls == [1]
    assert [s.path for s in runs.get("r").steps()] == ["tool:t"]


@here
def test_a_run_that_cannot_be_loaded_says_so(agent: Agent) -> None:
    runner = agent(lambda _: step("tool", "t", lambda: 1 // 0))
    with pytest.raises(ZeroDivisionError):
        runner.run(run_id="r")
    engine.current().store.execute(
        "DELETE FROM operation_outputs WHERE workflow_uuid = 'r' AND function_id = 2"
    )
    engine.current().store.execute(
        "UPDATE workflow_status SET status = 'ENQUEUED', executor_id = NULL WHERE workflow_uuid = 'r'"
    )
    engine.current().wake()
    eventually(lambda: runs.get("r").blocked is not None)
    assert "BrokenRecord" in str(runs.get("r").blocked)
    with pytest.raises(TimeoutError, match="BrokenRecord"):
        runs.get("r").result(timeout=0)


@here
def test_one_whose_kind_cannot_be_told_strands_no_other(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, fine = agent(lambda _: 1), agent(lambda _: 2)

    def is_async(_: Any) -> bool:
        raise ValueError("odd")

    monkeypatch.setattr(odd, "is_async", is_async)
    started = [runner.start() for runner in (odd, fine, fine)]
    assert [run.result(timeout=10) for run in started[1:]] == [2, 2]
    eventually(lambda: "odd" in str(started[0].blocked))


@here
def test_ctrl_c_again_while_a_step_is_in_flight_hands_the_run_back(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt("again")

    def body(_: Any) -> None:
        raise KeyboardInterrupt

    runner = agent(body)
    monkeypatch.setattr(execution.Execution, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run(run_id="r")
    monkeypatch.undo()
    store = engine.current().store
    ((status, owner),) = store.query(
        "SELECT status, owner_xid FROM workflow_status WHERE workflow_uuid = 'r'"
    )
    assert (status, owner) == ("ENQUEUED", None)
    with pytest.raises(TimeoutError, match="interrupted in this process"):
        runs.get("r").result(timeout=0)
