"""One claim of a run in this process: what a runner's loop works with, and how it is driven and stopped."""

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .context import RUN, SCOPE, Scope, having
from .errors import (
    Aborted,
    CallerNeeded,
    CancelRequested,
    NotRecoverable,
    Parked,
    Released,
    RunCancelled,
    Stop,
)
from .journal import Journal
from .log import logger
from .pause import read_pauses
from .record import ANSWER, OPEN, Draft, Record
from .settle import settle, settle_error
from .store import Statement, runs
from .threads import detached

if TYPE_CHECKING:
    from .engine import Engine
    from .run import Run
    from .runner import Runner

T = TypeVar("T")
_DRAIN_SECONDS = 30.0
# How long whoever leaves early, or is cancelled, waits for what is in flight; that ends, and is recorded, all the same.
_LEAVING_SECONDS = 5.0


class Execution:
    """A run that this process owns.

    `input`, `thread`, `pauses` and `answers` are what was recorded; `live` is what only the calling process has, None
    after a recovery; `memory` is the runner's own, for the time it drives. `is_attended`: its caller waits here.
    `muted` is true for a replay that only rebuilds a result: no callback of the user may be called.
    """

    muted: ClassVar[bool] = False
    journal_type: ClassVar[type[Journal]] = Journal

    def __init__(self, engine: "Engine", runner: "Runner", row: runs.Row, live: Any = None) -> None:
        self.engine, self.runner, self.id, self.live = engine, runner, row.id, live
        self.owner, self.worker = row.owner or "", row.worker or ""
        self._idle = threading.Condition()
        self._in_flight = self._bodies = 0
        self.settling = False
        self._tasks: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._callers: dict[asyncio.Task[Any], int] = {}  # and how often each was cancelled before
        self._was_left = False
        self.closing: Stop | None = None
        self._advanced = False
        self._flushing: Future[None] | None = None
        self.memory: dict[str, Any] = {}
        self.journal = self.journal_type(
            engine.store,
            row.id,
            owner=self.owner,
            worker=self.worker,
            epoch=row.epoch,
            on_lost=self._cancel_tasks,
        )
        self.is_attended = True
        opening = self.journal.opening
        self.input: Any = opening["input"]
        self.incidental: Any = opening["incidental"]
        self.thread: str | None = opening["thread"]
        self._digest_key = str(opening["digest_key"]).encode()
        self.pauses = read_pauses(self.journal.known.values(), runner.codec)
        self.asked: dict[str, Any] = {}
        self.top = Scope()

    # -- what the run was called with

    def restored(self) -> Mapping[str, Any]:
        """What the runner's `restore` gives for the live arguments that are gone with their process; {} if none are.

        Raises:
            CallerNeeded: there is no `restore`.
            NotRecoverable: it does not give all of them.
        """
        names = self.journal.opening["live"]
        if self.live is not None or not names:
            return {}
        restore = self.runner.restore
        if restore is None:
            raise CallerNeeded(
                f"run {self.id!r} was called with {', '.join(names)}, which could not be recorded and is gone with its "
                f"process. Call again with the same run_id and {', '.join(names)}, and it goes on; or pass plain data, "
                f"allow the types with types=[…], or give the runner restore=fn(run)"
            )
        given = restore(self.handle())
        if missing := [name for name in names if name not in given]:
            raise NotRecoverable(f"restore= gave nothing for {', '.join(missing)} of run {self.id!r}")
        return given

    def handle(self) -> "Run":
        """The run as its user sees it."""
        from .run import Run

        return Run(self.id)

    # -- what steps need

    def digest(self, text: str) -> str:
        """A digest of a step's input, keyed per run, so that it says nothing once the opening record is redacted."""
        return hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=16, key=self._digest_key
        ).hexdigest()

    @property
    def replaying(self) -> bool:
        """Whether nothing new has begun since the run was claimed again."""
        return self.journal.recorded_before > 1 and not self._advanced

    @property
    def is_first_try(self) -> bool:
        """Whether nobody has driven this segment before, so that nothing was done that is not recorded.

        An answer about a tool that was cut off begins no segment: what ran beside that tool may have been cut off, too.
        """
        begun = self.journal.last_kind == OPEN or (
            self.journal.last_kind == ANSWER and not self.pauses[-1].is_our_own
        )
        return begun and self.journal.epoch == self.journal.last_epoch + 1

    @property
    def is_here(self) -> bool:
        """Whether the calling thread's running event loop drives the run."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return False
        return any(loop is here for loop, _ in list(self._tasks))

    @property
    def is_busy(self) -> bool:
        """Whether a step is in flight or its body runs, or the outcome is being written."""
        return self._in_flight > 0 or self._bodies > 0 or self.settling

    @property
    def is_orphaned(self) -> bool:
        """Whether the event loop that drove the run has ended without unwinding it."""
        return any(loop.is_closed() for loop, _ in list(self._tasks))

    async def commit(self, draft: Draft, rows: Sequence[Statement] = ()) -> Record:
        """`journal.commit` off the event loop; it goes on when the caller is cancelled."""
        return await self.in_thread(lambda: self.journal.commit(draft, rows))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run database work in a thread; the wait can be cancelled, the work cannot."""
        self.enter(True, force=True)
        future: Future[T] = self.engine.writers.submit(work)
        future.add_done_callback(lambda _: self.leave(True))
        return await detached(future)

    @property
    def is_surely_ours(self) -> bool:
        """Whether this process was heard so recently that nobody can have taken the run over."""
        worker = self.engine.worker
        # A process that was declared dead is heard again under another id: that says nothing of the runs it had.
        is_heard = worker.id == self.worker and time.monotonic() - worker.heard < self.engine.liveness.grace
        return self.muted or is_heard

    def confirm(self) -> None:
        """Be heard, if the run is still ours, before a step begins in a process that was frozen.

        To ask alone would not do: the run may be taken over a moment after the answer.
        """
        worker = self.engine.worker
        while not self.is_surely_ours and self.journal.lost is None:  # it may be frozen again meanwhile
            try:
                is_ours = self.journal.insist(
                    "asking whose it is", lambda: worker.holds(self.worker, self.id, self.owner)
                )
            except Exception as error:
                if not self.engine.store.may_heal(error):
                    raise
                is_ours = False  # the process ends, and the database does not answer
            if not is_ours:
                self.journal.abandon()

    def enter(self, leaf: bool, force: bool = False) -> None:
        """A step starts. Raises the signal that stops the run when no new step may start."""
        if not force:
            self.confirm()
        with self._idle:
            if not force and (stop := self.journal.lost or self.closing) is not None:
                raise stop
            if leaf:
                self._in_flight += 1
                self._advanced = self._advanced or not force

    @contextmanager
    def body(self) -> Iterator[None]:
        """A step runs that is made of steps: those may not begin any more at a shutdown, it may come to its end."""
        with self._idle:
            self._bodies += 1
        try:
            yield
        finally:
            with self._idle:
                self._bodies -= 1

    def leave(self, leaf: bool) -> None:
        if leaf:
            with self._idle:
                self._in_flight -= 1
                self._idle.notify_all()

    def flush_soon(self) -> None:
        """Write staged state in a thread: the heartbeat must not wait for it."""
        if self.journal.has_staged and (self._flushing is None or self._flushing.done()):
            self._flushing = self.engine.writers.submit(self.journal.flush_soon)

    # -- stopping

    def stop(self, signal: Stop) -> None:
        """Let no new step start; those in flight finish and are recorded."""
        with self._idle:
            if self.closing is None:
                self.closing = signal

    def abort(self, error: Exception) -> Stop:
        """Fail the run with `error`, even if the framework would handle that: raise what this returns."""
        self.stop(Aborted(error))
        return self.journal.lost or self.closing or Aborted(error)

    def wait(self, questions: dict[str, Any]) -> dict[str, Any]:
        """The answers to these questions; parks the run until all of them are there.

        Args:
            questions: id → what is asked, as the runner's codec takes it.
        """
        known = self.answers
        if all(question in known for question in questions):
            return {question: known[question] for question in questions}
        with self._idle:
            self.asked.update(
                {q: self.runner.codec.encode(v) for q, v in questions.items() if q not in known}
            )
        self.stop(Parked(f"run {self.id!r} waits for {', '.join(questions)}"))
        raise self.closing or Parked()

    @property
    def answers(self) -> dict[str, Any]:
        """Question → answer, over all pauses of the run."""
        return {question: answer for pause in self.pauses for question, answer in pause.answers.items()}

    def _cancel_tasks(self) -> None:
        """The run is lost: unwind what awaits inside it."""
        for loop, task in list(self._tasks):
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._cancel, task)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        if any(task is ours for _, ours in self._tasks):
            self._cancelled.add(task)
            task.cancel()

    @property
    def is_left(self) -> bool:
        """Whether the caller, in whose task the run is driven, was cancelled; the run is neither lost nor stopped."""
        cancelled = any(task.cancelling() > before for task, before in list(self._callers.items()))
        is_ended = self.journal.lost is not None or isinstance(self.closing, CancelRequested)
        return (self._was_left or cancelled) and not is_ended

    def keep(self, task: "asyncio.Task[Any]") -> None:
        """A step goes on in this task after its caller has left; the run is released then, or when its loop ends."""
        entry = (task.get_loop(), task)
        self._tasks.add(entry)
        task.add_done_callback(lambda _: self._tasks.discard(entry))

    def drain(self, *, patiently: bool = True) -> None:
        """Wait for the steps in flight: what they have done is lost unless it is recorded.

        Args:
            patiently: for as long as it takes, unless the process shuts down; else for half a minute at most.
        """
        waited = 0.0
        with self._idle:
            while not self._idle.wait_for(
                lambda: self._in_flight <= 0 or self.journal.lost is not None, _DRAIN_SECONDS
            ):
                waited += _DRAIN_SECONDS
                logger.warning("run %r: steps are still in flight after %.0f s", self.id, waited)
                if not patiently or self.engine.is_closed:
                    return

    # -- driving

    @contextmanager
    def active(self) -> Iterator[None]:
        """Code inside belongs to this run."""
        with having(RUN, self), having(SCOPE, self.top):
            yield

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """The current task drives the run: it is unwound when the run is lost, and missed when its loop ends."""
        task = asyncio.current_task()
        if task is None:
            yield
            return
        entry = (asyncio.get_running_loop(), task)
        self._tasks.add(entry)
        self._callers[task] = task.cancelling()
        try:
            yield
        finally:
            self._tasks.discard(entry)
            self._was_left = self.is_left
            del self._callers[task]
            if task in self._cancelled:  # the cancellation was ours: the task goes on, to tell
                self._cancelled.discard(task)
                task.uncancel()

    def drive(self) -> Any:
        """Run the runner's native loop here; the native result, or the error that decided the run."""
        self.top = Scope()
        if self.closing is not None:
            return settle(self, None)
        try:
            with self.active():
                outcome = self.runner.drive(self)
        except BaseException as error:
            return settle_error(self, error)
        return settle(self, outcome)

    async def adrive(self) -> Any:
        """`drive` for a native loop that is a coroutine; it runs in the caller's task."""
        self.top = Scope()
        if self.closing is not None:
            return await self._in_settler(lambda: settle(self, None))
        try:
            with self._awaited(), self.active():
                outcome = await self.runner.adrive(self)
        except GeneratorExit:
            self.engine.defer(self.release)  # collected, in a thread that may hold any of our locks
            raise
        except BaseException as error:
            return await self._told(error)
        return await self._in_settler(lambda: settle(self, outcome))

    async def _told(self, error: BaseException) -> Any:
        """Settle what the native loop raised. A caller that was cancelled does not wait for long."""
        settling = self.engine.settlers.submit(lambda: settle_error(self, error))
        if isinstance(error, asyncio.CancelledError) and not await self._is_soon_over(settling):
            raise error
        return await detached(settling)

    async def _is_soon_over(self, work: "Future[Any]") -> bool:
        """Whether a thread's work is over before whoever leaves has waited for long."""
        waiting = asyncio.ensure_future(detached(work))
        waiting.add_done_callback(lambda waiting: waiting.cancelled() or waiting.exception())
        await asyncio.wait((waiting,), timeout=_LEAVING_SECONDS)
        return work.done()

    def stream(self, events: Generator[Any, None, Any]) -> Generator[Any, None, None]:
        """Drive a native loop that yields events and returns its outcome, as fast as its consumer asks.

        The consumer's code between two events does not belong to the run. Closing the generator is the native stop:
        the loop is closed and the run ends cancelled.
        """
        self.top = Scope()
        try:
            while True:
                with self.active():
                    try:
                        event = next(events)
                    except StopIteration as end:
                        outcome = end.value
                        break
                yield event
        except GeneratorExit:
            self.stop(CancelRequested(f"run {self.id!r} was stopped by the consumer of its stream"))
            with self.active():
                events.close()
            wait([self.engine.settlers.submit(self._settle_left)], _LEAVING_SECONDS)
            raise
        except BaseException as error:
            settle_error(self, error)
            return
        settle(self, outcome)

    async def astream(
        self, events: AsyncGenerator[Any, None], outcome: Callable[[], Any]
    ) -> AsyncGenerator[Any, None]:
        """`stream` for async generators, which cannot return: `outcome()` is asked when they end.

        A consumer whose task is cancelled only detaches, and any worker goes on with the run.
        """
        self.top = Scope()
        task = asyncio.current_task()
        try:
            with self._awaited():
                while True:
                    with self.active():
                        try:
                            event = await anext(events)
                        except StopAsyncIteration:
                            break
                    yield event
        except GeneratorExit:
            detached = task is not None and task.cancelling()
            stopped = CancelRequested(f"run {self.id!r} was stopped by the consumer of its stream")
            self.stop(Released() if detached else stopped)
            with self.active():
                await events.aclose()
            # In a thread: what is still in flight can only come to its end on this loop.
            await self._is_soon_over(self.engine.settlers.submit(self._settle_left))
            raise
        except BaseException as error:
            await self._told(error)
            return
        with self.active():
            result = outcome()
        await self._in_settler(lambda: settle(self, result))

    def _settle_left(self) -> None:
        """The consumer of the stream has left; nobody hears of the outcome, or of what was in flight."""
        with suppress(RunCancelled, Stop):
            settle(self, None)

    async def _in_settler(self, work: Callable[[], Any]) -> Any:
        """Settle in a thread. A cancelled caller detaches; what was begun is written all the same."""
        future: Future[Any] = self.engine.settlers.submit(work)
        return await detached(future)

    def release(self) -> None:
        """Hand the run back, so that any worker goes on with it."""
        self.engine.forget(self)
        self.journal.hurry()
        with suppress(Stop):
            self.journal.flush()  # state of finished steps need not be made again
        self.journal.abandon()
        # A shutdown in the middle of a long step is no sign that the run stops its workers.
        counted = self.journal.has_recorded or not self.engine.is_closed
        self.engine.release(self.id, self.owner, counted=counted)
