"""The base of every runner: its name, its verbs' way into a run, and what an integration must provide."""

import asyncio
import hashlib
import json
import secrets
import sys
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

from . import engine
from .codec import JSON, Codec, dumps
from .context import RUN, SCOPE, acting, escape, scope
from .engine import RUNNERS
from .entry import Entry, Rest
from .errors import (
    ConfigurationError,
    DatabaseUnavailable,
    NotRecoverable,
    NotSupported,
    OwnershipLost,
    Released,
    RunReleased,
    RunWaiting,
    ThreadBusy,
)
from .execution import Execution
from .journal import load
from .opening import Request, open_run, version_of
from .pause import Question, read_pauses
from .run import Run
from .store import Store, runs

Restore = Callable[[Run], Mapping[str, Any]]
OnCodeChange = Literal["wait", "continue"]


class Options(TypedDict, total=False):
    """The options that every runner has: see `Runner`."""

    at_most_once: Collection[str]
    restore: Restore | None
    on_code_change: OnCodeChange


class Runner:
    """The durable wrapper of one agent object.

    An integration subclasses it and says how to run the framework's own loop once, for the input and the answers of an
    `Execution`. The verbs it offers end in `call`, `acall` and `submit`. When `__init__` returns, the process's worker
    may be driving a run of it already: what a subclass needs for that it sets before it calls this one's.

    Args:
        name: the runner's name, without the framework; unique in the process, and the same after a restart.
        codec: the framework's objects as JSON.
        at_most_once: names of tools that are not run again when a crash has left their outcome unknown: the run waits,
            and somebody says what became of them.
        restore: gives back the live arguments of a run that goes on without its caller: `restore(run)` returns a
            mapping of their names. Without it such a run fails with `NotRecoverable`, and cannot be started.
        on_code_change: what becomes of a run that began under code of another structure: "wait" for a worker that has
            that code, or "continue" under this one.
    """

    framework: ClassVar[str]
    keeps_events: ClassVar[bool] = False
    """Whether runs of this runner emit events, for `Run.stream`."""
    streams_results: ClassVar[bool] = False
    """Whether a result is the sequence of what its stream verbs yield: then those attach to a run that is over."""
    signals: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions the framework steers with; they are no failures and are never recorded."""

    def __init__(
        self,
        name: str,
        codec: Codec = JSON,
        *,
        at_most_once: Collection[str] = (),
        restore: Restore | None = None,
        on_code_change: OnCodeChange = "wait",
    ) -> None:
        if isinstance(at_most_once, str):
            raise ConfigurationError(f"at_most_once is a set of tool names: {{{at_most_once!r}}}")
        if on_code_change not in ("wait", "continue"):
            raise ConfigurationError(f'on_code_change is "wait" or "continue", not {on_code_change!r}')
        self.name = f"{self.framework}.{name}"
        self.codec = codec
        self.at_most_once, self.restore, self.on_code_change = (
            frozenset(at_most_once),
            restore,
            on_code_change,
        )
        self._code: dict[str, Any] | None = None
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

    def fingerprint(self) -> dict[str, Any]:
        """What the agent consists of, by name, as JSON data: what must be the same for a run to go on over its records.

        Structure only: a run must go on after a bug in a function was mended.
        """
        return {}

    def misfit(self, execution: Execution, then: Mapping[str, Any]) -> str | None:
        """Why a run that began under the fingerprint `then` cannot go on under this code even when it is told to."""
        return None

    def check_answer(self, asked: Any, answer: Any) -> None:
        """Raise `ConfigurationError` for an answer with which the framework could not go on; any is taken here.

        Args:
            asked: what the question asks, as JSON data.
        """

    def check_fork(self, run_id: str) -> None:
        """Raise `NotSupported` when this run's framework state cannot be forked."""

    def nested(self, request: Request) -> Any:
        """Run the native loop as a part of the run that calls it."""
        raise NotImplementedError

    async def anested(self, request: Request) -> Any:
        raise NotImplementedError

    def encode_result(self, execution: Execution, result: Any) -> Any:
        """The native result as JSON data; `EncodingError` when it has none."""
        return self.codec.encode(result)

    def decode_result(self, data: Any) -> Any:
        return self.codec.decode(data)

    def paused_result(self, run_id: str, request: Any, pause: Question) -> Any:
        """What the native verb returns for a run that waits, given its recorded input and pause."""
        raise RunWaiting(run_id, pause.questions)

    @property
    def code(self) -> dict[str, Any]:
        """The fingerprint as it is recorded."""
        if self._code is None:
            self._code = json.loads(dumps(self.fingerprint()))
        return self._code

    @property
    def takes(self) -> str | None:
        """The version of the runs that workers take; None for any."""
        return None if self.on_code_change == "continue" or not self.code else version_of(self.code)

    # -- the verbs' way into a run

    @contextmanager
    def as_part(self, run_id: str | None) -> Iterator[None]:
        """Code inside is this runner's, called inside another one's run: its steps have a scope, its options hold."""
        with scope(self._segment(run_id)), acting(self):
            yield

    def call(self, request: Request, run_id: str | None = None) -> Any:
        """Start the run and drive it here, or attach to it; the native result. Inside a run: a part of that.

        Raises:
            RunReleased: this process shuts down; any worker goes on with the run.
        """
        if (run := RUN.get()) is not None:
            self._check_own_thread(run, request)
            with self.as_part(run_id):
                return self.nested(request)
        entry = Entry(self, request, _given(run_id))
        while True:
            found = entry.enter()
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
        if (run := RUN.get()) is not None:
            self._check_own_thread(run, request)
            with self.as_part(run_id):
                return await self.anested(request)
        entry = Entry(self, request, _given(run_id))
        while True:
            found = await entry.aenter()
            if isinstance(found, Rest):
                return await asyncio.to_thread(self._attached, found)
            try:
                return await found.adrive()
            except OwnershipLost:
                continue
            except Released as released:
                raise RunReleased(str(released)) from None

    def call_home(self, request: Request, run_id: str | None = None) -> Any:
        """`acall` for a sync verb: the native loop runs on the home loop, as it does when the run is recovered.

        Raises:
            ConfigurationError: called on an event loop, which would wait for itself.
        """
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigurationError(
                "a sync verb cannot be called while an event loop runs: await the async one"
            )
        if run_id is None and RUN.get() is None:
            run_id = new_id()
        return engine.current().run_home(self.acall(request, run_id), run_id)

    def stream_call(
        self, request: Request, run_id: str | None, events: Callable[[Execution], Generator[Any, None, Any]]
    ) -> Generator[Any, None, None]:
        """Start the run and drive it as fast as the consumer asks for `events`, which return its outcome."""
        found = Entry(self, request, _given(run_id)).enter()
        if isinstance(found, Rest):
            yield from self._streamed_again(found)
            return
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
        found = await Entry(self, request, _given(run_id)).aenter()
        if isinstance(found, Rest):
            for event in await asyncio.to_thread(self._streamed_again, found):
                yield event
            return
        stream = found.astream(events(found), lambda: outcome(found))
        try:
            async for event in stream:
                yield event
        except (OwnershipLost, Released) as stop:
            raise RunReleased(str(stop)) from None
        finally:
            await stream.aclose()

    def _streamed_again(self, run: Rest) -> Iterable[Any]:
        """What a stream verb yields for a run that somebody else has driven to its end or its pause."""
        if self.streams_results or run.state in ("failed", "cancelled"):
            return self._attached(run)  # type: ignore[no-any-return]
        raise NotSupported(
            f"run {run.id!r} is {run.state} already, and its events cannot be streamed again yet; "
            f"use durable_agents.runs.get({run.id!r}).result()"
        )

    def submit(self, request: Request, run_id: str | None = None) -> Run:
        """Queue the run for any worker that has this runner."""
        return self.submit_all([request], [run_id])[0]

    def submit_all(self, requests: Sequence[Request], run_ids: Sequence[str | None]) -> list[Run]:
        """`submit` for many."""
        for request in requests:
            if not request.recoverable and self.restore is None:
                raise NotRecoverable(
                    f"start() hands the run to any process, and {', '.join(request.live_names)} exists only in this "
                    f"one; pass plain data, allow the types with types=[…], or give the runner restore=fn(run)"
                )
        running = engine.current()
        started = []
        for request, given in zip(requests, run_ids, strict=True):
            run_id = self.fresh_id(request.input) if given is None else given
            self._submit(running, request, run_id)
            started.append(Run(run_id))
        running.wake()
        return started

    def _submit(self, running: engine.Engine, request: Request, run_id: str) -> None:
        parent, store = RUN.get(), running.store
        by = parent.id if parent is not None else None

        def work() -> None:
            open_run(store, self.name, request, run_id, None, code=self.code, parent=by)

        if parent is not None:
            parent.journal.insist(f"starting the run {run_id!r}", work)
            return
        try:
            work()
        except Exception as error:
            if not store.may_heal(error):
                raise
            raise DatabaseUnavailable(
                f"run {run_id!r} could not be queued: {store.shown} cannot be used ({error}). Call again with the same "
                f"run_id: if it was queued after all, nothing happens twice"
            ) from error

    def fresh_id(self, input: Any) -> str:
        """The id of a new run. One that another run starts has the same in every replay, so that it is started once.

        Args:
            input: the new run's, as JSON data: it tells those apart that parallel threads and tasks start.
        """
        if (parent := RUN.get()) is None:
            return new_id()
        above = SCOPE.get() or parent.top
        segment = f"start:{escape(self.name)}"
        if not above.is_ours:
            segment = f"{segment}:{parent.digest(dumps(input))[:12]}"
        path = above.child_key(above.use(segment))
        return f"{parent.id[:180]}-{hashlib.sha256(f'{parent.id}{chr(0)}{path}'.encode()).hexdigest()[:12]}"

    def _segment(self, run_id: str | None) -> str:
        """The scope of a run inside a run; an id tells it from others, as it would outside."""
        return ":".join(escape(part) for part in ("run", self.name, run_id or "") if part)

    def _check_own_thread(self, run: Execution, request: Request) -> None:
        if run.runner is self and request.thread is not None and run.thread == request.thread:
            raise ThreadBusy(
                f"run {run.id!r} calls its own runner on its own thread {run.thread!r}, and would wait for itself; "
                f"use another thread, or start() for a run after this one"
            )

    def pauses_of(self, run_id: str) -> list[Question]:
        """The pauses of a run, each with the answers it got; none for a run that does not exist."""
        return read_pauses(load(run_id, runs.records(engine.current().store, run_id)), self.codec)

    def waiting_run(self, thread: str) -> tuple[str, Question] | None:
        """The run of this runner that waits on this thread, and its open pause.

        Raises:
            RunWaiting: it does not wait for what the framework asks, but for the outcome of a tool.
        """
        row = runs.waiting_on(engine.current().store, self.name, thread)
        if row is None:
            return None
        pause = self.pauses_of(row.id)[-1]
        if pause.is_our_own:
            raise RunWaiting(row.id, pause.questions)
        return row.id, pause

    def has_run(self, run_id: str) -> bool:
        """Whether a run of this runner has this id."""
        row = runs.get(engine.current().store, run_id)
        return row is not None and row.name == self.name

    def asked_run(self, run_id: str) -> bool:
        """Whether a run of this runner has this id, and has waited for an answer."""
        return self.has_run(run_id) and bool(self.pauses_of(run_id))

    def runs_asked(self, question: str, thread: str | None = None) -> list[Run]:
        """The runs of this runner, on this thread or on any, that wait for this, or else have waited; newest first."""
        store = engine.current().store
        for waiting in (True, False):  # of those that are over there may be very many
            found = [
                Run(run_id)
                for run_id in runs.asked(store, self.name, question, thread, waiting=waiting)
                if any(question in pause.questions for pause in self.pauses_of(run_id))
            ]
            if found:
                return found
        return []

    def _attached(self, run: Rest) -> Any:
        """What the verb returns for a run that somebody else has driven to its end or its pause."""
        if run.state != "waiting":
            return Run(run.id).result()
        records = load(run.id, runs.records(engine.current().store, run.id))
        pause = read_pauses(records, self.codec)[-1]
        if pause.is_our_own:
            raise RunWaiting(run.id, pause.questions)
        return self.paused_result(run.id, records[0].value()["input"], pause)


def _given(run_id: str | None) -> str:
    return new_id() if run_id is None else run_id  # an empty one is a mistake, which opening the run tells


def new_id() -> str:
    return secrets.token_hex(16)


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
