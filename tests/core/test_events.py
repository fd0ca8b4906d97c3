"""Events: a reader gets each event once and in order, whatever happens to the run, its workers and the reader."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

import durable_agents
from core.harness import Programs, crash, eventually
from durable_agents import RunWaiting, runs
from durable_agents._core import RUN, Event, emit, engine, scope, step
from durable_agents.errors import ConfigurationError, NotSupported, RunNotFound
from plain import Plain

Agent = Callable[..., Plain]


def data(run: str, after: int = 0) -> list[Any]:
    return [event.data for event in runs.get(run).stream(after=after)]


def test_events_are_numbered_in_order(agent: Agent, launched: str) -> None:
    def body(_: None) -> None:
        emit("begins")
        step("tool", "a", lambda: emit({"token": 1}))
        emit("ends")

    agent(body).run(run_id="r")
    assert list(runs.get("r").stream()) == [Event(1, "begins"), Event(2, {"token": 1}), Event(3, "ends")]
    assert list(runs.get("r").stream(after=2)) == [Event(3, "ends")]
    assert list(runs.get("r").stream(after=3)) == []


def test_a_replay_is_silent(agent: Agent, launched: str) -> None:
    def body(_: None) -> int:
        emit("begins")
        with scope("agent"):
            emit("inside")
            step("tool", "a", lambda: emit("token"))
            emit("inside")
        step("node", "n", lambda: (emit("node"), step("tool", "b", lambda: emit("deep"))), leaf=False)
        emit("ends")
        return 1

    runner = agent(body)
    runner.run(run_id="r")
    expected = ["begins", "inside", "token", "inside", "node", "deep", "ends"]
    assert data("r") == expected
    for seq, committed in {4: 6, 3: 6, 2: 3, 1: 0}.items():
        crash("r", after=seq)
        engine.current().store.execute("DELETE FROM durable_agents_event WHERE cursor > ?", (committed,))
        runner.run(run_id="r")
        assert data("r") == expected
        assert [event.cursor for event in runs.get("r").stream()] == list(range(1, 8))


def test_what_a_step_has_emitted_stands_with_its_record_and_not_before(agent: Agent, launched: str) -> None:
    """A model that is cut off in the middle of its answer says something else the second time."""
    answers = [["Dear", "Sir"], ["Hello", "there", "friend"]]

    def model() -> str:
        words = answers.pop(0)
        for word in words:
            emit(word)
        if answers:
            raise SystemExit
        return " ".join(words)

    runner = agent(lambda _: step("model", "m", model))
    with pytest.raises(SystemExit):
        runner.run(run_id="r")
    runner.run(run_id="r")
    assert data("r") == ["Hello", "there", "friend"]


def test_what_a_failed_step_has_emitted_stays(agent: Agent, launched: str) -> None:
    def tool() -> None:
        emit("trying")
        raise ValueError

    runner = agent(lambda _: step("tool", "t", tool))
    with pytest.raises(ValueError):  # noqa: PT011
        runner.run(run_id="r")
    assert data("r") == ["trying"]


def test_events_of_many_threads_and_tasks(agent: Agent, launched: str) -> None:
    def body(_: None) -> None:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(copy_context().run, emit, n) for n in range(20)]:
                future.result()

    runner = agent(body)
    runner.run(run_id="r")
    assert sorted(data("r")) == list(range(20))
    crash("r")
    runner.run(run_id="r")
    assert sorted(data("r")) == list(range(20))


def test_outside_of_a_run_an_event_goes_nowhere() -> None:
    emit("nobody hears it")


def test_what_is_no_data_is_kept_as_text(agent: Agent, launched: str, caplog: Any) -> None:
    agent(lambda _: emit({"client": object})).run(run_id="r")
    assert data("r") == ["{'client': <class 'object'>}"]
    assert "event is kept as text" in caplog.text


def test_a_reader_waits_for_what_comes_and_ends_with_the_run(agent: Agent, launched: str) -> None:
    gates = [False, False]

    def body(_: None) -> None:
        emit(1)
        eventually(lambda: gates[0])
        emit(2)
        eventually(lambda: gates[1])

    run = agent(body).start(run_id="r")
    reader = run.stream()
    assert next(reader) == Event(1, 1)
    gates[0] = True
    assert next(reader) == Event(2, 2)
    gates[1] = True
    assert list(reader) == []


def test_a_reader_of_a_run_that_waits_ends_and_goes_on_afterwards(agent: Agent, launched: str) -> None:
    def body(_: None) -> None:
        emit("draft")
        RUN.get().wait({"approve": 1})  # type: ignore[union-attr]
        emit("sent")

    run = agent(body).start(run_id="r")
    assert [e.data for e in run.stream()] == ["draft"]
    run.answer(True)
    assert [e.data for e in run.stream(after=1)] == ["sent"]


def test_a_reader_that_leaves_changes_nothing(agent: Agent, launched: str) -> None:
    gate: list[int] = []

    def body(_: None) -> str:
        emit(1)
        eventually(lambda: gate)
        return "done"

    run = agent(body).start(run_id="r")
    for _event in run.stream():
        break
    gate.append(1)
    assert run.result(timeout=10) == "done"


def test_in_an_event_loop(agent: Agent, launched: str) -> None:
    async def body(_: None) -> None:
        emit(1)
        await asyncio.sleep(0.1)
        emit(2)

    async def main() -> list[Any]:
        run = agent(body).start(run_id="r")
        return [event.data async for event in run.astream()]

    assert asyncio.run(main()) == [1, 2]


def test_a_run_without_events_or_without_a_reader(agent: Agent, launched: str) -> None:
    agent(lambda _: 1).run(run_id="r")
    assert data("r") == []
    with pytest.raises(RunNotFound):
        runs.Run("nobody").stream().__next__()


def test_a_framework_that_keeps_no_events_says_so(agent: Agent, launched: str) -> None:
    class Silent(Plain):
        keeps_events = False

    Silent(lambda _: 1, "silent").run(run_id="r")
    with pytest.raises(NotSupported, match="steps"):
        next(runs.get("r").stream())


def test_a_zombies_events_are_not_read(agent: Agent, launched: str) -> None:
    kept: list[Any] = []

    def body(_: None) -> None:
        kept.append(RUN.get())
        RUN.get().wait({"q": 1})  # type: ignore[union-attr]

    runner = agent(body)
    with pytest.raises(RunWaiting):
        runner.run(run_id="r")
    with kept[0].active():
        emit("late")
        with pytest.raises(BaseException):  # noqa: B017, PT011
            kept[0].journal.flush()
    assert data("r") == []


def test_a_client_reads_each_event_once_through_three_kills(programs: Programs) -> None:
    """The client is a process of its own that goes on behind its last cursor whenever it was killed itself."""
    seen: list[tuple[int, Any]] = []
    deaths = ["after:talk-7", "before:talk-20", "after:talk-31", ""]
    durable_agents.launch(programs.database_url, poll=3600)
    try:
        for death in deaths:
            talker = programs.start("agents", "run", "talking", "r", die=death)
            client = programs.start("client", "r", str(seen[-1][0] if seen else 0))
            if death:
                assert talker.ends() == -9, talker.output
                client.kill()
            else:
                assert talker.ends() == 0, talker.output
                assert client.ends() == 0, client.output
            lines = [line for line in client.output.splitlines() if line.startswith("[")]
            seen += [tuple(json.loads(line)) for line in lines]
    finally:
        durable_agents.shutdown()
    assert [cursor for cursor, _ in seen] == list(range(1, len(seen) + 1))
    assert [said for _, said in seen] == [
        said for n in range(40) for said in (f"turn {n}", f"word {n}", f"words {n}")
    ]
    assert set(programs.ledger.effects()) == {f"talk-{n}" for n in range(40)}


def test_one_reader_reads_through_three_kills(programs: Programs) -> None:
    durable_agents.launch(programs.database_url, poll=3600)
    try:
        for death in ("after:talk-7", "before:talk-20"):
            assert programs.start("agents", "run", "talking", "r", die=death).ends() == -9
        reader = programs.start("client", "r", "0")
        assert programs.start("agents", "run", "talking", "r", die="after:talk-31").ends() == -9
        worker = programs.start("agents", "work")
        assert reader.ends() == 0, worker.output
    finally:
        durable_agents.shutdown()
    read = [json.loads(line) for line in reader.output.splitlines() if line.startswith("[")]
    assert [cursor for cursor, _ in read] == list(range(1, 121))
    assert engine.launched() is None


def test_what_a_step_emits_that_always_runs(agent: Agent, launched: str) -> None:
    def body(_: None) -> None:
        emit("begins")
        step("tool", "handoff", lambda: emit("hands off"), effect="rerun")
        step("tool", "a", lambda: None)
        emit("ends")

    runner = agent(body)
    runner.run(run_id="r")
    assert data("r") == ["begins", "hands off", "ends"]
    crash("r")
    runner.run(run_id="r")
    assert data("r") == ["begins", "hands off", "ends"]


@pytest.mark.parametrize("after", [None, "3", 1.5])
def test_an_odd_cursor(agent: Agent, launched: str, after: Any) -> None:
    agent(lambda _: 1).run(run_id="r")
    with pytest.raises(ConfigurationError, match="cursor"):
        list(runs.get("r").stream(after=after))
