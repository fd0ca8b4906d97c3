"""Whoever lives is left alone: under load, with the interpreter held, without a connection, with a wrong clock."""

import itertools
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import psycopg
import pytest

import durable_agents
import postgres
from core.harness import Programs, eventually, until_over
from durable_agents import runs

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def watched(database_url: str) -> Iterator[None]:
    """This process reads the database and is a worker too, with the defaults: it drives nothing here."""
    durable_agents.launch(database_url)
    yield
    durable_agents.shutdown()


def nobody_died(programs: Programs, caplog: pytest.LogCaptureFixture) -> None:
    logs = "".join(program.output for program in programs.started) + caplog.text
    assert "is dead" not in logs
    assert "declared dead" not in logs
    assert "caller is gone" not in logs


def each_once(programs: Programs, *expected: str) -> None:
    assert sorted(programs.ledger.effects()) == sorted(expected)


def moments(run_ids: list[str], count: int) -> list[str]:
    return [f"{run}/{number}" for run in run_ids for number in range(count)]


@pytest.mark.usefixtures("watched")
def test_a_living_run_is_never_executed_by_another_worker_however_fast_it_sweeps(
    programs: Programs, caplog: pytest.LogCaptureFixture
) -> None:
    """A busy process bumps its counter late. The other one looks fifty times a second and waits for 60 ms only."""
    first = programs.worker()
    queued, called = [f"q{n}" for n in range(12)], [f"c{n}" for n in range(12)]
    for run_id in queued:
        first.tell("start", "steps", run_id, None, {"count": 60, "seconds": 0.05})
    eventually(lambda: {run.status for run in runs.list()} == {"running"} and len(runs.list()) == 12)
    eventually(lambda: len(set(programs.ledger.effects())) >= 12)
    programs.worker(heartbeat="0.02", grace="0.06", poll="0.02")
    for run_id in called:
        first.tell("call", "steps", run_id, None, {"count": 40, "seconds": 0.05})
        time.sleep(0.05)
    until_over(queued + called)
    assert {int(pid) for _, _, pid in programs.ledger.lines()} == {first.pid}
    each_once(programs, *moments(queued, 60), *moments(called, 40))
    assert {step.epoch for run in queued + called for step in runs.get(run).steps()} == {1}
    nobody_died(programs, caplog)


@pytest.mark.usefixtures("watched")
def test_a_tool_that_holds_the_interpreter_for_five_seconds_is_left_alone(
    programs: Programs, caplog: pytest.LogCaptureFixture
) -> None:
    holder = programs.worker()
    holder.tell("call", "holding", "h", None, 5)
    eventually(lambda: "holds" in programs.ledger.effects())
    holds = time.monotonic()
    programs.worker()
    eventually(lambda: "held" in programs.ledger.effects(), 20)
    assert time.monotonic() - holds > 4.5
    until_over(["h"])
    assert [(effect, int(pid)) for effect, _, pid in programs.ledger.lines()] == [
        ("holds", holder.pid),
        ("held", holder.pid),
    ]
    nobody_died(programs, caplog)


def connections(url: str) -> list[int]:
    """The server's processes that serve the workers, locks and all."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE application_name = 'durable_agents' AND datname = current_database()"
        )
        return [pid for (pid,) in found.fetchall()]


def cut_connections(url: str, spare: Collection[int] = ()) -> int:
    """What an administrator or a network does: end all connections at once; how many there were."""
    cut = [pid for pid in connections(url) if pid not in spare]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) pid", (cut,))
    return len(cut)


@on_postgresql
@pytest.mark.usefixtures("watched")
def test_cut_connections_lose_nothing_and_double_nothing(
    programs: Programs, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [programs.worker(), programs.worker()]
    started = [f"{verb}{n}" for verb in ("call", "start") for n in range(4)]
    for run_id, program in zip(started, itertools.cycle(workers), strict=False):
        program.tell(run_id[:-1], "steps", run_id, None, {"count": 40, "seconds": 0.05})
    eventually(lambda: len(programs.ledger.effects()) > 20)
    for _ in range(5):
        assert cut_connections(database_url) >= 4  # each worker's lock, and what it works with
        time.sleep(0.4)
    until_over(started)
    each_once(programs, *moments(started, 40))
    nobody_died(programs, caplog)


@on_postgresql
@pytest.mark.usefixtures("watched")
def test_a_worker_that_has_many_connections_and_loses_all_is_left_alone(
    programs: Programs, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others keep theirs. It must not try one dead one after the other before its heart beats again."""
    programs.worker()
    time.sleep(0.5)
    others = connections(database_url)
    busy = programs.worker()
    started = [f"r{n}" for n in range(40)]
    for run_id in started:
        busy.tell("call", "steps", run_id, None, {"count": 5, "seconds": 0.0})
    until_over(started)
    assert cut_connections(database_url, spare=others) > 10
    time.sleep(1.5)
    nobody_died(programs, caplog)


