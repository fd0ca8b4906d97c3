"""A process dies; its run is finished by a process that has only launched, and nothing finished runs again."""

import signal

import pytest

import durable_agents
from core.harness import Programs, eventually


def finish(programs: Programs, run_id: str, seconds: float = 20.0) -> object:
    """The result that a process comes to which has only launched."""
    programs.start("agents", "work")
    durable_agents.launch(programs.database_url, poll=3600)
    try:
        return run_result(run_id, seconds)
    finally:
        durable_agents.shutdown()


def run_result(run_id: str, seconds: float) -> object:
    from durable_agents._core import failure  # noqa: F401  the runner is not in this process: read the record
    from durable_agents._core.run import Run

    run = Run(run_id)
    eventually(lambda: run.status in ("succeeded", "failed"), seconds, f"{run_id} ends")
    return run._closing().value()


@pytest.mark.parametrize("body", ["order", "aorder"])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_killed_run_finishes_and_only_the_effect_without_record_runs_again(
    programs: Programs, body: str, where: str
) -> None:
    assert programs.start("agents", "run", body, "r", die=f"{where}:charge").ends() == -signal.SIGKILL
    assert finish(programs, "r") == ["reserve", "charge", "mail"]
    twice = ["charge"] if where == "after" else []
    assert programs.ledger.effects() == ["reserve", *twice, "charge", "mail"]
