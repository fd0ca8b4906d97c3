"""`Run.fork()`: a new run that is served the first records of another one, and goes its own way from there."""

from collections.abc import Callable
from typing import Any

import pytest

from core.harness import crash, eventually
from durable_agents import RunWaiting, idempotency_key, runs
from durable_agents._core import RUN, engine, step
from durable_agents.errors import (
    BrokenRecord,
    ConfigurationError,
    InputMismatch,
    NotRecoverable,
    RunNotFound,
    StepNotFound,
)
from plain import Plain

Agent = Callable[..., Plain]


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def three(agent: Agent, launched: str, done: list[str]) -> Plain:
    def tool(name: str) -> Callable[[], str]:
        return lambda: (done.append(name), f"{name} {len(done)}")[1]

    runner = agent(lambda _: [step("tool", name, tool(name)) for name in "abc"])
    engine.current().shun("driven here")
    assert runner.run(run_id="source") == ["a 1", "b 2", "c 3"]
    return runner


def test_steps_before_the_path_are_served_and_the_others_run(three: Plain, done: list[str]) -> None:
    fork = runs.get("source").fork("tool:b", run_id="fork")
    assert fork.result(timeout=10) == ["a 1", "b 4", "c 5"]
    assert done == ["a", "b", "c", "b", "c"]
    assert runs.get("source").result() == ["a 1", "b 2", "c 3"]
    assert [s.path for s in fork.steps()] == ["tool:b", "tool:c"]


def test_without_a_path_all_runs_anew(three: Plain, done: list[str]) -> None:
    assert runs.get("source").fork().result(timeout=10) == ["a 4", "b 5", "c 6"]


def test_a_fork_of_a_fork(three: Plain, done: list[str]) -> None:
    runs.get("source").fork("tool:b", run_id="one").result(timeout=10)
    fork = runs.get("one").fork("tool:c", run_id="two")
    assert fork.result(timeout=10) == ["a 1", "b 4", "c 6"]
    crash("two")
    assert fork.result(timeout=10) == ["a 1", "b 4", "c 6"]


def test_the_same_fork_again_is_the_same_run(three: Plain, done: list[str]) -> None:
    for _ in range(2):
        runs.get("source").fork("tool:b", run_id="fork").result(timeout=10)
    assert len(done) == 5
    with pytest.raises(InputMismatch, match="'fork'"):
        runs.get("source").fork("tool:c", run_id="fork")
    with pytest.raises(InputMismatch, match="'source'"):
        runs.get("source").fork("tool:c", run_id="source")


def test_a_path_that_was_not_recorded(three: Plain) -> None:
    with pytest.raises(StepNotFound, match="'tool:a', 'tool:b', 'tool:c'"):
        runs.get("source").fork("tool:d")
    with pytest.raises(RunNotFound):
        runs.Run("nobody").fork()


def test_steps_inside_the_path_run_anew_too(agent: Agent, launched: str) -> None:
    done: list[str] = []

    def node() -> list[None]:
        return [step("tool", name, lambda name=name: done.append(name)) for name in "ab"]

    agent(lambda _: step("node", "n", node, leaf=False)).run(run_id="source")
    runs.get("source").fork("node:n").result(timeout=10)
    assert done == ["a", "b", "a", "b"]
    runs.get("source").fork("node:n/tool:b").result(timeout=10)
    assert done == ["a", "b", "a", "b", "b"]


def test_a_fork_has_idempotency_keys_and_a_thread_of_its_own(agent: Agent, launched: str) -> None:
    keys: list[str] = []
    runner = agent(lambda _: step("tool", "pay", lambda: keys.append(idempotency_key())))
    runner.run(run_id="source", thread="t")
    fork = runs.get("source").fork()
    fork.result(timeout=10)
    assert len(set(keys)) == 2
    sql = "SELECT queue_partition_key, forked_from FROM workflow_status WHERE workflow_uuid = ?"
    assert engine.current().store.query(sql, (fork.id,)) == [(f"{runner.name}/{fork.id}", "source")]


def test_a_failed_run_is_forked_before_its_error(agent: Agent, launched: str) -> None:
    down = [True]

    def dependency() -> str:
        if down:
            raise ConnectionError
        return "fine"

    runner = agent(lambda _: [step("tool", "a", lambda: 1), step("tool", "dependency", dependency)])
    with pytest.raises(ConnectionError):
        runner.run(run_id="source")
    down.clear()
    assert runs.get("source").fork("tool:dependency").result(timeout=10) == [1, "fine"]
    assert runs.get("source").status == "failed"


def test_answers_are_served_and_asked_again_behind_the_path(agent: Agent, launched: str) -> None:
    def body(_: None) -> list[Any]:
        run = RUN.get()
        assert run is not None
        first = run.wait({"one": 1})["one"]
        step("tool", "between", lambda: None)
        return [first, run.wait({"two": 2})["two"]]

    runner = agent(body)
    with pytest.raises(RunWaiting):
        runner.run(run_id="source")
    runs.get("source").answer("a")
    with pytest.raises(RunWaiting):
        runner.run(run_id="source")
    runs.get("source").answer("b")
    assert runs.get("source").result(timeout=10) == ["a", "b"]
    fork = runs.get("source").fork("wait:2")
    eventually(lambda: fork.status == "waiting")
    assert list(fork.questions) == ["two"]
    fork.answer("c")
    assert fork.result(timeout=10) == ["a", "c"]
    again = runs.get(fork.id).fork(run_id="again")
    eventually(lambda: again.status == "waiting")
    assert list(again.questions) == ["one"]


def test_live_arguments_are_needed_again(agent: Agent, launched: str) -> None:
    runner = agent(lambda _: 1)
    runner.run(run_id="source", live={"client": object()})
    with pytest.raises(NotRecoverable, match="client"):
        runs.get("source").fork()


def test_a_process_without_the_runner(three: Plain) -> None:
    engine.RUNNERS.clear()
    with pytest.raises(ConfigurationError, match=three.name):
        runs.get("source").fork()


def test_a_source_that_was_changed_or_deleted_is_noticed(three: Plain) -> None:
    runs.get("source").fork("tool:c", run_id="driven here")
    store = engine.current().store
    store.execute("DELETE FROM operation_outputs WHERE workflow_uuid = 'source' AND function_id > 2")
    with pytest.raises(BrokenRecord, match="'source'"):
        three.run(run_id="driven here")
