"""Runs as the user sees them: `durable_agents.runs.list()`, `durable_agents.runs.get(run_id)`, and `Run`."""

import asyncio
import builtins
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from . import engine, failure
from .answer import answer
from .codec import JSON, Codec
from .errors import ConfigurationError, ResultNotRecorded, RunCancelled, RunNotFound, RunReleased, RunWaiting
from .journal import load
from .pause import Question, read_pauses
from .record import ANSWER, CLOSE, FLUSH, OPEN, WAIT, Record, Usage
from .store import runs

Status = Literal["queued", "running", "waiting", "succeeded", "failed", "cancelled"]

_POLL_SECONDS = 0.02
_NOT_STEPS = (OPEN, CLOSE, WAIT, ANSWER, FLUSH)


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
        runner = engine.RUNNERS.get(self._row().name)
        return runner.codec if runner else JSON

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
        return failure.decode(self._closing().value())

    @property
    def questions(self) -> dict[str, Any]:
        """Open questions of a waiting run: question → what is asked, as JSON data."""
        pause = self._pause()
        return dict(pause.questions) if pause and self._row().state == "waiting" else {}

    def _pause(self) -> Question | None:
        pauses = read_pauses(self._records(), self._codec)
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
        return [_step(record) for record in self._records() if record.kind not in _NOT_STEPS]

    # -- how it ends

    def _closing(self) -> Record:
        record = self._records()[-1]
        if record.kind != CLOSE:
            raise ResultNotRecorded(f"run {self.id!r} was ended from outside, without a result")
        return record

    def _ended(self) -> bool:
        """Whether there is a result or an error to give. Raises `RunWaiting` for a run that waits."""
        row = self._row()
        if row.state == "waiting":
            raise RunWaiting(self.id, self.questions)
        return row.over

    def _outcome(self) -> Any:
        row = self._row()
        if row.state == "cancelled":
            raise RunCancelled(f"run {self.id!r} was cancelled")
        closing = self._closing()
        if closing.status == "error":
            raise failure.decode(closing.value())
        if closing.status == "opaque":
            raise ResultNotRecorded(
                f"run {self.id!r} succeeded, but its result could not be stored: {closing.value()['reason']}"
            )
        runner = engine.RUNNERS.get(row.name)
        if runner is None:
            raise ConfigurationError(
                f"the result of run {self.id!r} is built by the runner {row.name!r}, which this process does not have; "
                f"make it here too, with the same name"
            )
        return runner.decode_result(closing.value())

    def result(self, timeout: float | None = None) -> Any:
        """The run's result in the framework's own type; waits until there is one.

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
        while not self._ended():
            _check(running, deadline, self.id)
            time.sleep(_POLL_SECONDS)
        return self._outcome()

    async def aresult(self, timeout: float | None = None) -> Any:
        """`result` for event loops."""
        deadline = None if timeout is None else time.monotonic() + timeout
        running = engine.current()
        while not await asyncio.to_thread(self._ended):
            _check(running, deadline, self.id)
            await asyncio.sleep(_POLL_SECONDS)
        return await asyncio.to_thread(self._outcome)

    # -- what one can do to it

    def answer(self, value: Any, question: str | None = None) -> None:
        """Answer a waiting run; any worker that has its runner goes on with it.

        Args:
            value: the answer, in the form the framework expects where it asked.
            question: which open question; not needed when there is one.

        Raises:
            NotWaiting: the run does not wait, or has no such question.
            AlreadyAnswered: it was answered with another value. The same value again is no error.
        """
        answer(engine.current().store, self._codec, self.id, {question: value}, None)
        engine.current().wake()

    def cancel(self) -> None:
        """Cancel the run: at once when nobody drives it, else when the steps in flight are recorded."""
        self._row()
        runs.request_cancel(engine.current().store, self.id)


def _check(running: engine.Engine, deadline: float | None, run_id: str) -> None:
    if running.is_closed:
        raise RunReleased(
            f"run {run_id!r} has not ended, and this process called shutdown() while it waited for that"
        )
    if deadline is not None and time.monotonic() > deadline:
        raise TimeoutError(f"run {run_id!r} has not ended yet; it goes on, ask again later")


def _step(record: Record) -> Step:
    body = record.body
    usage = Usage(**body["usage"]) if "usage" in body else None
    error = None
    if record.status == "error":
        error = "(redacted)" if record.payload is None else str(record.value()["message"])
    return Step(
        record.path, record.kind, str(body.get("name", "")), _utc(body.get("started", body["at"])), _utc(body["at"]),
        int(body.get("attempt", 1)), usage, error, str(body["worker"]), int(body["epoch"]),
    )  # fmt: skip


def _utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


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
    wanted = (status,) if isinstance(status, str) else tuple(status)
    unknown = [s for s in wanted if s not in runs.STATES]
    if unknown:
        raise ConfigurationError(f"no such status: {unknown[0]!r}; there are {', '.join(runs.STATES)}")
    rows = runs.find(engine.current().store, states=wanted, name=runner, limit=limit)
    return [Run(row.id) for row in rows]
