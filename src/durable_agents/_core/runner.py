"""The base of every runner: its name, its verbs' way into a run, and what an integration must provide."""

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from . import engine
from .answer import answer
from .codec import JSON, Codec
from .context import RUN
from .engine import RUNNERS
from .errors import (
    ConfigurationError,
    NotRecoverable,
    NotSupported,
    OwnershipLost,
    Released,
    RunNotFound,
    RunReleased,
    RunWaiting,
    ThreadBusy,
)
from .execution import Execution
from .journal import load
from .opening import Request, open_run
from .pause import Question, read_pauses
from .run import Run
from .store import Store, runs
from .threads import detached

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Rest:
    """A run that is over or waits; `state` is its status."""

    id: str
    state: str


class Runner:
    """The durable wrapper of one agent object.

    An integration subclasses it and says how to run the framework's own loop once, for the input and the answers of an
    `Execution`. The verbs it offers end in `call`, `acall` and `submit`.

    Args:
        name: the runner's name, without the framework; unique in the process, and the same after a restart.
    """

    framework: ClassVar[str]
    signals: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions the framework steers with; they are no failures and are never recorded."""

    def __init__(self, name: str, codec: Codec = JSON) -> None:
        self.name = f"{self.framework}.{name}"
        self.codec = codec
        if RUNNERS.setdefault(self.name, self) is not self:
            raise ConfigurationError(
                f"there is a runner named {self.name!r} in this process already; make each runner once, at import, "
                f"and give the second one another name="
            )
        if (running := engine.launched()) is not None:
            try:
                self.attach(running.store)
            except BaseException:
                del RUNNERS[self.name]  # it cannot be used, and its name is free again
                raise
            running.wake()

    # -- what an integration provides

    def attach(self, store: Store) -> None:
        """Make ready for this database: create own tables."""

    def is_async(self, execution: Execution) -> bool:
        """Whether a queued or recovered run is driven by `adrive`, on the home loop."""
        raise NotImplementedError

    def drive(self, execution: Execution) -> Any:
        """Run the native loop once; its result, or a `Pause`."""
        raise NotImplementedError

    async def adrive(self, execution: Execution) -> Any:
        raise NotImplementedError

    def encode_result(self, execution: Execution, result: Any) -> Any:
        """The native result as JSON data; `EncodingError` when it has none."""
        return self.codec.encode(result)

    def decode_result(self, data: Any) -> Any:
        return self.codec.decode(data)

    def paused_result(self, run_id: str, request: Any, pause: Question) -> Any:
        """What the native verb returns for a run that waits, given its recorded input and pause."""
        raise RunWaiting(run_id, pause.questions)

    # -- the verbs' way into a run

    def call(self, request: Request, run_id: str | None = None) -> Any:
        """Start the run and drive it here, or attach to it; the native result.

        Raises:
            RunReleased: this process shuts down; any worker goes on with the run.
        """
        entry = _Entry(self, request, run_id or new_id())
        while True:
            found = self._enter(entry)
            if isinstance(found, Rest):
                return self._attached(found)
            try:
                return found.drive()
            except OwnershipLost:
                continue  # somebody else has it: wait for that, or take it again
            except Released as released:
                raise RunReleased(str(released)) from None

    async def acall(self, request: Request, run_id: str | None = None) -> Any:
        """`call` whose native loop is a coroutine: it runs in the caller's task."""
        entry = _Entry(self, request, run_id or new_id())
        while True:
            found = await self._aenter(entry)
            if isinstance(found, Rest):
                return await asyncio.to_thread(self._attached, found)
            try:
                return await found.adrive()
            except OwnershipLost:
                continue
            except Released as released:
                raise RunReleased(str(released)) from None

    def stream_call(
        self, request: Request, run_id: str | None, events: Callable[[Execution], Generator[Any, None, Any]]
    ) -> Generator[Any, None, None]:
        """Start the run and drive it as fast as the consumer asks for `events`, which return its outcome."""
        found = self._enter(_Entry(self, request, run_id or new_id()))
        if isinstance(found, Rest):
            raise self._no_stream(found)
        try:
            yield from found.stream(events(found))
        except (OwnershipLost, Released) as stop:
            raise RunReleased(str(stop)) from None

    async def astream_call(
        self,
        request: Request,
        run_id: str | None,
        events: Callable[[Execution], AsyncGenerator[Any, None]],
        outcome: Callable[[Execution], Any],
    ) -> AsyncGenerator[Any, None]:
        """`stream_call` for async generators; `outcome` is asked when they end."""
        found = await self._aenter(_Entry(self, request, run_id or new_id()))
        if isinstance(found, Rest):
            raise self._no_stream(found)
        stream = found.astream(events(found), lambda: outcome(found))
        try:
            async for event in stream:
                yield event
        except (OwnershipLost, Released) as stop:
            raise RunReleased(str(stop)) from None
        finally:
            await stream.aclose()

    @staticmethod
    def _no_stream(run: "Rest") -> NotSupported:
        return NotSupported(
            f"run {run.id!r} is {run.state} already, and its events cannot be streamed again yet; "
            f"use durable_agents.runs.get({run.id!r}).result()"
        )

    def submit(self, request: Request, run_id: str | None = None) -> Run:
        """Queue the run for any worker that has this runner."""
        if not request.recoverable:
            raise NotRecoverable(
                f"start() hands the run to any process, and {', '.join(request.live_names)} exists only in this one"
            )
        running, run_id = engine.current(), run_id or new_id()
        open_run(running.store, self.name, request, run_id, None)
        running.wake()
        return Run(run_id)

    def waiting_run(self, thread: str) -> tuple[str, Question] | None:
        """The run of this runner that waits on this thread, and its open pause."""
        store = engine.current().store
        row = runs.waiting_on(store, self.name, thread)
        if row is None:
            return None
        return row.id, read_pauses(load(row.id, runs.records(store, row.id)), self.codec)[-1]

    def _enter(self, entry: "_Entry") -> "Execution | Rest":
        """The caller's way into a run: an execution to drive, or a run that has come to rest."""
        try:
            while (found := entry.attempt()) is None:
                time.sleep(_POLL_SECONDS)
        except BaseException:
            entry.give_up()
            raise
        return found

    async def _aenter(self, entry: "_Entry") -> "Execution | Rest":
        entry.loop = asyncio.get_running_loop()
        while True:
            # The attempt goes on when its caller is cancelled: then what it took must be given back.
            attempt = engine.current().settlers.submit(entry.attempt)
            try:
                found = await detached(attempt)
                if found is not None:
                    return found
                await asyncio.sleep(_POLL_SECONDS)
            except GeneratorExit:  # collected, in a thread that may hold any of our locks
                entry.engine.defer(partial(attempt.add_done_callback, entry.hand_back))
                raise
            except BaseException:
                attempt.add_done_callback(entry.hand_back)
                raise

    def _attached(self, run: "Rest") -> Any:
        """What the verb returns for a run that somebody else has driven to its end or its pause."""
        if run.state != "waiting":
            return Run(run.id).result()
        records = load(run.id, runs.records(engine.current().store, run.id))
        return self.paused_result(run.id, records[0].value()["input"], read_pauses(records, self.codec)[-1])