@on_postgresql
@pytest.mark.usefixtures("watched")
def test_a_database_that_is_away_for_half_a_second_is_nobodys_death(
    programs: Programs, postgres_server: postgres.Server, caplog: pytest.LogCaptureFixture
) -> None:
    """About as long as the grace: who comes back first must not bury who comes back last."""
    for _ in range(4):
        programs.worker()
    for outage in (0.25, 0.3, 0.35):  # and the time to stop and to start it
        with postgres_server.stopped():
            time.sleep(outage)
        time.sleep(1.3)
    nobody_died(programs, caplog)


@on_postgresql
@pytest.mark.usefixtures("watched")
def test_a_restarted_database_loses_nothing_and_doubles_nothing(
    programs: Programs, postgres_server: postgres.Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Shut down and started again, and crashed: runs go on where they were, in the process where they were."""
    workers = [programs.worker(), programs.worker()]
    started = [f"{verb}{n}" for verb in ("call", "start") for n in range(4)]
    for run_id, program in zip(started, itertools.cycle(workers), strict=False):
        program.tell(run_id[:-1], "steps", run_id, None, {"count": 40, "seconds": 0.05})
    for mode in ("fast", "immediate"):
        more = len(programs.ledger.effects()) + 60
        eventually(lambda more=more: len(programs.ledger.effects()) > more)  # type: ignore[misc]
        postgres_server.restart(mode)
    until_over(started)
    each_once(programs, *moments(started, 40))
    nobody_died(programs, caplog)


def set_clock(file: Path, seconds: str) -> None:
    """At once: a process that read a file half written would meet an error wherever it asks for the time."""
    written = file.with_suffix(".written")
    written.write_text(seconds)
    written.rename(file)


@pytest.mark.usefixtures("watched")
def test_clocks_that_are_an_hour_off_and_jump_matter_to_nobody(
    programs: Programs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One worker's clock is an hour fast, the other's an hour slow, and both jump to the other side meanwhile."""
    clocks = {name: tmp_path / name for name in ("fast", "slow")}
    set_clock(clocks["fast"], "3600")
    set_clock(clocks["slow"], "-3600")
    workers = [programs.worker(clock=str(clock)) for clock in clocks.values()]
    started = [f"{verb}{n}" for verb in ("call", "start") for n in range(4)]
    for run_id, program in zip(started, itertools.cycle(workers), strict=False):
        program.tell(run_id[:-1], "steps", run_id, None, {"count": 40, "seconds": 0.05})
    eventually(lambda: len(programs.ledger.effects()) > 80)
    set_clock(clocks["fast"], "-3600")
    set_clock(clocks["slow"], "3600")
    until_over(started)
    each_once(programs, *moments(started, 40))
    nobody_died(programs, caplog)


def test_a_run_is_taken_over_by_a_worker_whose_clock_is_two_hours_behind(
    programs: Programs, idle: str, tmp_path: Path
) -> None:
    """The records of both are one chain in which time does not run backwards."""
    for name, off in (("fast", "3600"), ("slow", "-3600")):
        (tmp_path / name).write_text(off)
    fast = programs.worker(clock=str(tmp_path / "fast"))
    fast.tell("call", "steps", "r", None, {"count": 20, "seconds": 0.05})
    eventually(lambda: len(programs.ledger.effects()) > 5)
    slow = programs.worker(clock=str(tmp_path / "slow"))
    fast.kill()
    until_over(["r"], 10)
    assert len(programs.ledger.effects()) <= 21
    assert set(programs.ledger.effects()) == set(moments(["r"], 20))
    steps = runs.get("r").steps()
    assert {step.epoch for step in steps} == {1, 2}
    assert [step.ended for step in steps] == sorted(step.ended for step in steps)
    assert slow.output.count("is dead") == 1
