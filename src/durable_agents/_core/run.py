"""Runs as the user sees them: `durable_agents.runs.list()`, `durable_agents.runs.get(run_id)`, and `Run`."""

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from . import engine, failure
from .answer import answer
from .codec import JSON, Codec
from .context import RUN
from .errors import (
    ConfigurationError,
    NotSupported,
    NotWaiting,
    ResultNotRecorded,
    RunCancelled,
    RunNotFound,
    RunReleased,
    RunWaiting,
)
from .fork import fork, fork_id
from .journal import load
from .pause import Question, read_pauses
from .rebuild import rebuild
from .record import CLOSE, OWN_KINDS, Record, Usage, utc
from .resume import resume
from .store import runs
from .stream import Event, read

if TYPE_CHECKING:
    from .runner import Runner

Status = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]

_POLL_SECONDS = 0.02
_STREAM_SECONDS = 0.05
_ASKED_AGAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step of a run.

    `started` and `ended` are UTC; `attempts` counts the framework's own tries; `error` is the text of the error the
    step ended with, if any; `worker` and `epoch` say who ran it, in which claim of the run.
    """

    path: str
    kind: str
    name: str
    started: datetime
    ended: datetime
    attempts: int
    usage: Usage | None
    error: str | None
    worker: str
    epoch: int


class _GoesOn(Exception):
    """A run that had ended has been resumed."""


class Run:
    """One run, read from the database at every question: any process can hold one."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    # -- what it is

    def _row(self) -> runs.Row:
        row = runs.get(engine.current().store, self.id)
        if row is None:
            raise RunNotFound(f"there is no run {self.id!r} in {engine.current().store.shown}")
        return row

    def _records(self) -> builtins.list[Record]:
        return load(self.id, runs.records(engine.current().store, self.id))

    @property
    def _codec(self) -> Codec:
        runner = self._known_runner()
        return runner.codec if runner else JSON

    def _known_runner(self) -> "Runner | None":
        """The runner, if this process has it."""
        return engine.RUNNERS.get(self._row().name)

    @property
    def status(self) -> Status:
        """queued, running, waiting, succeeded, failed or cancelled."""
        state: Any = self._row().state
        return state  # type: ignore[no-any-return]

    @property
    def runner(self) -> str:
        """`<framework>.<name>` of the runner it belongs to."""
        return self._row().name

    @property
    def error(self) -> Exception | None:
        """The error a failed run ended with."""
        if self._row().state != "failed":
            return None
        try:
            return failure.decode(self._closing().value())
        except _GoesOn:
            return None

    @property
    def blocked(self) -> str | None:
        """Why no worker drives a queued or running run: its agent's code has changed. None when nothing is wrong."""
        return self._row().blocked or None

    @property
    def questions(self) -> dict[str, Any]:
        """Open questions of a waiting run: question → what is asked, as JSON data."""
        pause = self._pause()
        return dict(pause.questions) if pause and self._row().state == "waiting" else {}

    def _pause(self) -> Question | None:
        pauses = read_pauses(self._records())
        return pauses[-1] if pauses else None

    @property
    def usage(self) -> Usage:
        """Tokens of all model steps together; `model` and `cost` are empty where they differ or are unknown."""
        used = [u for step in self.steps() if (u := step.usage)]
        models = {u.model for u in used}
        return Usage(
            models.pop() if len(models) == 1 else "",
            sum(u.input_tokens for u in used),
            sum(u.output_tokens for u in used),
        )

    def steps(self) -> builtins.list[Step]:
        """The finished steps in the order they were recorded."""
        return [_step(record) for record in self._records() if record.kind not in OWN_KINDS]

    # -- how it ends

    def _closing(self) -> Record:
        """The last record of a run that has ended. Raises `_GoesOn` when somebody has resumed it since."""
        record = self._records()[-1]
        if record.kind == CLOSE:
            return record
        if not self._row().over:
            raise _GoesOn
        record = self._records()[-1]  # it may have ended again by then
        if record.kind != CLOSE:
            raise ResultNotRecorded(f"run {self.id!r} was ended from outside, without a result")
        return record

    def _ended(self) -> bool:
        """Whether there is a result or an error to give. Raises `RunWaiting` for a run that waits."""
        row = self._row()
        if row.state != "waiting":
            return row.over
        if asked := self.questions:
            raise RunWaiting(self.id, asked)
        return False  # somebody has just answered

    def _has_ended(self, running: engine.Engine) -> bool:
        """`_ended`; whoever waits for a result waits for the database, too."""
        try:
            return self._ended()
        except Exception as error:
            if not running.store.may_heal(error):
                raise
            return False

    def _outcome(self) -> Any:
        row = self._row()
        if row.state == "cancelled":
            after = self._superseded() or f"; {self._advice()}"
            raise RunCancelled(f"run {self.id!r} was cancelled{after}")
        closing = self._closing()
        if closing.status == "error":
            error = failure.decode(closing.value())
            error.add_note(f"run {self.id!r} has failed with this; {self._advice()}")
            raise error
        runner = self._runner(row.name)
        if closing.status == "opaque":
            return rebuild(engine.current(), runner, row)
        return runner.decode_result(closing.value())

    def _advice(self) -> str:
        return f"durable_agents.runs.get({self.id!r}).resume() lets it go on over what is recorded"

    def _superseded(self) -> str:
        last = self._records()[-1]
        by = last.value().get("superseded_by") if last.kind == CLOSE else None
        return f": run {by!r} came after it on its thread" if by else ""

    def _runner(self, name: str) -> "Runner":
        runner = engine.RUNNERS.get(name)
        if runner is None:
            raise ConfigurationError(
                f"run {self.id!r} needs its runner {name!r} here, which this process does not have; make it here too, "
                f"with the same name"
            )
        return runner

    def result(self, timeout: float | None = None) -> Any:
        """The run's result in the framework's own type; waits until there is one.

        A result that could not be stored is rebuilt: the run is replayed over its records, callbacks muted.

        Args:
            timeout: seconds to wait at most; None waits for ever.

        Raises:
            RunWaiting: the run waits for an answer.
            TimeoutError: it has not ended in time.
            RunCancelled, ResultNotRecorded, ConfigurationError: see there.
            Exception: the error the run failed with, as its own type when that is known here.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        running = engine.current()
        while True:
            with _resting(running):
                while not self._has_ended(running):
                    _check(running, deadline, self.id)
                    time.sleep(_POLL_SECONDS)
            with suppress(_GoesOn):
                return self._outcome()

    async def aresult(self, timeout: float | None = None) -> Any:
        """`result` for event loops."""
        deadline = None if timeout is None else time.monotonic() + timeout
        running = engine.current()
        while True:
            with _resting(running):
                while not await asyncio.to_thread(self._has_ended, running):
                    _check(running, deadline, self.id)
                    await asyncio.sleep(_POLL_SECONDS)
            with suppress(_GoesOn):
                return await asyncio.to_thread(self._outcome)

    # -- what one can do to it

    def answer(self, value: Any, question: str | None = None) -> None:
        """Answer a waiting run; any worker that has its runner goes on with it.

        Several open questions are answered one after the other: the run goes on with each answer, and this method waits
        until the run asks again what the first answer left open, for half a minute at most.

        Args:
            value: the answer, in the form the framework expects where it asked.
            question: which open question; not needed when there is one.

        Raises:
            NotWaiting: the run does not wait, or has no such question.
            AlreadyAnswered: it was answered with another value. The same value again is no error.
            ConfigurationError: the framework could not take this answer; the question stays open.
        """
        running, deadline = engine.current(), time.monotonic() + _ASKED_AGAIN_SECONDS
        while True:
            try:
                answer(running.store, self._known_runner(), self.id, {question: value}, None)
                break
            except NotWaiting:
                if not self._is_left_open(question) or time.monotonic() > deadline or running.is_closed:
                    raise
                time.sleep(_POLL_SECONDS)
        running.wake()

    def _is_left_open(self, question: str | None) -> bool:
        """Whether the run goes on with another answer, and will ask this again, or has just done so."""
        pause = self._pause()
        asked = pause is not None and question in pause.questions and question not in pause.answers
        return asked and self._row().state in ("queued", "running", "waiting")

    def cancel(self) -> None:
        """Cancel the run: at once when nobody drives it, else when the steps in flight are recorded.

        A run that is over stays as it is.
        """
        self._row()
        runs.request_cancel(engine.current().store, self.id)
        engine.current().cancel(self.id)

    def resume(self) -> None:
        """Let a run that failed or was cancelled go on, over its records, in any worker that has its runner.

        The steps that the error passed through run again; errors the framework had handled stay recorded. A run that is
        queued or running goes on as it is.

        Raises:
            RunWaiting: it waits for an answer.
            RunOver: it has succeeded, or another run has come after it on its thread.
        """
        resume(engine.current().store, self.id)
        engine.current().wake()

    def fork(self, before: str | None = None, *, run_id: str | None = None) -> "Run":
        """A new run with the same input, served the records of this one up to a step, from where it goes its own way.

        The source stays as it is; the fork has records, effects and idempotency keys of its own, and a thread of its
        own.

        Args:
            before: path of the first step to run anew; see `steps()`. None: all of them.
            run_id: the fork's id; default: a new one. The same fork again is the same run.

        Raises:
            StepNotFound: the run has recorded no such step.
            NotSupported: the framework's state cannot be forked here; the message says what to use.
            NotRecoverable: the run was called with live arguments, and its runner has no `restore`.
            ConfigurationError: this process does not have the runner.
        """
        running, row = engine.current(), self._row()
        run_id = fork_id(self.id) if run_id is None else run_id
        fork(running.store, self._runner(row.name), self.id, before, run_id)
        running.wake()
        return Run(run_id)

    def stream(self, after: int = 0) -> Iterator[Event]:
        """The events of the run, each once and in order, over any number of crashes; ends when the run rests.

        Readers may come and go, in any process: one that was cut off goes on behind the last cursor it has seen.
        Closing the iterator changes nothing for the run.

        Args:
            after: cursor of the last event seen; 0 for none.

        Raises:
            NotSupported: runs of this framework keep no events yet.
        """
        reader = self._reader(after)
        while (page := reader.next()) is not None:
            yield from page
            if not page:
                time.sleep(_STREAM_SECONDS)

    async def astream(self, after: int = 0) -> AsyncIterator[Event]:
        """`stream` for event loops."""
        reader = await asyncio.to_thread(self._reader, after)
        while (page := await asyncio.to_thread(reader.next)) is not None:
            for event in page:
                yield event
            if not page:
                await asyncio.sleep(_STREAM_SECONDS)

    def _reader(self, after: int) -> "_Reader":
        if not isinstance(after, int):
            raise ConfigurationError(
                f"after is the cursor of the last event seen, 0 for none, not {after!r:.80}"
            )
        row = self._row()
        runner = engine.RUNNERS.get(row.name)
        if runner is not None and not runner.keeps_events:
            raise NotSupported(
                f"runs of {runner.framework} keep no events yet: use the runner's own stream verbs, or steps()"
            )
        return _Reader(self.id, self._codec, after)


class _Reader:
    """Where one reader of a run's events stands."""

    def __init__(self, run_id: str, codec: Codec, after: int) -> None:
        self._running, self._id, self._codec, self._after = engine.current(), run_id, codec, after

    def next(self) -> builtins.list[Event] | None:
        """The next events, none when there are none yet; None when the run rests and all have been read."""
        _check(self._running, None, self._id)
        store = self._running.store
        try:
            row = runs.get(store, self._id)  # first: what it emitted before it came to rest is there then
            events = read(store, self._codec, self._id, self._after)
        except Exception as error:
            if not store.may_heal(error):
                raise
            return []  # whoever reads waits for the database, too
        if events:
            self._after = events[-1].cursor
        elif row is None or row.over or row.state == "waiting":
            return None
        return events


