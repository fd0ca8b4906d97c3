"""SIGKILL just before and just after each COMMIT that moves a run: nothing is lost, and nothing happens twice."""

import signal

import pytest

from core.harness import Programs, eventually, status, until_over
from durable_agents import errors, runs

pytestmark = pytest.mark.usefixtures("idle")

QUICK = {"heartbeat": "0.05", "grace": "0.15", "poll": "0.05"}


AFTERWARDS = {
    ("start", "before"): "",
    ("start", "after"): "running",
    ("claim", "before"): "queued",
    ("claim", "after"): "running",
    ("park", "before"): "running",
    ("park", "after"): "waiting",
    ("answer", "begin"): "waiting",
    ("answer", "before"): "waiting",
    ("answer", "after"): "running",
    ("finish", "before"): "running",
    ("finish", "after"): "succeeded",
}


@pytest.mark.parametrize(("operation", "when"), AFTERWARDS, ids=lambda word: word)
def test_a_run_survives_a_kill_at_the_commit_that_moves_it(
    programs: Programs, operation: str, when: str
) -> None:
    """Of the run: start, a step, a pause, the answer, a claim, a step and the end. Each of its effects happens once."""
    mortal = programs.worker(**QUICK, dies=f"{operation}:{when}")
    mortal.tell("call" if operation != "claim" else "start", "asking", "r", "t", None)
    if operation not in ("start", "claim", "park"):
        eventually(lambda: status("r") == "waiting")
        mortal.tell("answer later", "asking", "r", "t", "yes")
    assert mortal.ends() == -signal.SIGKILL
    assert status("r") == AFTERWARDS[operation, when]
    answered = status("r") != "waiting" and operation in ("answer", "finish")
    other = programs.worker(**QUICK)
    if not status("r"):
        other.tell("call", "asking", "r", "t", None)
    if not answered:
        eventually(lambda: status("r") == "waiting")
        runs.get("r").answer("yes")
    runs.get("r").answer("yes")  # a client that repeats itself is told no error
    with pytest.raises(errors.AlreadyAnswered):
        runs.get("r").answer("no")
    until_over(["r"])
    assert programs.ledger.effects() == ["draft", "send"]
    assert [step.path for step in runs.get("r").steps()] == ["tool:draft", "tool:send"]
    assert runs.get("r")._closing().value() == ["yes", "send"]
