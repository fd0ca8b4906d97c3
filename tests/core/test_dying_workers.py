"""Whoever dies, freezes or is taken for dead loses its runs to the others, and moves nothing of theirs afterwards."""

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from core.harness import Program, Programs, eventually, thaw, until_over
from durable_agents import runs
from durable_agents._core import engine
from durable_agents._core.store import Store
from durable_agents._core.worker import Liveness, Worker

Figure = Callable[[str, str], None]

NOTICED = 1.0
"""Seconds from a SIGKILL to the first new step elsewhere with the default liveness, as the median of ten."""


def held(programs: Programs, times: int) -> None:
    eventually(lambda: programs.ledger.effects().count("held") == times)


def first_step_of(programs: Programs, run_id: str, program: Program) -> float:
    """When this process began its first step of the run."""
    eventually(lambda: program.pid in programs.ledger.pids(f"{run_id}/0"), what=program.output)
    return time.monotonic()


def shown(seconds: list[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s"


def test_the_runs_of_a_killed_worker_go_on_elsewhere_within_a_second(
    programs: Programs, figure: Figure
) -> None:
    other, took = programs.worker(), []
    for n in range(10):
        dying = programs.worker()
        dying.tell("call", "steps", f"r{n}", None, {"count": 1, "seconds": 0.5})
        first_step_of(programs, f"r{n}", dying)
        dying.kill()
        killed = time.monotonic()
        took.append(first_step_of(programs, f"r{n}", other) - killed)
    figure("SIGKILL to the first new step on another worker", shown(took))
    assert statistics.median(took) < NOTICED


def test_the_only_worker_goes_on_within_a_second_of_its_return(programs: Programs, figure: Figure) -> None:
    """Nobody is there who could have noticed its death."""
    took = []
    for n in range(3):
        dying = programs.worker()
        dying.tell("call", "steps", f"r{n}", None, {"count": 1, "seconds": 0.1})
        first_step_of(programs, f"r{n}", dying)
        dying.kill()
        back = programs.worker()
        up = time.monotonic()
        took.append(first_step_of(programs, f"r{n}", back) - up)
        back.kill()
    figure("return of the only worker to its first new step", shown(took))
    assert statistics.median(took) < NOTICED


def test_a_child_that_outlives_a_killed_worker_does_not_keep_it_alive(programs: Programs) -> None:
    """Neither one that Python forked nor one that runs another program and has inherited every file."""
    dying, other = programs.worker(), programs.worker()
    dying.tell("call", "parent", "r", None, 60)
    eventually(lambda: programs.ledger.effects().count("child") == 2, what=dying.output)
    dying.kill()
    killed = time.monotonic()
    eventually(lambda: other.pid in programs.ledger.pids("parent"), 10, other.output)
    took = time.monotonic() - killed
    children = programs.ledger.pids("child")
    for child in children:
        os.kill(child, 0)  # it still lives
        os.kill(child, 9)
    assert took < 3


def moved(run_id: str) -> list[Any]:
    """All that the database holds of a run: its records, its row, and the rows of the integration's own table."""
    query = engine.current().store.query
    return [
        query("SELECT * FROM operation_outputs WHERE workflow_uuid = ? ORDER BY function_id", (run_id,)),
        query("SELECT * FROM workflow_status WHERE workflow_uuid = ?", (run_id,)),
        query("SELECT * FROM notes WHERE run = ? ORDER BY note, worker", (run_id,)),
    ]


def notes() -> list[tuple[str, str]]:
    """The state that was written, and by which worker."""
    rows = engine.current().store.query("SELECT note, worker FROM notes ORDER BY note")
    return [(note, worker) for note, worker in rows]


def test_a_frozen_worker_that_wakes_up_moves_nothing_of_a_run_that_goes_on(
    programs: Programs, idle: str
) -> None:
    """It goes on at once, before its heart beats: its record would fit the chain, which nobody has moved since."""
    frozen = programs.worker(heartbeat="2", grace="2")
    frozen.tell("start", "noting", "r", "t", "without a note before")
    held(programs, 1)
    programs.freeze(frozen)
    programs.worker(lease="1")
    held(programs, 2)
    (programs.home / f"open {frozen.pid}").touch()
    wakes_up(frozen)
    (programs.home / "open").touch()
    until_over(["r"])
    assert programs.ledger.effects() == ["first", "held", "held", "last"]
    first, again, last = runs.get("r").steps()
    assert [first.epoch, again.epoch, last.epoch] == [1, 2, 2]
    assert notes() == [("after held", again.worker), ("first", first.worker), ("last", again.worker)]


def test_a_frozen_worker_that_wakes_up_moves_nothing_of_a_run_that_is_over(
    programs: Programs, idle: str
) -> None:
    frozen = programs.worker()
    frozen.tell("start", "noting", "r", "t", None)
    held(programs, 1)
    programs.freeze(frozen)
    programs.worker(lease="1")
    (programs.home / "open").touch()
    until_over(["r"])
    wakes_up(frozen)
    assert programs.ledger.effects() == ["first", "held", "held", "last"]
    first, again, last = runs.get("r").steps()
    assert [first.epoch, again.epoch, last.epoch] == [1, 2, 2]


def wakes_up(frozen: Program) -> None:
    """SIGCONT, and nothing of the run `r` moves until the process has seen that it lost it, nor after."""
    before = moved("r")
    thaw(frozen)
    eventually(lambda: "owned by another worker" in frozen.output, 10, lambda: frozen.output)
    eventually(lambda: "declared dead" in frozen.output, 10, lambda: frozen.output)
    time.sleep(0.3)
    assert moved("r") == before


def workers_of(programs: Programs, program: Program) -> list[str]:
    """The ids under which this process is enrolled now."""
    label = f"%:{program.pid}"
    rows = engine.current().store.query(
        "SELECT worker_id FROM durable_agents_worker WHERE label LIKE ?", (label,)
    )
    return [worker for (worker,) in rows]


def declare_dead(worker: str) -> None:
    """What a sweeper does when it takes a worker for dead."""
    engine.current().store.execute("DELETE FROM durable_agents_worker WHERE worker_id = ?", (worker,))


def test_a_worker_declared_dead_while_it_lives_stops_its_runs_and_comes_back(
    programs: Programs, idle: str
) -> None:
    first, other = programs.worker(), programs.worker(poll="60")
    first.tell("call", "noting", "r", "t", None)
    held(programs, 1)
    (before,) = workers_of(programs, first)
    declare_dead(before)
    held(programs, 2)
    eventually(lambda: "declared dead" in first.output)
    (programs.home / f"open {first.pid}").touch()  # the step it is in ends, and is not recorded
    eventually(lambda: workers_of(programs, first) not in ([], [before]))
    (after,) = workers_of(programs, first)
    assert after != before
    (programs.home / "open").touch()
    until_over(["r"])
    first.until('r gives "noted"')  # its caller gets the result of the run, whoever drove it
    pids = [int(pid) for _, _, pid in programs.ledger.lines()]
    assert programs.ledger.effects() == ["first", "held", "held", "last"]
    assert pids[0] == pids[1] == first.pid
    assert pids[2] == pids[3]
    other.kill()
    first.tell("start", "steps", "new", None, {"count": 2, "seconds": 0.0})
    until_over(["new"])
    assert set(programs.ledger.pids("new/0") + programs.ledger.pids("new/1")) == {first.pid}
    assert {step.worker for step in runs.get("new").steps()} == {after}


def test_three_sweepers_continue_each_of_fifty_runs_exactly_once(programs: Programs, idle: str) -> None:
    dying = programs.worker()
    started = [f"r{n}" for n in range(50)]
    for run_id in started:
        dying.tell("start", "steps", run_id, None, {"count": 2, "seconds": 60})
    eventually(lambda: len(programs.ledger.effects()) == 50)
    sweepers = [programs.worker(heartbeat="0.02", grace="0.06", poll="0.02", brisk="yes") for _ in range(3)]
    dying.kill()
    until_over(started)
    effects = Counter(programs.ledger.effects())
    assert effects == {f"{run}/{n}": 2 - n for run in started for n in (0, 1)}
    for run in started:
        (one,) = programs.ledger.pids(f"{run}/1")
        assert programs.ledger.pids(f"{run}/0") == [dying.pid, one]
        assert {step.epoch for step in runs.get(run).steps()} == {2}
    assert sum(sweeper.output.count("is dead") for sweeper in sweepers) == 1


class Clock:
    """The monotonic clock of a process that looks once in ten seconds, when it means to five times a second."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 5.0  # the sweep looks twice
        return self.now


@pytest.mark.parametrize("is_held", [False, True], ids=["gone", "alive"])
def test_a_sweeper_that_is_always_late_finds_the_dead_and_leaves_the_living(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    """Of a long time in which it did not look little counts: in that, the other one may have been held up as well."""
    other, sweeper = Worker(store, Liveness()), Worker(store, Liveness())
    if not is_held:
        other._lock.release()
    monkeypatch.setattr("durable_agents._core.worker.time", Clock())
    there = []
    for _ in range(6):
        sweeper.sweep()
        there.append(len(_row(store, other.id)) == 1)
    monkeypatch.undo()
    assert there == ([True] * 6 if is_held else [True, True, True, False, False, False])
    for worker in (other, sweeper):
        worker.leave()


def _row(store: Store, worker: str) -> list[tuple[object, ...]]:
    return store.query("SELECT 1 FROM durable_agents_worker WHERE worker_id = ?", (worker,))
