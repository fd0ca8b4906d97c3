"""The crash matrix finds what is wrong: each scenario of `crashmatrix/seeded.py` has a bug, and is reported for it."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

TESTS = Path(__file__).parent
SEEDED = TESTS / "crashmatrix" / "seeded.py"


def crash_matrix(*arguments: str, db: str = "sqlite") -> tuple[int, str]:
    """Exit code and output of `python -m crashmatrix`."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "crashmatrix", "--db", db, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout


def seeded(*arguments: str, db: str = "sqlite") -> tuple[int, str]:
    return crash_matrix("--module", str(SEEDED), *arguments, db=db)


COMPLAINTS = {
    "restart": {
        "forgetful": "effect 'charge 1' happened 2 times",
        "outside_of_a_step": "effect 'bare' happened 2 times",
        "recorded_too_early": "effect 'kept' is missing",
        "keyed_by_arrival": "run 'r1': outcome differs",
        "unstable_key": "effect 'charge 2' had 2 idempotency keys, uncrashed 1",
        "result_of_the_process": "turn 0: returned differs",
        "usage_counted_twice": "run 'r1': other steps",
        "forgets_its_state": "the state differs",
        "repeats_a_sibling": "effect 'unprotected' happened 2 times",
        "answers_twice": "turn 1: run differs",
        "other_than_natively": "turn 0 returns something else than natively",
        "without_boundaries": "the scenario has no boundaries",
        "breaks_uncrashed": "this scenario cannot be built",
        "fails_uncrashed": "the uncrashed run fails: raises LookupError: no such order",
    },
    "takeover": {
        "takes_from_the_living": "run 'r1' was taken over while its worker lived",
    },
    "freeze": {
        "unfenced": "the thawed process wrote the record 'tool:charge'",
        "beside_its_records": "the thawed process moved a row: workflow_status: new",
        "begins_anyway": "effect 'charge 2' of a step that the thawed process began",
    },
}
ALL = [(how, scenario) for how, scenarios in COMPLAINTS.items() for scenario in scenarios]


@functools.cache
def everything(how: str) -> tuple[int, str]:
    """A sound scenario, and all bugs that this way of going on must find."""
    names = ["sound", *COMPLAINTS[how]]
    return seeded("--how", how, *(word for name in names for word in ("--scenario", name)))


@pytest.mark.parametrize(("how", "scenario"), ALL)
def test_a_bug_is_found(how: str, scenario: str) -> None:
    code, output = everything(how)
    assert code == 1
    failures = [failure for failure in output.split("\nFAILED ")[1:] if failure.startswith(f"{scenario} on ")]
    assert any(COMPLAINTS[how][scenario] in failure for failure in failures), output


@pytest.mark.parametrize("how", COMPLAINTS)
def test_a_sound_scenario_passes_beside_them(how: str) -> None:
    _, output = everything(how)
    assert "FAILED sound" not in output
    assert "sound " in output


@pytest.mark.parametrize(("how", "scenario"), [pair for pair in ALL if pair[0] != "restart"])
def test_a_restart_does_not_find_what_only_shows_between_two_workers(how: str, scenario: str) -> None:
    code, output = seeded("--scenario", scenario, "--how", "restart")
    assert code == 0, output


@pytest.mark.parametrize("db", ["sqlite", "postgresql"])
def test_a_sound_scenario_passes(db: str) -> None:
    code, output = seeded("--scenario", "sound", db=db)
    assert code == 0, output
    assert "FAILED" not in output


def test_a_run_that_hangs_is_a_failure_with_its_stacks() -> None:
    only = ("--scenario", "hangs", "--point", "1", "--how", "restart", "--mode", "hard")
    code, output = seeded(*only, "--timeout", "2")
    assert code == 1, output
    assert "the process that was to recover the run hung and was ended" in output
    assert "seeded.py" in output
    assert "in drive" in output


def test_a_thawed_process_that_hangs_is_a_failure() -> None:
    only = ("--scenario", "never_returns", "--point", "1", "--how", "freeze", "--mode", "hard")
    code, output = seeded(*only, "--timeout", "2")
    assert code == 1, output
    assert "the thawed process hung and was ended" in output


@pytest.mark.parametrize(
    ("how", "what"), [("restart", "killed"), ("takeover", "killed"), ("freeze", "frozen")]
)
def test_a_boundary_that_is_never_met_again_is_a_failure(how: str, what: str) -> None:
    code, output = seeded("--scenario", "never_the_same", "--point", "3", "--how", how, "--mode", "hard")
    assert code == 1, output
    assert f"the process was to be {what} and ended with 0" in output


def test_a_failure_says_how_to_repeat_only_it() -> None:
    _, output = seeded("--scenario", "forgetful", "--how", "takeover", "--mode", "hard", "--jobs", "2")
    again = next(line for line in output.splitlines() if "again: python -m crashmatrix" in line).split(
        "crashmatrix "
    )[1]
    code, once_more = crash_matrix(*again.split())
    assert code == 1, once_more
    assert "1 kill points in all, 1 failures" in once_more


def test_nothing_to_run_is_a_failure() -> None:
    code, output = seeded("--scenario", "no_such_scenario")
    assert code == 1, output
    assert "nothing was killed" in output
