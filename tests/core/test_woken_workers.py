"""A worker that was declared dead and lives again is heard once more; that says nothing of the runs it had."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from core.harness import eventually, steal
from durable_agents import runs
from durable_agents._core import engine, step
from durable_agents._core.admission import NotNow
from durable_agents._core.background import Engine
from durable_agents._core.errors import OwnershipLost
from durable_agents._core.execution import Execution
from durable_agents._core.opening import open_run
from durable_agents._core.store import runs as rows
from plain import Plain

Agent = Callable[..., Plain]
pytestmark = pytest.mark.usefixtures("idle")


@pytest.fixture
def running() -> Engine:
    return engine.current()


@pytest.fixture
def calls() -> list[str]:
    """What was done in steps."""
    return []


@pytest.fixture
def runner(agent: Agent, calls: list[str]) -> Plain:
    return agent(lambda _: step("tool", "charge", lambda: calls.append("charge")))


def claimed(running: Engine, runner: Plain) -> str:
    """The token of a run of this worker that nobody drives yet."""
    _, token = open_run(running.store, runner.name, runner._request(None, None), "r", running.worker.id)
    assert token is not None
    return token


def wake_up(running: Engine) -> None:
    """What the heartbeat does first when the worker was declared dead while it was frozen."""
    running.store.execute("DELETE FROM durable_agents_worker WHERE worker_id = ?", (running.worker.id,))
    assert not running.worker.beat()
    running.worker.reborn()
    assert running.worker.beat()


def test_a_run_that_was_taken_over_before_it_was_loaded_is_left_alone(
    running: Engine, runner: Plain, calls: list[str]
) -> None:
    token = claimed(running, runner)
    wake_up(running)
    steal("r")
    with pytest.raises(NotNow, match="'r' was taken over before"):
        running.take(runner, "r", token)
    assert rows.owner(running.store, "r") == "thief"
    assert calls == []


def test_a_run_that_was_claimed_under_another_id_is_not_driven(
    running: Engine, runner: Plain, calls: list[str]
) -> None:
    token = claimed(running, runner)
    wake_up(running)
    with pytest.raises(NotNow, match="'r' was taken over while"):
        running.take(runner, "r", token)
    assert rows.release_dead(running.store) == 1
    assert runner.run(run_id="r") is None
    assert calls == ["charge"]


def test_a_caller_whose_run_was_taken_over_before_it_was_loaded_gets_what_came_of_it(
    running: Engine, runner: Plain, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = running.take
    taken: list[str] = []

    def frozen(runner: Plain, run_id: str, owner: str, live: object = None) -> Execution:
        if not taken:
            taken.append(run_id)
            wake_up(running)
            rows.release_dead(running.store)
        return take(runner, run_id, owner, live)

    monkeypatch.setattr(running, "take", frozen)
    assert runner.run(run_id="r") is None
    assert taken == ["r"]
    assert calls == ["charge"]
    assert runs.get("r").status == "succeeded"


def test_to_be_heard_under_another_id_is_no_proof_that_the_run_is_ours(
    running: Engine, runner: Plain, calls: list[str]
) -> None:
    execution = running.take(runner, "r", claimed(running, runner))
    assert execution.is_surely_ours
    wake_up(running)
    steal("r")
    assert not execution.is_surely_ours
    with pytest.raises(OwnershipLost):
        execution.drive()
    assert calls == []


def test_an_answer_from_before_a_freeze_is_asked_for_again(
    running: Engine, runner: Plain, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = running.take(runner, "r", claimed(running, runner))
    running.liveness = replace(running.liveness, grace=0.2, heartbeat=0.1)
    eventually(lambda: not execution.is_surely_ours)
    holds = running.worker.holds
    asked: list[bool] = []

    def ask(worker: str, run_id: str, owner: str) -> bool:
        asked.append(holds(worker, run_id, owner))
        if len(asked) == 1:  # and now the process is frozen for longer than the grace
            time.sleep(0.3)
            steal(run_id)
        return asked[-1]

    monkeypatch.setattr(running.worker, "holds", ask)
    with pytest.raises(OwnershipLost):
        execution.drive()
    assert asked == [True, False]
    assert calls == []


def test_whoever_asks_whether_a_run_is_theirs_is_heard(running: Engine, runner: Plain) -> None:
    """Who was silent for a whole lease may begin a step in the moment in which it would be declared dead."""
    execution = running.take(runner, "r", claimed(running, runner))
    beat = running.store.query(
        "SELECT beat FROM durable_agents_worker WHERE worker_id = ?", (running.worker.id,)
    )
    running.liveness = replace(running.liveness, grace=0.2, heartbeat=0.1)
    eventually(lambda: not execution.is_surely_ours)
    execution.confirm()
    assert execution.is_surely_ours
    sql = "DELETE FROM durable_agents_worker WHERE worker_id = ? AND beat = ?"  # what a sweeper does, a moment late
    assert running.store.execute(sql, (running.worker.id, *beat[0])) == 0
