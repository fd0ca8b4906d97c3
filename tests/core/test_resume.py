"""`Run.resume()`: a failed run goes on over its records; what had failed runs again, what was handled stays."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from core.harness import crash, drive, eventually
from durable_agents import RunWaiting, runs
from durable_agents._core import RUN, Draft, astep, engine, journal, step
from durable_agents._core.record import CLOSE
from durable_agents._core.store import runs as rows
from durable_agents.errors import RunCancelled, RunNotFound, RunOver
from plain import Plain

Agent = Callable[..., Plain]


class Broken:
    """A dependency that is down until it is mended; counts its calls."""

    def __init__(self) -> None:
        self.down, self.calls = True, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.down:
            raise ConnectionError("down")
        return "fine"


@pytest.fixture
def broken() -> Broken:
    return Broken()


def fails(runner: Plain, error: type[Exception], run_id: str = "r") -> Any:
    with pytest.raises(error):
        runner.run(run_id=run_id)
    return runs.get(run_id)


def test_the_failed_step_runs_again_and_no_other(agent: Agent, launched: str, broken: Broken) -> None:
    first: list[int] = []
    runner = agent(
        lambda _: [step("tool", "first", lambda: first.append(1)), step("tool", "dependency", broken)]
    )
    run = fails(runner, ConnectionError)
    broken.down = False
    run.resume()
    assert run.result(timeout=10) == [None, "fine"]
    assert (len(first), broken.calls) == (1, 2)
    assert (run.status, run.error) == ("succeeded", None)
    assert [(s.path, s.error) for s in run.steps()] == [
        ("tool:first", None), ("tool:dependency", "down"), ("tool:dependency", None),
    ]  # fmt: skip


@pytest.mark.parametrize("is_async", [False, True])
def test_whoever_waits_hears_of_a_run_that_is_resumed_while_they_look(
    agent: Agent, launched: str, broken: Broken, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = agent(lambda _: step("tool", "dependency", broken))
    run = fails(runner, ConnectionError)
    read = run._row

    def row() -> Any:
        found = read()
        if broken.down:  # between the look at the row and that at the records
            broken.down = False
            runs.get("r").resume()
        return found

    monkeypatch.setattr(run, "_row", row)
    assert (asyncio.run(run.aresult(timeout=10)) if is_async else run.result(timeout=10)) == "fine"


def test_the_error_of_a_run_that_is_resumed_while_one_looks_is_none(
    agent: Agent, launched: str, broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = agent(lambda _: step("tool", "dependency", broken))
    run, slow = fails(runner, ConnectionError), runs.get("r")
    monkeypatch.setattr(run, "_records", lambda: slow._records()[:-1])  # as if its end had been taken back
    row = run._row()
    monkeypatch.setattr(run, "_row", iter([row, replace(row, status="ENQUEUED")]).__next__)
    assert run.error is None


def test_an_attach_to_a_failed_run_retries_nothing(agent: Agent, launched: str, broken: Broken) -> None:
    runner = agent(lambda _: step("tool", "dependency", broken))
    fails(runner, ConnectionError)
    broken.down = False
    fails(runner, ConnectionError)
    assert broken.calls == 1


def test_it_may_fail_and_be_resumed_again(agent: Agent, launched: str, broken: Broken) -> None:
    runner = agent(lambda _: step("tool", "dependency", broken))
    run = fails(runner, ConnectionError)
    for calls in (2, 3):
        run.resume()
        eventually(lambda calls=calls: broken.calls == calls and run.status == "failed")
    broken.down = False
    run.resume()
    assert run.result(timeout=10) == "fine"


def test_errors_that_were_handled_stay(agent: Agent, launched: str, broken: Broken) -> None:
    """A fallback was taken, then something else failed: the course of the run up to there stays."""
    primary: list[int] = []

    def ask() -> None:
        primary.append(1)
        raise TimeoutError("overloaded")

    def body(_: None) -> list[str]:
        try:
            answer = str(step("model", "primary", ask))
        except TimeoutError:
            answer = "fallback"
        return [answer, step("tool", "dependency", broken)]

    run = fails(agent(body), ConnectionError)
    broken.down = False
    run.resume()
    assert run.result(timeout=10) == ["fallback", "fine"]
    assert len(primary) == 1


def test_of_a_retried_step_the_last_attempt_runs_again(agent: Agent, launched: str, broken: Broken) -> None:
    def body(_: None) -> str:
        for attempt in (1, 2):
            try:
                return step("tool", "dependency", broken, attempt=attempt)
            except ConnectionError:
                if attempt == 2:
                    raise
        raise AssertionError

    run = fails(agent(body), ConnectionError)
    broken.down = False
    run.resume()
    assert run.result(timeout=10) == "fine"
    assert broken.calls == 3


@pytest.mark.parametrize(
    "wrap", ["from", "during", "from none", "group", "container", "untold", "untold inside"]
)
def test_an_error_that_was_wrapped_on_its_way_out(
    agent: Agent, launched: str, broken: Broken, wrap: str
) -> None:
    def told_as_text() -> str:
        text = ""
        try:
            return step("tool", "dependency", broken)
        except ConnectionError as error:
            text = str(error)
        raise RuntimeError(f"the agent failed: {text}")

    def body(_: None) -> str:
        if wrap == "container":
            return step("node", "outer", lambda: step("tool", "dependency", broken), leaf=False)
        if wrap == "untold":
            return told_as_text()
        if wrap == "untold inside":
            return step("node", "outer", told_as_text, leaf=False)
        try:
            return step("tool", "dependency", broken)
        except ConnectionError as error:
            if wrap == "from":
                raise RuntimeError("the agent failed") from error
            if wrap == "from none":
                raise RuntimeError("the agent failed") from None
            if wrap == "group":
                raise ExceptionGroup("both", [ValueError("other"), error]) from None
            raise RuntimeError("the agent failed")  # noqa: B904

    run = fails(agent(body), Exception)
    broken.down = False
    run.resume()
    assert run.result(timeout=10) == "fine"


def test_a_crash_between_the_error_and_the_end_of_the_run(
    agent: Agent, launched: str, broken: Broken
) -> None:
    """The error that ends the run is then one that was read from its record."""
    runner = agent(lambda _: step("tool", "dependency", broken))
    run = fails(runner, ConnectionError)
    crash("r")
    fails(runner, ConnectionError)
    assert broken.calls == 1
    broken.down = False
    run.resume()
    assert run.result(timeout=10) == "fine"


def test_an_error_of_the_agents_own_code(agent: Agent, launched: str) -> None:
    """Nothing is taken back but the end: the code between the steps runs again anyway."""
    done: list[int] = []
    bug = [True]

    def body(_: None) -> str:
        step("tool", "work", lambda: done.append(1))
        if bug:
            raise KeyError("a bug")
        return "mended"

    run = fails(agent(body), KeyError)
    bug.clear()
    run.resume()
    assert (run.result(timeout=10), len(done)) == ("mended", 1)


def test_in_an_event_loop(agent: Agent, launched: str, broken: Broken) -> None:
    async def dependency() -> str:
        return broken()

    async def body(_: None) -> str:
        return await astep("tool", "dependency", dependency)

    runner = agent(body)
    with pytest.raises(ConnectionError):
        asyncio.run(runner.arun(run_id="r"))
    broken.down = False
    runs.get("r").resume()
    assert asyncio.run(runs.get("r").aresult(timeout=10)) == "fine"


def test_what_is_not_over_and_what_succeeded(agent: Agent, launched: str) -> None:
    runner = agent(lambda asks: RUN.get().wait({"q": 1}) if asks else 1)  # type: ignore[union-attr]
    runner.run(False, run_id="done")
    with pytest.raises(RunOver, match="succeeded"):
        runs.get("done").resume()
    with pytest.raises(RunWaiting):
        runner.run(True, run_id="asks")
    with pytest.raises(RunWaiting, match="'asks'"):
        runs.get("asks").resume()
    with pytest.raises(RunNotFound):
        runs.Run("nobody").resume()


def test_a_queued_run_goes_on_as_it_is(agent: Agent, idle: str) -> None:
    runner = agent(lambda _: 1)
    engine.current().shun("r")
    run = runner.start(run_id="r")
    run.resume()
    assert run.status == "queued"


@pytest.mark.parametrize("when", ["queued", "waiting", "running"])
def test_a_cancelled_run_goes_on_where_it_was(agent: Agent, idle: str, when: str) -> None:
    done: list[int] = []

    def body(asks: bool) -> Any:
        step("tool", "work", lambda: done.append(1))
        if when == "running" and len(done) == 1:
            done.append(1)
            runs.get("r").cancel()
            eventually(lambda: rows.owned_by(store, worker)[0][2])
            run = RUN.get()
            assert run is not None
            engine.current()._watch_own()
            step("tool", "never", lambda: None)
        return [RUN.get().wait({"q": 1})["q"], len(done)]  # type: ignore[union-attr]

    store, worker = engine.current().store, engine.current().worker.id
    engine.current().shun("r")  # it is driven where the test says
    runner = agent(body)
    if when == "queued":
        runner.start(True, run_id="r")
        runs.get("r").cancel()
    elif when == "waiting":
        with pytest.raises(RunWaiting):
            runner.run(True, run_id="r")
        runs.get("r").cancel()
    else:
        with pytest.raises(RunCancelled):
            runner.run(True, run_id="r")
    run = runs.get("r")
    assert run.status == "cancelled"
    with pytest.raises(RunCancelled):
        run.result()
    assert run._closing().status == "cancelled"
    run.resume()
    with pytest.raises(RunWaiting):
        drive(runner, True, run_id="r")
    run.answer("yes")
    assert drive(runner, True, run_id="r")[0] == "yes"
    assert run.status == "succeeded"


def test_a_superseded_run_stays_as_it_is(agent: Agent, launched: str) -> None:
    runner = agent(lambda asks: RUN.get().wait({"q": 1}) if asks else 1)  # type: ignore[union-attr]
    with pytest.raises(RunWaiting):
        runner.run(True, run_id="old", thread="t")
    runner.run(False, run_id="new", thread="t")
    with pytest.raises(RunCancelled, match="'new' came after it"):
        runs.get("old").result()
    with pytest.raises(RunOver, match="superseded by 'new'"):
        runs.get("old").resume()


def test_on_its_thread_it_waits_for_its_turn(agent: Agent, launched: str, broken: Broken) -> None:
    runner = agent(lambda n: broken() if n == 1 else n)
    with pytest.raises(ConnectionError):
        runner.run(1, run_id="r", thread="t")
    broken.down = False
    held = runner.start(2, run_id="held", thread="t")
    runs.get("r").resume()
    assert {held.result(timeout=10), runs.get("r").result(timeout=10)} == {2, "fine"}


def test_the_chain_holds_over_failure_and_retry(agent: Agent, launched: str, broken: Broken) -> None:
    run = fails(agent(lambda _: step("tool", "dependency", broken)), ConnectionError)
    broken.down = False
    run.resume()
    run.result(timeout=10)
    store = engine.current().store
    kinds = [r.kind for r in journal.load("r", rows.records(store, "r"))]
    assert kinds == ["open", "tool", "close", "retry", "tool", "close"]


def test_a_record_written_by_the_owner_after_the_end_is_refused(agent: Agent, idle: str) -> None:
    """A straggler whose run is over, and was resumed since, cannot add to it."""
    kept: list[Any] = []
    runner = agent(lambda _: kept.append(RUN.get()))
    runner.run(run_id="r")
    with pytest.raises(BaseException, match=r"owned by another|over"):
        kept[0].journal.commit(Draft("tool", "late", "1"))
    assert runs.get("r")._records()[-1].kind == CLOSE


def test_a_run_whose_thread_has_moved_on_stays_as_it_is(agent: Agent, launched: str) -> None:
    runner = agent(lambda fails: step("tool", "work", lambda: 1 // (0 if fails else 1)))
    for old, new in (("r1", "r2"), ("r3", "r4")):
        with pytest.raises(ZeroDivisionError):
            runner.run(True, run_id=old, thread="t")
        runner.run(False, run_id="elsewhere" + old, thread="u")
        runner.run(False, run_id=new, thread="t")
        with pytest.raises(RunOver, match=f"'{new}' came after it"):
            runs.get(old).resume()
        assert runs.get(old).status == "failed"
