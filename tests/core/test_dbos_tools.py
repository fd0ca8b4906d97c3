"""DBOS's own command line shows and steers our runs."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dbos.cli.cli import app

from core.harness import eventually
from durable_agents import errors, runs
from durable_agents._core import RUN, engine, step
from plain import Plain

Agent = Callable[..., Plain]
pytestmark = pytest.mark.usefixtures("launched")


def dbos(url: str, *words: str) -> Any:
    """What the command prints, run in this process: a new one takes seconds to import it."""
    done = CliRunner().invoke(app, ["workflow", *words, "--sys-db-url", url])
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    return printed(done.stdout)


def printed(output: str) -> Any:
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line[:1] in ("[", "{")), None)
    return json.loads("\n".join(lines[start:])) if start is not None else output


def test_the_command_lists_our_runs(agent: Agent, launched: str) -> None:
    runner = agent(lambda x: x)
    runner.run(1, run_id="r")
    command = [str(Path(sys.executable).parent / "dbos"), "workflow", "list", "--sys-db-url", launched]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["workflow_id"], row["name"]) for row in printed(done.stdout)] == [("r", runner.name)]


def test_list_get_and_steps_show_our_runs(agent: Agent, launched: str) -> None:
    good = agent(lambda x: [step("tool", "a", lambda: {"found": x}), step("tool", "b", lambda: 2)])
    bad = agent(lambda x: 1 / x)
    good.run({"order": 55}, run_id="good")
    with pytest.raises(ZeroDivisionError):
        bad.run(0, run_id="bad")
    listed = {row["workflow_id"]: row for row in dbos(launched, "list")}
    assert {id: (row["status"], row["name"]) for id, row in listed.items()} == {
        "good": ("SUCCESS", good.name),
        "bad": ("ERROR", bad.name),
    }
    shown = dbos(launched, "get", "good")
    assert (shown["workflow_id"], shown["status"]) == ("good", "SUCCESS")
    assert "division by zero" in json.dumps(dbos(launched, "get", "bad"))
    steps = dbos(launched, "steps", "good")
    assert [(s["function_id"], s["function_name"]) for s in steps] == [
        (1, "open"),
        (2, "tool:a"),
        (3, "tool:b"),
        (4, "close"),
    ]
    assert '{"found":{"order":55}}' in json.dumps(steps[1]).replace("\\", "").replace(" ", "")


def test_cancel_stops_a_running_run_and_resume_continues_it(agent: Agent, launched: str) -> None:
    gate, calls = threading.Event(), []

    def body(_: None) -> str:
        step("tool", "a", lambda: calls.append("a"))
        step("tool", "b", lambda: (calls.append("b"), gate.wait(30))[1])
        step("tool", "c", lambda: calls.append("c"))
        return "done"

    run = agent(body).start(run_id="r", thread="t")
    eventually(lambda: "b" in calls)
    dbos(launched, "cancel", "r")
    assert run.status == "cancelled"
    with pytest.raises(errors.RunCancelled):
        run.result(1)
    gate.set()
    eventually(lambda: not engine.current()._live)
    assert calls == ["a", "b"]
    dbos(launched, "resume", "r")
    assert run.result(10) == "done"
    assert calls == ["a", "b", "b", "c"]
    assert run.status == "succeeded"


def test_a_direct_caller_is_told_that_its_run_was_cancelled(agent: Agent, launched: str) -> None:
    def body(_: None) -> None:
        step("tool", "a", lambda: dbos(launched, "cancel", "r"))
        step("tool", "b", lambda: None)

    with pytest.raises(errors.RunCancelled):
        agent(body).run(run_id="r")


def test_cancel_drops_a_waiting_run_and_resume_brings_it_back(agent: Agent, launched: str) -> None:
    runner = agent(lambda _: RUN.get().wait({"q": 1})["q"])  # type: ignore[union-attr]
    with pytest.raises(errors.RunWaiting):
        runner.run(run_id="w")
    dbos(launched, "cancel", "w")
    assert runs.get("w").status == "cancelled"
    dbos(launched, "resume", "w")
    eventually(lambda: runs.get("w").status == "waiting")
    runs.get("w").answer("yes")
    assert runs.get("w").result(10) == "yes"


def test_resume_of_our_own_cancelled_run_continues_it(agent: Agent, launched: str) -> None:
    gate, calls = threading.Event(), []

    def body(_: None) -> str:
        step("tool", "a", lambda: (calls.append("a"), gate.wait(30))[1])
        return str(step("tool", "b", lambda: calls.append("b") or "done"))

    run = agent(body).start(run_id="r")
    eventually(lambda: calls)
    run.cancel()
    gate.set()
    eventually(lambda: run.status in ("cancelled", "succeeded"))
    if run.status == "cancelled":
        dbos(launched, "resume", "r")
    assert run.result(10) == "done"
    assert calls == ["a", "b"]
