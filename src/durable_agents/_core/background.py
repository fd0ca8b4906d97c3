"""What runs in the background of a process: the loops that claim and watch runs, and where runs are driven."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from . import failure
from .admission import NotNow, admit, tell_stranded
from .errors import (
    CancelRequested,
    DurableError,
    OwnershipLost,
    Released,
    RunNotFound,
    RunReleased,
    Stop,
)
from .execution import Execution
from .log import Trouble, logger
from .store import Store, opening, runs
from .threads import DaemonPool
from .worker import Liveness, Worker

if TYPE_CHECKING:
    from .runner import Runner

T = TypeVar("T")
_SHUTDOWN_SECONDS = 10.0
# How long a database that is unwell may hold up the end of the process after that.
_FAREWELL_SECONDS = 10.0
_CLAIM_AT_ONCE = 32
_LOOK_SECONDS = 10.0
_HOME_SECONDS = 0.2

RUNNERS: dict[str, "Runner"] = {}
"""Every runner made in this process, by its full name."""


class Caller(Protocol):
    """A caller that waits for its turn to drive a run."""

    @property
    def is_orphaned(self) -> bool:
        """Whether the event loop that waited has ended without unwinding it."""
        ...

    def give_up(self) -> None:
        """Open the run to any worker."""
        ...


class Engine:
    """What runs in the background: heartbeat, sweep and claims, a pool for sync runs, a home loop for async ones."""

    def __init__(self, store: Store, liveness: Liveness, max_runs: int) -> None:
        self.store, self.liveness, self._max_runs = store, liveness, max_runs
        self.writers = DaemonPool(8, "durable-agents-writer")
        self.settlers = DaemonPool(max_runs, "durable-agents-settle")  # these wait for writers
        self._pool = DaemonPool(max_runs, "durable-agents-run")
        self._live: dict[str, Execution] = {}
        self._entries: set[Caller] = set()
        self._strays: dict[tuple[str, str], int] = {}
        self._taking: set[tuple[str, str]] = set()  # claimed, and their records are being loaded
        self._shunned: set[str] = set()
        self._interrupted: set[str] = set()
        self._next_look = 0.0
        self._resting = 0
        self._deferred: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._wake, self._stopping, self._leaving = threading.Event(), threading.Event(), threading.Event()
        self._home: asyncio.AbstractEventLoop | None = None
        with opening(store):
            for runner in list(RUNNERS.values()):
                runner.attach(store)
            self.worker = Worker(store, liveness)
        self._beats = threading.Thread(target=self._beat_loop, name="durable-agents-beat", daemon=True)
        self._claims = threading.Thread(target=self._claim_loop, name="durable-agents-claim", daemon=True)
        self._beats.start()
        self._claims.start()

    # -- runs of this process

    @property
    def is_closed(self) -> bool:
        return self._stopping.is_set()

    def take(self, runner: "Runner", run_id: str, owner: str, live: Any = None) -> Execution:
        """The execution of a run that this worker has claimed under the token `owner`.

        Raises:
            NotNow: it is not to be driven now and was given back, or has been taken from this worker meanwhile.
            CodeChanged, BrokenRecord: it is not to be driven here, and was given back.
        """
        self._taking.add((run_id, owner))
        try:
            row = runs.get(self.store, run_id)
            if row is None:
                raise RunNotFound(f"run {run_id!r} is gone: it was deleted while it was claimed")
            if row.owner != owner:
                raise NotNow(f"run {run_id!r} was taken over before its records were loaded")
            execution = Execution(self, runner, row, live)
            admit(execution, row)
            with self._lock:
                # Declared dead meanwhile, this process may have taken the run again, under its new id.
                if execution.worker != self.worker.id:
                    raise NotNow(f"run {run_id!r} was taken over while its records were loaded")
                self._live[run_id] = execution
            self._interrupted.discard(run_id)
        except NotNow:
            raise
        except Exception:
            self.release(run_id, owner, counted=False)
            raise
        finally:
            self._taking.discard((run_id, owner))
        return execution

    def forget(self, execution: Execution) -> None:
        """The execution is over, or will not go on."""
        with self._lock:
            if self._live.get(execution.id) is execution:
                del self._live[execution.id]
        self._wake.set()

    def release(self, run_id: str, owner: str, *, counted: bool = True) -> None:
        """Hand a run back to any worker; not counted, as if it had never been claimed.

        While the database is unwell it stays here, as one that nobody drives, and is handed back afterwards.
        """
        try:
            with self.store.briefly():
                (runs.release if counted else runs.unclaim)(self.store, run_id, owner)
        except Exception as error:
            if not self.store.may_heal(error):
                raise
            logger.warning(
                "run %r cannot be handed back before the database is well again: %s", run_id, error
            )
        self._wake.set()

    def shun(self, run_id: str) -> None:
        """Leave this run to other processes."""
        self._shunned.add(run_id)

    def interrupted(self, run_id: str) -> None:
        """Leave this run to other processes, until somebody asks for it here again."""
        self._interrupted.add(run_id)

    def shuns(self, run_id: str) -> bool:
        return run_id in self._shunned or run_id in self._interrupted

    def cancel(self, run_id: str) -> None:
        """Stop a run that this process drives; a worker elsewhere hears of it with its next heartbeat."""
        with self._lock:
            execution = self._live.get(run_id)
        if execution is not None:
            execution.stop(CancelRequested(f"run {run_id!r} was cancelled"))

    def await_turn(self, entry: Caller) -> None:
        """A caller waits for its turn on a thread; it is missed when its event loop ends."""
        with self._lock:
            self._entries.add(entry)

    def turn_over(self, entry: Caller) -> None:
        """The caller waits no more."""
        with self._lock:
            self._entries.discard(entry)

    def defer(self, work: Callable[[], object]) -> None:
        """Let the heartbeat do it: for finalizers, which run in any thread, whatever locks that holds."""
        self._deferred.put(work)  # SimpleQueue.put is reentrant, as nothing else here is

    @contextmanager
    def resting(self) -> Iterator[None]:
        """The current run only waits for another one, which may need its place."""
        self._pool.resize(1)
        with self._lock:
            self._resting += 1
        self._wake.set()
        try:
            yield
        finally:
            with self._lock:
                self._resting -= 1
            self._pool.resize(-1)

    def wake(self) -> None:
        """Look for queued runs now."""
        self._wake.set()

    # -- claiming

    def _claim_loop(self) -> None:
        trouble = Trouble("looking for queued runs")
        while not self.is_closed:
            claimed = 0
            try:
                with self.store.briefly():
                    claimed = self._claim()
            except Exception as error:
                trouble.met(error, traceback=not self.store.may_heal(error))
            else:
                trouble.over()
            if not claimed:
                self._wake.wait(self.liveness.poll)
                self._wake.clear()

    def _claim(self) -> int:
        room = min(self._max_runs + self._resting - len(self._live), _CLAIM_AT_ONCE)
        runners = dict(RUNNERS)
        wanted = {name: runner.takes for name, runner in runners.items()}
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            tell_stranded(self.store, runners)
        claimed = runs.claim(
            self.store, self.worker.id, wanted, room, shunned=self._shunned | self._interrupted
        )
        self._taking.update((run_id, owner) for run_id, _, owner in claimed)  # the last one's turn comes late
        for run_id, name, owner in claimed:
            if self.shuns(run_id):  # since the claim began
                self._taking.discard((run_id, owner))
                runs.unclaim(self.store, run_id, owner)
            else:
                self._dispatch(runners[name], run_id, owner)
        return len(claimed)

    def _dispatch(self, runner: "Runner", run_id: str, owner: str) -> None:
        try:
            execution = self.take(runner, run_id, owner)
        except NotNow:
            return
        except Exception as error:
            self._taking.discard((run_id, owner))
            self._leave_to_others(run_id, error)
            return
        execution.is_attended = False
        try:
            is_async = runner.is_async(execution)
        except Exception as error:
            execution.release()
            self._leave_to_others(run_id, error)
            return
        logger.info("run %r: driven by worker %s", run_id, self.worker.id)
        if is_async:
            asyncio.run_coroutine_threadsafe(_quietly_async(execution), self._home_loop())
        else:
            self._pool.submit(lambda: _quietly(execution))

    def _leave_to_others(self, run_id: str, error: Exception) -> None:
        if self.store.may_heal(error):
            return
        logger.error("run %r cannot be loaded; it is left to other workers", run_id, exc_info=error)
        self.shun(run_id)
        why = f"run {run_id!r} cannot be loaded: {type(error).__name__}: {failure.text(error)}"
        runs.block(self.store, run_id, why)

    def run_home(self, work: Coroutine[Any, Any, T], run_id: str | None) -> T:
        """Run a coroutine on the home loop, in the caller's context, and wait for it.

        Args:
            run_id: the run it drives: one that is interrupted here is left to other processes.

        Raises:
            RunReleased: the engine was shut down, and nobody will finish the coroutine.
        """
        home = self._home_loop()
        future = asyncio.run_coroutine_threadsafe(work, home)
        try:
            while not wait([future], _HOME_SECONDS).done:
                if self.is_closed and not home.is_running():
                    raise RunReleased(f"this process called shutdown() while run {run_id!r} was under way")
        except BaseException:  # Ctrl-C, in the thread that waits
            if run_id is not None:
                self.interrupted(run_id)
            future.cancel()
            raise
        return future.result()

    def _home_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._home is None:
                self._home = asyncio.new_event_loop()
                serve = threading.Thread(
                    target=self._serve_home, args=(self._home,), name="durable-agents-loop"
                )
                serve.daemon = True
                serve.start()
            return self._home

    def _serve_home(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self.is_closed:
            try:
                loop.run_forever()
            except (
                SystemExit,
                KeyboardInterrupt,
            ) as error:  # raised by somebody's task; the loop itself is sound
                logger.warning("%s in a task of the home loop is ignored", type(error).__name__)

    # -- liveness

    def _beat_loop(self) -> None:
        trouble = Trouble("the heartbeat of this worker")
        while not self._stopping.wait(self.liveness.heartbeat):
            try:
                with self.store.briefly():
                    self._beat()
            except Exception as error:
                trouble.met(error, traceback=not self.store.may_heal(error))
            else:
                trouble.over()
        self._leaving.wait()
        with self.store.briefly():
            self._sign_off()

    def _beat(self) -> None:
        if not self.worker.beat():
            self._reborn()
        if self.worker.sweep():
            self._wake.set()
        for _ in range(self._deferred.qsize()):  # work that cannot be done yet defers itself again
            self._deferred.get()()
        self._watch_own()
        self._watch_entries()

    def _reborn(self) -> None:
        with self._lock:
            lost, self._live = list(self._live.values()), {}
        for execution in lost:
            execution.journal.abandon()
        dead = self.worker.id
        self.worker.reborn()
        logger.error("this worker (%s) was declared dead; its runs belong to others now", dead)

    def _watch_own(self) -> None:
        """Pass on cancel requests, write staged state, and release runs that nobody in this process drives."""
        owned = runs.owned_by(self.store, self.worker.id)
        strays: dict[tuple[str, str], int] = {}
        for run_id, owner, cancelled in owned:
            if (run_id, owner) in self._taking:
                continue
            execution = self._live.get(run_id)
            if execution is not None and execution.owner == owner and not execution.is_orphaned:
                if cancelled:
                    execution.stop(CancelRequested(f"run {run_id!r} was cancelled"))
                continue
            strays[run_id, owner] = self._strays.get((run_id, owner), 0) + 1
            if strays[run_id, owner] > self.liveness.grace / self.liveness.heartbeat:
                logger.warning("run %r: its caller is gone; any worker goes on with it", run_id)
                if execution is not None and execution.owner == owner:
                    execution.journal.abandon()
                    self.forget(execution)
                self.release(run_id, owner)
        self._strays = strays
        mine = {run_id: owner for run_id, owner, _ in owned}
        for execution in list(self._live.values()):
            if mine.get(execution.id) == execution.owner:
                execution.flush_soon()
            elif runs.owner(self.store, execution.id) != execution.owner:
                execution.journal.abandon()  # cancelled or taken from outside: nothing more may start

    def _watch_entries(self) -> None:
        for entry in list(self._entries):
            if entry.is_orphaned:
                entry.give_up()

    # -- end

    def close(self) -> None:
        """Stop taking runs, let steps in flight finish and be recorded, release the runs and sign off.

        It ends in time and raises nothing, however unwell the database is: then others find this worker dead.
        """
        deadline = time.monotonic() + _SHUTDOWN_SECONDS
        self._stopping.set()
        self._wake.set()
        for execution in list(self._live.values()):
            execution.stop(Released(f"run {execution.id!r} is released: its process shuts down"))
        self._claims.join(_SHUTDOWN_SECONDS)
        while time.monotonic() < deadline:
            # One that is driven by the loop we are called in cannot unwind while that waits for us.
            if not any(e.is_busy and not e.is_here for e in list(self._live.values())):
                break
            time.sleep(0.01)
        for execution in list(self._live.values()):
            execution.journal.hurry()
        self._leaving.set()
        self._beats.join(_FAREWELL_SECONDS)
        if self._beats.is_alive():
            logger.warning("the database does not answer, and this process ends without signing off")

    def _sign_off(self) -> None:
        # In the heartbeat's thread, so that nobody has to wait for it: at its end Python starts no new ones.
        try:
            for execution in list(self._live.values()):
                execution.release()
            self._pool.close(wait=False)
            self.settlers.close(wait=False)
            self.writers.close(wait=True)
            if self._home is not None:
                self._home.call_soon_threadsafe(self._home.stop)
            self.worker.leave()
        except Exception as error:
            logger.warning("this worker could not sign off, others will find it dead: %s", error)
        finally:
            self.store.close()

    def abandon(self) -> None:
        """In a forked child: the engine stays the parent's. No lock is taken: a thread that is not here may hold it."""
        for execution in self._live.values():
            lost = f"run {execution.id!r} belongs to the process that this one was forked from"
            execution.journal.lost = OwnershipLost(lost)
        self.worker.abandon()
        self.store.abandon()


def _quietly(execution: Execution) -> None:
    """Drive a queued or recovered run; its outcome is in the database, for whoever asks."""
    try:
        execution.drive()
    except BaseException as error:
        _tell(execution, error)


async def _quietly_async(execution: Execution) -> None:
    try:
        await execution.adrive()
    except BaseException as error:
        _tell(execution, error)


def _tell(execution: Execution, error: BaseException) -> None:
    if isinstance(error, (Stop, DurableError)):
        logger.info("run %r: %s", execution.id, error)
    else:
        logger.warning("run %r: %s: %s", execution.id, type(error).__name__, failure.text(error))
