"""Two processes on one database: a dead one's runs go on in the other at once, a living one's are left alone."""

import os
import signal
import time

import pytest

import durable_agents
from core.harness import Program, Programs, eventually
from durable_agents import runs

NOTICED = 2.0
"""Seconds from a SIGKILL to the first new step elsewhere, with the default liveness."""


def until_held(programs: Programs, program: Program, times: int = 1, seconds: float = 20.0) -> None:
    eventually(lambda: programs.ledger.effects().count("held") == times, seconds, program.output)


def worker(programs: Programs, **environment: str) -> Program:
    program = programs.start("agents", "work", **environment)
    program.until("works")
    return program


def ends(programs: Programs, run_id: str, seconds: float = 10.0) -> None:
    """Wait, as a process that drives nothing, until the run has succeeded."""
    durable_agents.launch(programs.database_url, poll=3600)
    try:
        eventually(lambda: runs.get(run_id).status == "succeeded", seconds, f"{run_id} succeeds")
    finally:
        durable_agents.shutdown()


def test_the_other_process_goes_on_within_two_seconds(programs: Programs) -> None:
    other = worker(programs)
    program = programs.start("agents", "run", "gated", "r")
    until_held(programs, program)
    killed = time.monotonic()
    program.kill()
    until_held(programs, other, 2)
    took = time.monotonic() - killed
    assert programs.ledger.pids("held") == [program.pid, other.pid]
    (programs.home / "open").touch()
    ends(programs, "r")
    assert programs.ledger.effects() == ["first", "held", "held", "last"]
    assert len(set(programs.ledger.keys("held"))) == 1
    assert took < NOTICED


def test_a_queued_run_goes_on_as_well(programs: Programs) -> None:
    first = worker(programs)
    assert programs.start("agents", "start", "gated", "r").ends() == 0
    until_held(programs, first)
    other = worker(programs)
    first.kill()
    until_held(programs, other, 2, NOTICED)
    (programs.home / "open").touch()
    ends(programs, "r")
    assert programs.ledger.effects() == ["first", "held", "held", "last"]


def test_the_same_program_started_again_goes_on(programs: Programs) -> None:
    """It has no other worker, is asked for nothing, and only launches."""
    program = programs.start("agents", "run", "gated", "r")
    until_held(programs, program)
    program.kill()
    (programs.home / "open").touch()
    worker(programs)
    eventually(lambda: "last" in programs.ledger.effects(), NOTICED)
    ends(programs, "r")
    assert programs.ledger.effects() == ["first", "held", "held", "last"]


def test_a_living_run_is_left_alone(programs: Programs) -> None:
    program = programs.start("agents", "run", "gated", "r")
    until_held(programs, program)
    other = worker(programs)
    time.sleep(1.5)  # more than twice the grace
    assert programs.ledger.effects() == ["first", "held"]
    (programs.home / "open").touch()
    assert program.ends(10) == 0
    assert set(programs.ledger.pids("held") + programs.ledger.pids("last")) == {program.pid}
    assert "dead" not in other.output


def test_a_process_whose_interpreter_is_held_is_left_alone(programs: Programs) -> None:
    """C code may hold the interpreter for seconds: a takeover from a living process would repeat its effect."""
    other = worker(programs)
    program = programs.start("agents", "run", "busy", "r")
    assert program.ends(20) == 0
    assert programs.ledger.effects() == ["busy", "still here"]
    assert set(programs.ledger.pids("busy") + programs.ledger.pids("still here")) == {program.pid}
    assert "dead" not in other.output


def test_a_frozen_process_loses_its_run_and_gives_the_others_result(programs: Programs) -> None:
    frozen = programs.start("agents", "run", "gated", "r")
    until_held(programs, frozen)
    os.kill(frozen.pid, signal.SIGSTOP)
    other = worker(programs, lease="1")
    until_held(programs, other, 2, 6)
    (programs.home / "open").touch()
    eventually(lambda: "last" in programs.ledger.effects(), 5, other.output)
    os.kill(frozen.pid, signal.SIGCONT)
    assert frozen.ends(10) == 0
    assert frozen.says('["through", "last"]'), frozen.output
    assert programs.ledger.effects() == ["first", "held", "held", "last"]
    durable_agents.launch(programs.database_url, poll=3600)
    try:
        first, held, last = runs.get("r").steps()
        assert first.worker != held.worker == last.worker
        assert [step.epoch for step in (first, held, last)] == [1, 2, 2]
    finally:
        durable_agents.shutdown()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_two_scripts_whose_agents_have_no_names_leave_each_others_runs_alone(programs: Programs) -> None:
    started = {name: programs.start(name) for name in ("shop", "support")}
    for name, program in started.items():
        program.until(f"plain.{name}.agent")
    eventually(lambda: len(programs.ledger.effects()) == 8, what=str([p.output for p in started.values()]))
    assert sorted(set(programs.ledger.effects())) == [
        "shop does the work of shop",
        "support does the work of support",
    ]
    for name, program in started.items():
        assert set(programs.ledger.pids(f"{name} does the work of {name}")) == {program.pid}
    stdin = started["shop"].process.stdin
    assert stdin is not None
    stdin.close()
    assert started["shop"].ends(10) == 0
    programs.start("agents", "work").until("works")
    assert programs.start("shop", "only start").ends(20) == 0  # its runs wait for a shop, not for anybody
    time.sleep(1.0)
    assert len(programs.ledger.effects()) == 8
