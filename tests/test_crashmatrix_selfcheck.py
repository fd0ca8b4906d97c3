"""The crash matrix finds what is wrong: each scenario of `crashmatrix/seeded.py` has a bug, and is reported for it."""

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
    "never_the_same": "the process was to be killed and ended with 0",
}


@pytest.fixture(scope="module")
def everything() -> tuple[int, str]:
    """Every seeded scenario but the one that takes its time."""
    names = ["sound", *COMPLAINTS]
    return seeded(*(word for name in names for word in ("--scenario", name)))


@pytest.mark.parametrize("scenario", COMPLAINTS)
def test_a_bug_is_found(scenario: str, everything: tuple[int, str]) -> None:
    code, output = everything
    assert code == 1
    failures = [failure for failure in output.split("\nFAILED ")[1:] if failure.startswith(f"{scenario} on ")]
    assert any(COMPLAINTS[scenario] in failure for failure in failures), output


def test_a_sound_scenario_passes_beside_them(everything: tuple[int, str]) -> None:
    assert "FAILED sound" not in everything[1]
    assert "sound " in everything[1]


@pytest.mark.parametrize("db", ["sqlite", "postgresql"])
def test_a_sound_scenario_passes(db: str) -> None:
    code, output = seeded("--scenario", "sound", db=db)
    assert code == 0, output
    assert "FAILED" not in output


def test_a_run_that_hangs_is_a_failure_with_its_stacks() -> None:
    code, output = seeded("--scenario", "hangs", "--timeout", "2", "--point", "1", "--mode", "hard")
    assert code == 1, output
    assert "the process that was to recover the run hung and was ended" in output
    assert "seeded.py" in output
    assert "in drive" in output


def test_a_failure_says_how_to_repeat_only_it() -> None:
    _, output = seeded("--scenario", "forgetful", "--mode", "hard", "--jobs", "2")
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
