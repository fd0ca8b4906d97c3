"""One claim of a run in this process: what a runner's loop works with, and how it ends.

The run's own state decides what happened, not the exception that arrives: frameworks swallow our signals, and task
groups wrap them.
"""

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from . import failure
from .codec import Codec, dumps
from .context import RUN, SCOPE, Scope
from .errors import (
    Aborted,
    CancelRequested,
    EncodingError,
    OwnershipLost,
    Parked,
    Released,
    RunCancelled,
    RunWaiting,
    Stop,
)
from .journal import Journal
from .log import logger
from .record import ANSWER, CLOSE, OPEN, WAIT, Draft, Record
from .store import Statement

if TYPE_CHECKING:
    from .engine import Engine
    from .runner import Runner

T = TypeVar("T")
_DRAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Pause:
    """A runner's loop stopped to wait for people.

    Args:
        questions: id → what is asked, as JSON data.
        state: JSON data the runner wants back when the next segment starts.
        result: what the native verb returns for an interrupted run; not stored.
    """

    questions: dict[str, Any]
    state: Any = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """A pause as it was recorded, and the answers given to it so far."""

    number: int
    questions: dict[str, Any]
    state: Any
    answers: dict[str, Any] = field(default_factory=dict)


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
        self._tasks: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()
        self._cancelled: set[asyncio.Task[Any]] = set()
        self.closing: Stop | None = None
        self._advanced = False
        self.memory: dict[str, Any] = {}
        self.served = 0
        self.journal = Journal(
            engine.store,
            run_id,
            owner=owner,
            worker=engine.worker.id,
            epoch=epoch,
            on_lost=self._cancel_tasks,
        )
        self.owner = owner
        opening = json.loads(str(self.journal.records(OPEN)[0].payload))
        self.input: Any = opening["input"]
        self.thread: str | None = opening["thread"]
        self._digest_key = str(opening["digest_key"]).encode()
        self.pauses = read_pauses(self.journal.known.values(), runner.codec)
        self.asked: dict[str, Any] = {}
        self.top = Scope()

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
        return await asyncio.shield(asyncio.wrap_future(future))

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
        """The answers to these questions; parks the run until all of them are there."""
        known = self.answers
        if all(question in known for question in questions):
            return {question: known[question] for question in questions}
        with self._idle:
            self.asked.update({q: asked for q, asked in questions.items() if q not in known})
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

    def _take_back_cancel(self, task: asyncio.Task[Any] | None) -> None:
        """The cancellation was ours and has arrived; its task goes on, to say what became of the run."""
        if task in self._cancelled and task is not None:
            self._cancelled.discard(task)
            task.uncancel()

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
            RUN.reset(run)
            SCOPE.reset(scope)

    @contextmanager
    def _driving(self) -> Iterator[None]:
        """Code inside is the runner's loop, from its start."""
        self.top = Scope()
        with self.active():
            yield

    def drive(self) -> Any:
        """Run the runner's native loop here; the native result, or the error that decided the run."""
        outcome: Any = None
        try:
            with self._driving():
                outcome = self.runner.drive(self)
        except BaseException as error:
            return self._settle_error(error)
        return self._settle(outcome)

    async def adrive(self) -> Any:
        """`drive` for a native loop that is a coroutine; it runs in the caller's task."""
        task = asyncio.current_task()
        entry = (asyncio.get_running_loop(), task) if task is not None else None
        if entry:
            self._tasks.add(entry)
        try:
            with self._driving():
                outcome = await self.runner.adrive(self)
        except GeneratorExit:
            self.release()  # the loop has ended under us: nothing can be awaited any more
            raise
        except BaseException as error:
            caught = error
            self._take_back_cancel(task)
            return await self._settled(lambda: self._settle_error(caught))
        finally:
            if entry:
                self._tasks.discard(entry)
        return await self._settled(lambda: self._settle(outcome))

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
        entry = (asyncio.get_running_loop(), task) if task is not None else None
        if entry:
            self._tasks.add(entry)
        try:
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
            self._take_back_cancel(task)
            await self._settled(lambda: self._settle_error(caught))
            return
        finally:
            if entry:
                self._tasks.discard(entry)
        with self.active():
            result = outcome()
        await self._settled(lambda: self._settle(result))

    async def _settled(self, settle: Any) -> Any:
        """Settle in a thread. A cancelled caller detaches; what was begun is written all the same."""
        future: Future[Any] = self.engine.settlers.submit(settle)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _settle_error(self, error: BaseException) -> Any:
        if self.journal.lost is not None or self.closing is not None:
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

    def _fail(self, error: Exception) -> NoReturn:
        self._close("ERROR", "error", dumps(failure.encode(error)), f"{type(error).__name__}: {error}")
        raise error

    def _settle(self, outcome: Any) -> Any:
        if isinstance(self.closing, Parked):
            outcome = Pause(self.asked)
        elif self.closing is not None:
            return self._settle_stop(self.closing)
        if self.journal.lost is not None:
            raise self._lost()
        if isinstance(outcome, Pause):
            self._drain()
            return self._park(outcome)
        self._drain()
        try:
            payload, status = dumps(self.runner.encode_result(self, outcome)), ""
        except EncodingError as reason:
            payload, status = dumps({"reason": str(reason)}), "opaque"
        self._close("SUCCESS", status, payload)
        return outcome

    def _settle_stop(self, signal: Stop) -> Any:
        self._drain()
        if self.journal.lost is not None:
            raise self._lost()
        if isinstance(signal, CancelRequested):
            self._close("CANCELLED", "cancelled", "null")
            raise RunCancelled(f"run {self.id!r} was cancelled")
        if isinstance(signal, Aborted):
            self._fail(signal.error)
        self.release()
        raise signal

    def _lost(self) -> BaseException:
        """What to tell the caller of a run that is no longer ours: its real end may be known."""
        self.engine.forget(self)
        return self.journal.lost or OwnershipLost(self.id)

    def _close(self, status: str, record_status: str, payload: str, error: str = "") -> None:
        try:
            self.journal.close(Draft(CLOSE, CLOSE, payload, status=record_status), status, error)
        finally:
            self.engine.forget(self)

    def _park(self, pause: Pause) -> Any:
        number = len(self.pauses) + 1
        payload = dumps({"questions": pause.questions, "state": pause.state})
        try:
            self.journal.park(Draft(WAIT, f"{WAIT}:{number}", payload))
        finally:
            self.engine.forget(self)
        if isinstance(self.closing, Parked):
            raise RunWaiting(self.id, pause.questions)
        return pause.result

    def release(self) -> None:
        """Hand the run back, so that any worker goes on with it."""
        self.engine.forget(self)
        with suppress(Stop):
            self.journal.flush()  # state of finished steps need not be made again
        self.journal.abandon()
        self.engine.release(self.id, self.owner)


def read_pauses(records: Iterable[Record], codec: Codec) -> list[Question]:
    """The pauses among a run's records, each with the answers it got."""
    found: dict[int, Question] = {}
    for record in records:
        if record.kind == WAIT:
            data, number = record.value(), len(found) + 1
            found[number] = Question(number, data["questions"], data["state"])
        elif record.kind == ANSWER and found:
            found[len(found)].answers.update(codec.decode(record.value()))
    return list(found.values())
