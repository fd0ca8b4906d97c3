"""The crash matrix finds what is wrong with a graph's state: each scenario of `seeded_scenarios.py` has a bug."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SEEDED = Path(__file__).with_name("seeded_scenarios.py")


def failures(scenario: str, how: str) -> str:
    """What the crash matrix says of it."""
    only = (
        "--module",
        str(SEEDED),
        "--scenario",
        scenario,
        "--db",
        "sqlite",
        "--how",
        how,
        "--mode",
        "strict",
    )
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "crashmatrix", *only],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize("how", ["restart", "takeover", "freeze"])
def test_an_answer_that_answers_the_next_question_too_is_found(how: str) -> None:
    assert "missing [('wait:2', 'wait', ''), ('wait:2/answer', 'answer', '')]" in failures(
        "unpinned_answers", how
    )


def test_writes_of_a_thawed_process_are_found() -> None:
    assert "the thawed process moved a row: langgraph_write: new" in failures("unfenced_writes", "freeze")


def test_a_restart_does_not_find_them() -> None:
    assert failures("unfenced_writes", "restart") == ""
