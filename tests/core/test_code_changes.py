"""Code that changed between crash and restart: the run waits for the code it began with, or goes on as told."""

from collections.abc import Callable
from typing import Any

import pytest

from core.harness import crash, eventually
from durable_agents import runs
from durable_agents._core import engine, step
from durable_agents.errors import CodeChanged, ConfigurationError
from plain import Plain

Agent = Callable[..., Plain]
OLD = {"nodes": ["plan", "pay"], "edges": ["plan -> pay"], "state": {"messages": "list"}}
NEW = {"nodes": ["plan", "check", "pay"], "edges": ["plan -> check"], "state": {"messages": "dict"}}


def redeploy(structure: Any, **options: Any) -> Plain:
    """The same runner in a process that has other code."""
    engine.RUNNERS.clear()
    return Plain(
        lambda _: step("tool", "pay", lambda: structure == OLD), "shop", structure=structure, **options
    )


@pytest.fixture
def crashed(idle: str) -> str:
    """A run that began under the old code."""
    engine.current().shun("r")  # driven where the test says, whatever code this process had a moment ago
    redeploy(OLD).run(run_id="r")
    crash("r", after=1)
    return "r"


def test_the_same_code_goes_on(crashed: str) -> None:
    assert redeploy(OLD).run(run_id="r") is True


def test_changed_code_waits_and_says_what_changed(crashed: str) -> None:
    with pytest.raises(CodeChanged) as refused:
        redeploy(NEW).run(run_id="r")
    said = str(refused.value)
    for word in ("'r'", "'plain.shop'", "'check'", "'plan -> pay'", "'plan -> check'", "'messages' was 'list'",
                 'on_code_change="continue"'):  # fmt: skip
        assert word in said
    run = runs.get("r")
    assert run.status == "running"
    assert run.blocked == said
    with pytest.raises(TimeoutError, match="'check'"):
        run.result(timeout=0)


def test_the_run_goes_on_where_the_code_fits(crashed: str) -> None:
    for _ in range(20):  # however often the wrong worker looks at it, it is no failure of the run
        with pytest.raises(CodeChanged):
            redeploy(NEW).run(run_id="r")
    assert redeploy(OLD).run(run_id="r") is True
    assert (runs.get("r").status, runs.get("r").blocked) == ("succeeded", None)


def test_told_to_go_on_it_does_and_says_so_once(crashed: str, caplog: Any) -> None:
    runner = redeploy(NEW, on_code_change="continue")
    assert runner.run(run_id="r") is False
    assert "the run goes on" in caplog.text
    caplog.clear()
    crash("r")
    assert runner.run(run_id="r") is False
    assert "has changed" not in caplog.text
    kinds = [record.kind for record in runs.get("r")._records()]
    assert kinds == ["open", "code", "tool", "close"]


def test_back_to_the_old_code_is_a_change_again(crashed: str) -> None:
    redeploy(NEW, on_code_change="continue").run(run_id="r")
    crash("r")
    with pytest.raises(CodeChanged, match="'check'"):
        redeploy(OLD).run(run_id="r")


def test_a_worker_leaves_the_run_alone_and_goes_on_with_others(crashed: str, caplog: Any) -> None:
    runner = redeploy(NEW)
    run = runner.start(run_id="other")
    engine.current().wake()
    assert run.result(timeout=10) is False
    engine.current()._shunned.clear()  # not before: a look for runs with the old runner may have been under way

    def is_told() -> bool:
        engine.current()._next_look = 0.0  # it looks for such runs when it starts, and now and then
        engine.current().wake()
        return runs.get("r").blocked is not None

    eventually(is_told)
    assert caplog.text.count("has changed") == 1
    engine.current().wake()
    assert runner.start(run_id="more").result(timeout=10) is False
    assert caplog.text.count("has changed") == 1


def test_a_cancel_of_a_blocked_run(crashed: str) -> None:
    with pytest.raises(CodeChanged):
        redeploy(NEW).run(run_id="r")
    runs.get("r").cancel()
    assert runs.get("r").status == "cancelled"


def test_a_run_that_is_over_is_attached_to_whatever_the_code(idle: str) -> None:
    redeploy(OLD).run(run_id="r")
    assert redeploy(NEW).run(run_id="r") is True


def test_a_fork_begins_under_the_code_of_today(idle: str) -> None:
    redeploy(OLD).run(run_id="r")
    redeploy(NEW)
    fork = runs.get("r").fork()
    engine.current().wake()
    assert fork.result(timeout=10) is False


def test_an_unknown_policy(idle: str) -> None:
    with pytest.raises(ConfigurationError, match="continue"):
        redeploy(OLD, on_code_change="hope")