class _Entry:
    """The caller's way into one run, tried until it is ours to drive or has come to rest."""

    def __init__(self, runner: Runner, request: Request, run_id: str) -> None:
        self._runner, self._request, self._id = runner, request, run_id
        self.engine = engine.current()
        self._opened = self._reserved = False
        self.loop: asyncio.AbstractEventLoop | None = None
        run = RUN.get()
        if (
            run is not None
            and run.runner is runner
            and request.thread is not None
            and run.thread == request.thread
        ):
            raise ThreadBusy(
                f"run {run.id!r} calls its own runner on its own thread {run.thread!r}, and would wait for itself; "
                f"use another thread, or start() for a run after this one"
            )

    def _open(self) -> tuple[bool, str | None]:
        """Insert the run, or give the waiting one its answer; a token when this caller drives it."""
        request, store, worker = self._request, self.engine.store, self.engine.worker.id
        if request.answers is None:
            return open_run(store, self._runner.name, request, self._id, worker)
        return False, answer(store, self._runner.codec, self._id, request.answers, worker)

    def attempt(self) -> "Execution | Rest | None":
        """An execution to drive, a run that is over or waits, or None: not yet."""
        running = self.engine
        if running.is_closed:
            raise RunReleased(
                f"run {self._id!r} goes on elsewhere: this process called shutdown() while it waited"
            )
        if not self._opened:
            new, token = self._open()
            self._opened = True
            if token is not None:
                return running.take(self._runner, self._id, token, self._request.live)
            if new:
                self._reserved = True
                running.await_turn(self)
        row = runs.get(running.store, self._id)
        if row is None:
            raise RunNotFound(f"run {self._id!r} is gone: it was deleted while this call waited for it")
        if row.over or row.state == "waiting":
            running.turn_over(self)
            return Rest(self._id, row.state)
        if row.status == "ENQUEUED":
            claimed = runs.claim(running.store, running.worker.id, [self._runner.name], 1, only=self._id)
            if claimed:
                self._reserved = False
                running.turn_over(self)
                return running.take(self._runner, self._id, claimed[0][2], self._request.live)
        return None

    @property
    def is_orphaned(self) -> bool:
        return self.loop is not None and self.loop.is_closed()

    def give_up(self) -> None:
        """The caller is gone before its turn came: any worker may take the run."""
        self.engine.turn_over(self)
        if self._reserved and not self.engine.is_closed:
            runs.unreserve(self.engine.store, self._id, self.engine.worker.id)
            self.engine.wake()

    def hand_back(self, attempt: "Future[Execution | Rest | None]") -> None:
        """The caller was cancelled during an attempt: release what it took."""
        if attempt.exception() is None and isinstance(found := attempt.result(), Execution):
            found.release()
        self.give_up()


def new_id() -> str:
    return uuid.uuid4().hex


def default_name(object_name: str) -> str:
    """`<module or script>.<object>` of the code that makes the runner: the same after a restart."""
    frame = sys._getframe(1)
    package = __name__.split(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == package:
        frame = frame.f_back
    module = str(frame.f_globals.get("__name__", "main"))
    if module == "__main__":
        module = Path(str(frame.f_globals.get("__file__", "main"))).stem
    return f"{module.rsplit('.', 1)[-1]}.{object_name}"
