"""Arguments that cannot be recorded are the caller's; after a crash they come from `restore`, or the run says so."""

from collections.abc import Callable
from typing import Any

import pytest

from core.harness import crash
from durable_agents import Run, runs
from durable_agents._core import step
from durable_agents.errors import CallerNeeded, NotRecoverable
from plain import Plain, live

Agent = Callable[..., Plain]


class Client:
    def __init__(self, name: str) -> None:
        self.name = name


def body(_: Any) -> str:
    return step("tool", "call", lambda: live("client").name)


def test_the_caller_is_driven_with_its_own(agent: Agent, launched: str) -> None:
    assert agent(body).run(run_id="r", live={"client": Client("mine")}) == "mine"


def test_after_a_crash_they_are_gone(agent: Agent, launched: str) -> None:
    runner = agent(body)
    runner.run(run_id="r", live={"client": Client("mine")})
    crash("r", after=1)
    with pytest.raises(NotRecoverable, match=r"'r'.*client.*restore=fn\(run\)"):
        runs.get("r").result(timeout=10)
    assert runs.get("r").status == "failed"


def test_the_caller_itself_may_go_on_with_its_own(agent: Agent, idle: str) -> None:
    runner = agent(body)
    runner.run(run_id="r", live={"client": Client("mine")})
    crash("r", after=1)
    assert runner.run(run_id="r", live={"client": Client("again")}) == "again"


def test_the_caller_brings_them_to_a_run_that_failed_without_them(agent: Agent, launched: str) -> None:
    """A worker is there first when a process starts again, before its program has come to the call."""
    runner = agent(body)
    runner.run(run_id="r", live={"client": Client("mine")})
    crash("r", after=1)
    with pytest.raises(CallerNeeded, match=r"'r'.*Call again with the same run_id and client"):
        runs.get("r").result(timeout=10)
    with pytest.raises(CallerNeeded):
        runner.run(run_id="r")
    assert runner.run(run_id="r", live={"client": Client("again")}) == "again"
    assert runner.run(run_id="r", live={"client": Client("and again")}) == "again"
    assert runs.get("r").steps()[-1].error is None


def test_what_failed_for_another_reason_is_not_brought_back(agent: Agent, launched: str) -> None:
    def fails(_: Any) -> str:
        raise ValueError(live("client").name)

    runner = agent(fails)
    for name in ("mine", "again"):
        with pytest.raises(ValueError, match="mine"):
            runner.run(run_id="r", live={"client": Client(name)})


def test_a_thread_that_has_gone_on_is_not_taken_back(agent: Agent, launched: str) -> None:
    runner = agent(body)
    runner.run(run_id="r", thread="t", live={"client": Client("mine")})
    crash("r", after=1)
    with pytest.raises(CallerNeeded):
        runs.get("r").result(timeout=10)
    assert runner.run(run_id="next", thread="t", live={"client": Client("next")}) == "next"
    with pytest.raises(CallerNeeded):
        runner.run(run_id="r", thread="t", live={"client": Client("again")})


def test_restore_gives_them_back(agent: Agent, launched: str) -> None:
    asked: list[Run] = []

    def restore(run: Run) -> dict[str, Any]:
        asked.append(run)
        return {"client": Client(f"restored for {run.id}")}

    runner = agent(body, restore=restore)
    runner.run(run_id="r", live={"client": Client("mine")})
    assert not asked
    crash("r", after=1)
    assert runs.get("r").result(timeout=10) == "restored for r"
    assert [run.id for run in asked] == ["r"]


def test_restore_that_leaves_one_out(agent: Agent, launched: str) -> None:
    runner = agent(body, restore=lambda _: {})
    runner.run(run_id="r", live={"client": Client("mine")})
    crash("r", after=1)
    with pytest.raises(NotRecoverable, match="nothing for client"):
        runs.get("r").result(timeout=10)


def test_restore_that_fails_fails_the_run_which_can_be_resumed(agent: Agent, launched: str) -> None:
    down = [True]

    def restore(_: Run) -> dict[str, Any]:
        if down:
            raise ConnectionError("no vault")
        return {"client": Client("restored")}

    runner = agent(body, restore=restore)
    runner.run(run_id="r", live={"client": Client("mine")})
    crash("r", after=1)
    with pytest.raises(ConnectionError, match="no vault"):
        runs.get("r").result(timeout=10)
    down.clear()
    runs.get("r").resume()
    assert runs.get("r").result(timeout=10) == "restored"


def test_start_refuses_them_at_once_without_restore(agent: Agent, launched: str) -> None:
    with pytest.raises(NotRecoverable, match="client"):
        agent(body).start(run_id="r", live={"client": Client("mine")})
    runner = agent(body, restore=lambda _: {"client": Client("restored")})
    assert runner.start(run_id="r", live={"client": Client("mine")}).result(timeout=10) == "restored"
