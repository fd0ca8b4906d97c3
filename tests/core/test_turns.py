"""Whose turn it is, when two things happen at the same moment or in an order that is rare."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.harness import status
from durable_agents import errors, runs
from durable_agents._core import RUN, Request, engine, step
from durable_agents._core.answer import answer
from durable_agents._core.opening import open_run
from durable_agents._core.store import Store, Transaction
from durable_agents._core.store import runs as rows
from plain import Plain

Agent = Callable[..., Plain]
pytestmark = pytest.mark.usefixtures("idle")


@pytest.fixture
def store() -> Store:
    return engine.current().store


@pytest.fixture
def runner(agent: Agent, store: Store) -> Plain:
    """Fails, asks, or returns, as its input says. Nobody claims its runs but the test.

    Said before there is a run: a look for queued runs that was under way already would not hear of it.
    """
    for run_id in ("older", "younger", "other", "another", "asks", "over", "locked", "free"):
        engine.current().shun(run_id)

    def body(input: str) -> Any:
        run = RUN.get()
        assert run is not None
        if input == "fail" and not run.journal.records("retry"):
            raise ZeroDivisionError
        return run.wait({"q": 1})["q"] if input == "ask" else step("tool", "t", lambda: input)

    return agent(body)


def claimed(store: Store, runner: Plain) -> list[str]:
    """What this worker gets when it looks for queued runs."""
    worker = engine.current().worker.id
    return sorted(run_id for run_id, _, _ in rows.claim(store, worker, {runner.name: None}, 32))


def queued(runner: Plain, run_id: str, thread: str | None) -> None:
    runner.start("done", run_id=run_id, thread=thread)


def enrol(store: Store, worker: str) -> None:
    """A worker that lives."""
    store.execute("INSERT INTO durable_agents_worker (worker_id, label, beat) VALUES (?, 'w', 1)", (worker,))


def driven_by(worker: str, runner: Plain, run_id: str, thread: str) -> None:
    """A run that another worker has started, which then died."""
    store = engine.current().store
    enrol(store, worker)
    new, token = open_run(store, runner.name, Request("done", thread), run_id, worker, code=runner.code)
    store.execute("DELETE FROM durable_agents_worker WHERE worker_id = ?", (worker,))
    assert new
    assert token


def waits(runner: Plain, run_id: str, thread: str) -> None:
    with pytest.raises(errors.RunWaiting):
        runner.run("ask", run_id=run_id, thread=thread)


def test_a_run_that_was_running_goes_on_before_an_older_one_that_is_queued_again(
    runner: Plain, store: Store
) -> None:
    """Both are queued, the younger one has the thread. Neither may stop the other, nor the runs of other threads."""
    with pytest.raises(ZeroDivisionError):
        runner.run("fail", run_id="older", thread="t")
    runs.get("older").resume()
    store.execute("UPDATE workflow_status SET status = 'ERROR' WHERE workflow_uuid = 'older'")
    driven_by("dead", runner, "younger", "t")
    store.execute(
        "UPDATE workflow_status SET status = 'ENQUEUED' WHERE workflow_uuid = 'older'"
    )  # DBOS's resume
    queued(runner, "other", "u")
    assert claimed(store, runner) == ["other"]
    rows.release_dead(store)
    queued(runner, "another", "v")
    assert claimed(store, runner) == ["another", "younger"]
    assert status("older") == "running"
    owner = rows.owner(store, "younger")
    assert owner
    engine.current().take(runner, "younger", owner).drive()
    assert claimed(store, runner) == ["older"]


class Slow:
    """The store, whose transactions wait before their COMMIT until they may go on."""

    def __init__(self, store: Store) -> None:
        self._store, self.ready, self.go_on = store, threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, work: Callable[[Transaction], Any]) -> Any:
        def inside(tx: Transaction) -> Any:
            done = work(tx)
            self.ready.set()
            assert self.go_on.wait(10)
            return done

        return self._store.transact(inside)


@contextmanager
def answering(store: Store, run_id: str, worker: str | None) -> Iterator[None]:
    """An answer that is committed at the end of the block, or a moment later when that waits for it."""
    if worker is not None:
        enrol(store, worker)
    slow, failures = Slow(store), []

    def work() -> None:
        try:
            answer(slow, None, run_id, {None: "yes"}, worker)  # type: ignore[arg-type]
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert slow.ready.wait(10)
    threading.Timer(0.2, slow.go_on.set).start()
    yield
    thread.join(10)
    assert not failures


@pytest.mark.parametrize("worker", [None, "w2"], ids=["queued", "natively"])
def test_a_run_that_is_answered_while_a_younger_one_is_claimed_goes_first(
    runner: Plain, store: Store, worker: str | None
) -> None:
    waits(runner, "asks", "t")
    queued(runner, "younger", "t")
    queued(runner, "other", "u")
    with answering(store, "asks", worker):
        both = claimed(store, runner)
    both += claimed(store, runner)
    assert sorted(both) == (["other"] if worker else ["asks", "other"])
    assert status("asks") == "running"
    assert status("younger") == "queued"


@pytest.mark.parametrize("worker", [None, "w2"], ids=["queued", "natively"])
def test_a_run_that_is_answered_while_a_younger_one_is_started_goes_first(
    runner: Plain, store: Store, worker: str | None
) -> None:
    waits(runner, "asks", "t")
    request = Request("done", "t")
    with answering(store, "asks", worker):
        begun = time.monotonic()
        assert open_run(store, runner.name, request, "younger", "w", code=runner.code) == (True, None)
        assert time.monotonic() - begun < 0.9  # no deadlock, of which PostgreSQL would need a second to hear
    assert status("asks") == "running"
    assert status("younger") == "queued"
    assert claimed(store, runner) == ([] if worker else ["asks"])


def test_a_call_of_a_run_that_exists_drops_no_pause(runner: Plain, store: Store) -> None:
    runner.run("done", run_id="over", thread="t")
    waits(runner, "asks", "t")
    assert runner.run("done", run_id="over", thread="t") == "done"
    assert status("asks") == "waiting"


def test_what_a_frozen_worker_has_locked_does_not_hold_up_its_other_runs(runner: Plain, store: Store) -> None:
    """On PostgreSQL its transaction stays open until the server ends it; who sweeps must not wait for that."""
    if store.dialect != "postgresql":
        pytest.skip("SQLite has one lock, and not one for each run")
    driven_by("dead", runner, "locked", "t")
    driven_by("dead", runner, "free", "u")
    frozen = Slow(store)
    lock = "SELECT 1 FROM workflow_status WHERE workflow_uuid = 'locked' FOR UPDATE"
    held = threading.Thread(target=lambda: frozen.transact(lambda tx: tx.query(lock)))
    held.start()
    assert frozen.ready.wait(10)
    swept: list[int] = []
    sweep = threading.Thread(target=lambda: swept.append(rows.release_dead(store)), daemon=True)
    sweep.start()
    sweep.join(5)
    frozen.go_on.set()
    held.join(10)
    assert swept == [1]
    assert claimed(store, runner) == ["free"]
    assert rows.release_dead(store) == 1
    assert claimed(store, runner) == ["locked"]