def _resting(running: engine.Engine) -> AbstractContextManager[None]:
    """A run that waits for another one makes room for it."""
    return running.resting() if RUN.get() is not None else nullcontext()


def _check(running: engine.Engine, deadline: float | None, run_id: str) -> None:
    if running.is_closed:
        raise RunReleased(
            f"run {run_id!r} has not ended, and this process called shutdown() while it waited for that"
        )
    if deadline is not None and time.monotonic() > deadline:
        raise TimeoutError(f"run {run_id!r} has not ended yet; {_why(running, run_id)}")


def _why(running: engine.Engine, run_id: str) -> str:
    """What a caller who has waited in vain should know."""
    try:
        with running.store.briefly():
            blocked = Run(run_id).blocked
    except Exception as error:
        if not running.store.may_heal(error):
            raise
        return f"the database cannot be asked: {error}"
    if blocked:
        return f"no worker here drives it: {blocked}"
    if running.shuns(run_id):
        return (
            "it was interrupted in this process, or could not be loaded here, and is left to other workers; "
            "call the runner again with this run_id to go on here"
        )
    return "it goes on, ask again later"


def _step(record: Record) -> Step:
    body = record.body
    usage = Usage(**body["usage"]) if "usage" in body else None
    error = None
    if record.status == "error":
        error = "(redacted)" if record.payload is None else str(record.value()["message"])
    return Step(
        record.path, record.kind, str(body.get("name", "")), utc(body.get("started", body["at"])), utc(body["at"]),
        int(body.get("attempt", 1)), usage, error, str(body["worker"]), int(body["epoch"]),
    )  # fmt: skip


def get(run_id: str) -> Run:
    """The run of this id.

    Raises:
        RunNotFound: there is none.
    """
    run = Run(run_id)
    run.status  # noqa: B018  an unknown id is an error here, not at the first question
    return run


def list(
    *, status: Status | Sequence[Status] = (), runner: str | None = None, limit: int = 100
) -> builtins.list[Run]:
    """Runs, newest first.

    Args:
        status: only runs in this status, or in one of these.
        runner: only runs of the runner with this full name (`<framework>.<name>`).
        limit: at most this many.
    """
    if not isinstance(limit, int) or not 0 <= limit < 2**31:
        raise ConfigurationError(f"limit is a number of runs from 0 on, not {limit!r:.80}")
    wanted = (status,) if isinstance(status, str) else tuple(status or ())
    unknown = [s for s in wanted if s not in runs.STATES]
    if unknown:
        raise ConfigurationError(f"no such status: {unknown[0]!r}; there are {', '.join(runs.STATES)}")
    rows = runs.find(engine.current().store, states=wanted, name=runner, limit=limit)
    return [Run(row.id) for row in rows]
