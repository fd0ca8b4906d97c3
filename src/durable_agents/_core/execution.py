"""One claim of a run in this process: what a runner's loop works with, and how it ends.

The run's own state decides what happened, not the exception that arrives: frameworks swallow our signals, and task
groups wrap them.
"""

import asyncio
import hashlib
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from . import failure
from .codec import dumps
from .context import RUN, SCOPE, Scope
from .errors import (
    Aborted,
    CancelRequested,
    EncodingError,
    NotRecoverable,
    Parked,
    Released,
    RunCancelled,
    RunWaiting,
    Stop,
)
from .journal import Journal
from .log import logger
from .pause import Pause, read_pauses
from .record import CLOSE, OPEN, WAIT, Draft, Record
from .store import Statement
from .threads import detached

if TYPE_CHECKING:
    from .engine import Engine
    from .runner import Runner

T = TypeVar("T")
_DRAIN_SECONDS = 30.0
# A run that kills or stops its worker each time would otherwise go round for ever.
_FRUITLESS_CLAIMS = 15


class Execution:
    """A run that this process owns.

    `input`, `thread`, `pauses` and `answers` are what was recorded; `live` is what only the calling process has, None
    after a recovery; `memory` is the runner's own, for the time it drives.
    """

    def __init__(
        self, engine: "Engine", runner: "Runner", run_id: str, owner: str, epoch: int, live: Any = None
    ) -> None:
        self.engine, self.runner, self.id, self.live = engine, runner, run_id, live
        self._idle = threading.Condition()
        self._in_flight = 0
        self._settling = False
        self._tasks: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()
        self._cancelled: set[asyncio.Task[Any]] = set()
        self.closing: Stop | None = None
        self._advanced = False
        self._flushing: Future[None] | None = None
        self.memory: dict[str, Any] = {}
        self.journal = Journal(
            engine.store,
            run_id,
            owner=owner,
            worker=engine.worker.id,
            epoch=epoch,
            on_lost=self._cancel_tasks,
        )
        self.owner = owner
        opening = self.journal.records(OPEN)[0].value()
        self.input: Any = opening["input"]
        self.incidental: Any = opening["incidental"]
        self.thread: str | None = opening["thread"]
        self._digest_key = str(opening["digest_key"]).encode()
        self.pauses = read_pauses(self.journal.known.values(), runner.codec)
        self.asked: dict[str, Any] = {}
        self.top = Scope()
        fruitless = epoch - self.journal.last_epoch
        if fruitless > _FRUITLESS_CLAIMS:
            why = f"run {run_id!r} was claimed {fruitless} times without a new record; the workers' logs say why"
            self.stop(Aborted(NotRecoverable(why)))

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
    def is_here(self) -> bool:
        """Whether the calling thread's running event loop drives the run."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return False
        return any(loop is here for loop, _ in list(self._tasks))

    @property
    def is_busy(self) -> bool:
        """Whether a step is in flight, or the outcome is being written."""
        return self._in_flight > 0 or self._settling

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

    def enter(self, leaf: bool, force: bool = False) -> None:
        """A step starts. Raises the signal that stops the run when no new step may start."""
        with self._idle:
            if not force and (stop := self.journal.lost or self.closing) is not None:
                raise stop
            if leaf:
                self._in_flight += 1
                self._advanced = self._advanced or not force

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

    def _drain(self) -> None:
        with self._idle:
            if not self._idle.wait_for(
                lambda: self._in_flight <= 0 or self.journal.lost is not None, _DRAIN_SECONDS
            ):
                logger.warning("run %r: steps are still in flight after %s s", self.id, _DRAIN_SECONDS)

    # -- driving

    @contextmanager
    def active(self) -> Iterator[None]:
        """Code inside belongs to this run."""
        run, scope = RUN.set(self), SCOPE.set(self.top)
        try:
            yield
        finally:
            with suppress(ValueError):  # a coroutine that is collected ends in another context
                RUN.reset(run)
                SCOPE.reset(scope)

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """The current task drives the run: it is unwound when the run is lost, and missed when its loop ends."""
        task = asyncio.current_task()
        if task is None:
            yield
            return
        entry = (asyncio.get_running_loop(), task)
        self._tasks.add(entry)
        try:
            yield
        finally:
            self._tasks.discard(entry)
            if task in self._cancelled:  # the cancellation was ours: the task goes on, to tell
                self._cancelled.discard(task)
                task.uncancel()

    def drive(self) -> Any:
        """Run the runner's native loop here; the native result, or the error that decided the run."""
        self.top = Scope()
        if self.closing is not None:
            return self._settle(None)
        try:
            with self.active():
                outcome = self.runner.drive(self)
        except BaseException as error:
            return self._settle_error(error)
        return self._settle(outcome)

    async def adrive(self) -> Any:
        """`drive` for a native loop that is a coroutine; it runs in the caller's task."""
        self.top = Scope()
        if self.closing is not None:
            return await self._in_settler(lambda: self._settle(None))
        try:
            with self._awaited(), self.active():
                outcome = await self.runner.adrive(self)
        except GeneratorExit:
            self.engine.defer(self.release)  # collected, in a thread that may hold any of our locks
            raise
        except BaseException as error:
            caught = error
            return await self._in_settler(lambda: self._settle_error(caught))
        return await self._in_settler(lambda: self._settle(outcome))

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
            with suppress(RunCancelled):
                self._settle(None)
            raise
        except BaseException as error:
            self._settle_error(error)
            return
        self._settle(outcome)

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
            with suppress(RunCancelled, Released):
                self._settle(None)
            raise
        except BaseException as error:
            caught = error
            await self._in_settler(lambda: self._settle_error(caught))
            return
        with self.active():
            result = outcome()
        await self._in_settler(lambda: self._settle(result))

    async def _in_settler(self, settle: Callable[[], Any]) -> Any:
        """Settle in a thread. A cancelled caller detaches; what was begun is written all the same."""
        future: Future[Any] = self.engine.settlers.submit(settle)
        return await detached(future)

    # -- settling: what became of the run

    def _settle_error(self, error: BaseException) -> Any:
        self._settling = True
        interrupted = not isinstance(error, (Exception, Stop, asyncio.CancelledError))
        if self.closing is not None or (self.journal.lost is not None and not interrupted):
            return self._settle(None)
        if isinstance(error, Exception):
            self.stop(Released())
            self._drain()
            self._fail(error)
        if not isinstance(error, asyncio.CancelledError):
            self.engine.shun(self.id)  # KeyboardInterrupt, SystemExit: not here
        self.stop(Released())
        self._drain()
        self.release()
        raise error

    def _settle(self, outcome: Any) -> Any:
        self._settling = True
        why = self.closing
        if isinstance(why, Parked):
            outcome = Pause(self.asked)
        elif why is None:
            self.stop(Released(f"run {self.id!r} is over"))  # nothing that was left running may start a step
        self._drain()
        if self.journal.lost is not None:
            self.engine.forget(self)
            raise self.journal.lost
        if why is not None and not isinstance(why, Parked):
            return self._settle_stop(why)
        if isinstance(outcome, Pause):
            self._park(outcome)
            if isinstance(why, Parked):
                raise RunWaiting(self.id, outcome.questions)
            return outcome.result
        self._close("SUCCESS", *self._encoded(outcome))
        return outcome

    def _settle_stop(self, why: Stop) -> Any:
        if isinstance(why, CancelRequested):
            self._close("CANCELLED", "cancelled", "null")
            raise RunCancelled(f"run {self.id!r} was cancelled")
        if isinstance(why, Aborted):
            self._fail(why.error)
        self.release()
        raise why

    def _encoded(self, outcome: Any) -> tuple[str, str]:
        """The status and payload of the close record of a run that succeeded."""
        try:
            return "", dumps(self.runner.encode_result(self, outcome))
        except Exception as reason:
            logger.warning("run %r: its result is not stored: %s", self.id, reason)
            return "opaque", dumps({"reason": failure.text(reason)})

    def _fail(self, error: Exception) -> NoReturn:
        payload = dumps(failure.encode(error))
        self._close("ERROR", "error", payload, f"{type(error).__name__}: {failure.text(error)}")
        raise error

    def _close(self, status: str, record_status: str, payload: str, error: str = "") -> None:
        try:
            self.journal.close(Draft(CLOSE, CLOSE, payload, status=record_status), status, error)
        finally:
            self.engine.forget(self)

    def _park(self, pause: Pause) -> None:
        try:
            payload = dumps({"questions": pause.questions, "state": pause.state})
        except (TypeError, ValueError) as error:
            self._fail(EncodingError(f"the questions of run {self.id!r} cannot be recorded: {error}"))
        try:
            parked = self.journal.park(Draft(WAIT, f"{WAIT}:{len(self.pauses) + 1}", payload))
        finally:
            self.engine.forget(self)
        if not parked:
            raise RunCancelled(f"run {self.id!r} was cancelled")

    def release(self) -> None:
        """Hand the run back, so that any worker goes on with it."""
        self.engine.forget(self)
        self.journal.hurry()
        with suppress(Stop):
            self.journal.flush()  # state of finished steps need not be made again
        self.journal.abandon()
        self.engine.release(self.id, self.owner)
