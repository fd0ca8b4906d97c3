"""The engine of this process: one database, one worker, the loops that claim and watch runs.

`launch` is optional: the first run launches with the defaults. Everything here is reached through the functions of the
module; there is one engine per process, and none in a forked child until it launches its own.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .errors import CancelRequested, ConfigurationError, DurableError, OwnershipLost, Released, Stop
from .execution import Execution
from .log import logger
from .store import Store, open_store, runs
from .threads import DaemonPool
from .worker import Liveness, Worker

if TYPE_CHECKING:
    from .runner import Runner

DATABASE_URL = "DURABLE_AGENTS_DATABASE_URL"
DEFAULT_DATABASE_URL = "sqlite:///durable_agents.sqlite"
_SHUTDOWN_SECONDS = 10.0

RUNNERS: dict[str, "Runner"] = {}
"""Every runner made in this process, by its full name."""


class Engine:
    """What runs in the background: heartbeat, sweep and claims, a pool for sync runs, a home loop for async ones."""

    def __init__(self, store: Store, liveness: Liveness, max_runs: int) -> None:
        self.store, self._liveness, self._max_runs = store, liveness, max_runs
        self.writers = DaemonPool(8, "durable-agents-writer")
        self.settlers = DaemonPool(max_runs, "durable-agents-settle")  # these wait for writers
        self._pool = DaemonPool(max_runs, "durable-agents-run")
        self._live: dict[str, Execution] = {}
        self._strays: dict[tuple[str, str], int] = {}
        self._shunned: set[str] = set()
        self._lock = threading.Lock()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._home: asyncio.AbstractEventLoop | None = None
        for runner in list(RUNNERS.values()):
            runner.attach(store)
        self.worker = Worker(store, liveness)
        self._threads = [
            threading.Thread(target=self._beat_loop, name="durable-agents-beat", daemon=True),
            threading.Thread(target=self._claim_loop, name="durable-agents-claim", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- runs of this process

    def take(self, runner: "Runner", run_id: str, owner: str, live: Any = None) -> Execution:
        """The execution of a run that this worker has claimed under the token `owner`."""
        row = runs.get(self.store, run_id)
        execution = Execution(self, runner, run_id, owner, row.epoch if row else 1, live)
        with self._lock:
            self._live[run_id] = execution
        return execution

    def forget(self, execution: Execution) -> None:
        with self._lock:
            if self._live.get(execution.id) is execution:
                del self._live[execution.id]
        self._wake.set()

    def release(self, run_id: str, owner: str) -> None:
        runs.release(self.store, run_id, owner)
        self._wake.set()

    def shun(self, run_id: str) -> None:
        """Leave this run to other processes: somebody interrupted it here."""
        self._shunned.add(run_id)

    def wake(self) -> None:
        """Look for queued runs now."""
        self._wake.set()

    def on_home_loop(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run a coroutine on this engine's own event loop."""
        with self._lock:
            if self._home is None:
                self._home = asyncio.new_event_loop()
                threading.Thread(
                    target=self._home.run_forever, name="durable-agents-loop", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(work, self._home)

    # -- claiming

    def _claim_loop(self) -> None:
        while not self._stopping.is_set():
            try:
                claimed = self._claim()
            except Exception:
                logger.exception("looking for queued runs failed; trying again")
                claimed = 0
            if not claimed:
                self._wake.wait(self._liveness.poll)
                self._wake.clear()

    def _claim(self) -> int:
        room = self._max_runs - len(self._live)
        claimed = runs.claim(self.store, self.worker.id, list(RUNNERS), min(room, 32), shunned=self._shunned)
        for run_id, name, owner in claimed:
            self._dispatch(RUNNERS[name], run_id, owner)
        return len(claimed)

    def _dispatch(self, runner: "Runner", run_id: str, owner: str) -> None:
        try:
            execution = self.take(runner, run_id, owner)
        except Exception:
            logger.exception("run %r cannot be loaded; it is left for another worker", run_id)
            return
        logger.info("run %r: driven by worker %s", run_id, self.worker.id)
        if runner.is_async(execution):
            self.on_home_loop(_quietly_async(execution))
        else:
            self._pool.submit(lambda: _quietly(execution))

    # -- liveness

    def _beat_loop(self) -> None:
        while not self._stopping.wait(self._liveness.heartbeat):
            try:
                if not self.worker.beat():
                    self._reborn()
                if self.worker.sweep():
                    self._wake.set()
                self._watch_own()
            except Exception:
                logger.exception("heartbeat failed; trying again")

    def _reborn(self) -> None:
        logger.error("this worker (%s) was declared dead; its runs belong to others now", self.worker.id)
        with self._lock:
            lost, self._live = list(self._live.values()), {}
        for execution in lost:
            execution.journal.abandon()
        self.worker.reborn()

    def _watch_own(self) -> None:
        """Pass on cancel requests, write staged state, and release runs that nobody in this process drives."""
        owned = runs.owned_by(self.store, self.worker.id)
        strays: dict[tuple[str, str], int] = {}
        for run_id, owner, cancelled in owned:
            execution = self._live.get(run_id)
            if execution is not None and execution.owner == owner and not execution.is_orphaned:
                if cancelled:
                    execution.stop(CancelRequested(f"run {run_id!r} was cancelled"))
                continue
            strays[run_id, owner] = self._strays.get((run_id, owner), 0) + 1
            if strays[run_id, owner] > self._liveness.grace / self._liveness.heartbeat:
                logger.warning("run %r: its caller is gone; any worker goes on with it", run_id)
                if execution is not None:
                    execution.journal.abandon()
                    self.forget(execution)
                self.release(run_id, owner)
        self._strays = strays
        mine = {run_id: owner for run_id, owner, _ in owned}
        for execution in list(self._live.values()):
            if mine.get(execution.id) == execution.owner:
                with contextlib.suppress(OwnershipLost):
                    execution.journal.flush_soon()
            elif runs.owner(self.store, execution.id) != execution.owner:
                execution.journal.abandon()  # cancelled or taken from outside: nothing more may start

    # -- end

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        for execution in list(self._live.values()):
            execution.stop(Released(f"run {execution.id!r} is released: its process shuts down"))
        for thread in self._threads:
            thread.join()
        self._pool.close(wait=False)
        self.settlers.close(wait=False)
        deadline = threading.Event()
        for _ in range(int(_SHUTDOWN_SECONDS / 0.02)):
            if not self._live:
                break
            deadline.wait(0.02)
        for execution in list(self._live.values()):
            execution.release()
        self.writers.close(wait=True)
        if self._home is not None:
            self._home.call_soon_threadsafe(self._home.stop)
        self.worker.leave()
        self.store.close()

    def abandon(self) -> None:
        """In a forked child: the engine stays the parent's."""
        self._stopping.set()
        self.worker.abandon()
        self.store.abandon()


def _quietly(execution: Execution) -> None:
    """Drive a queued or recovered run; its outcome is in the database, for whoever asks."""
    try:
        execution.drive()
    except Stop as stop:
        logger.info("run %r leaves this process: %s", execution.id, stop)
    except DurableError as error:
        logger.info("run %r: %s", execution.id, error)
    except Exception as error:
        logger.warning("run %r failed: %s: %s", execution.id, type(error).__name__, error)


async def _quietly_async(execution: Execution) -> None:
    try:
        await execution.adrive()
    except Stop as stop:
        logger.info("run %r leaves this process: %s", execution.id, stop)
    except DurableError as error:
        logger.info("run %r: %s", execution.id, error)
    except Exception as error:
        logger.warning("run %r failed: %s: %s", execution.id, type(error).__name__, error)


_engine: Engine | None = None
_launching = threading.Lock()


def launch(
    database_url: str | None = None,
    *,
    heartbeat: float = Liveness.heartbeat,
    grace: float = Liveness.grace,
    lease: float = Liveness.lease,
    poll: float = Liveness.poll,
    max_runs: int = 64,
) -> None:
    """Start driving and recovering the runs of this process's runners.

    Optional: the first run launches with the defaults. A worker process calls it, so that it recovers runs without
    starting one. Called again with the same database it does nothing.

    Args:
        database_url: `sqlite:///file` or `postgresql://user@host:port/name`. Default: the environment variable
            `DURABLE_AGENTS_DATABASE_URL`, else the file `durable_agents.sqlite` in the working directory.
        heartbeat, grace, lease, poll: see `Liveness`; seconds.
        max_runs: how many queued and recovered runs are driven at once.

    Raises:
        ConfigurationError: a database that cannot be used, or another one than this process already runs on.
    """
    global _engine
    url = database_url or os.environ.get(DATABASE_URL) or DEFAULT_DATABASE_URL
    liveness = Liveness(heartbeat=heartbeat, grace=grace, lease=lease, poll=poll)
    with _launching:
        if _engine is None:
            _engine = _apart(lambda: Engine(open_store(url), liveness, max_runs))
            atexit.register(shutdown)
        elif database_url is not None and _engine.store.url != url:
            raise ConfigurationError(
                f"this process already runs on {_engine.store.url}; call shutdown() first"
            )


def shutdown() -> None:
    """Stop driving runs: steps in flight get ten seconds to finish and be recorded, the runs are released for others.

    Called at the end of the process too, unless it is killed.
    """
    global _engine
    with _launching:
        if _engine is not None:
            engine, _engine = _engine, None
            atexit.unregister(shutdown)
            engine.close()


def current() -> Engine:
    """The engine of this process, launched if need be."""
    if _engine is None:
        launch()
    engine = _engine
    assert engine is not None
    return engine


def launched() -> Engine | None:
    """The engine of this process, if it is launched."""
    return _engine


def _apart(work: Callable[[], Any]) -> Any:
    """Run in a plain thread: nothing in it may take the caller's event loop for its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def _after_fork() -> None:
    global _engine, _launching
    _launching = threading.Lock()
    if _engine is not None:
        _engine.abandon()
        _engine = None


os.register_at_fork(after_in_child=_after_fork)
