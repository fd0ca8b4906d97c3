"""Rebuilding a result that could not be stored: the run is replayed over its records, and nothing is executed.

The replay owns nothing and writes nothing. Callbacks of the user are muted; code between the steps runs.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import TYPE_CHECKING, Any

from .context import Scope
from .errors import Aborted, DurableError, EncodingError, ResultNotRecorded, Stop
from .execution import Execution
from .journal import Journal
from .record import Draft, Record
from .store import Statement
from .store.runs import Row
from .stream import Emitted

if TYPE_CHECKING:
    from .engine import Engine
    from .runner import Runner


def rebuild(running: "Engine", runner: "Runner", row: Row) -> Any:
    """The result of a run that has succeeded, as its own code makes it out of its records.

    Raises:
        ResultNotRecorded: the replay came to a step that has no record: the code has changed since.
    """
    with ThreadPoolExecutor(1) as thread:  # a loop of its own, whatever the caller runs in
        return thread.submit(Context().run, _replay, running, runner, row).result()


def _replay(running: "Engine", runner: "Runner", row: Row) -> Any:
    replay = _Replay(running, runner, row)
    try:
        if runner.is_async(replay):
            return _as_result(replay, asyncio.run(_adrive(replay)))
        replay.top = Scope()
        with replay.active():
            outcome = runner.drive(replay)
        return _as_result(replay, outcome)
    except Stop as stop:
        raise _reason(stop, row.id) from stop


def _as_result(replay: "_Replay", outcome: Any) -> Any:
    """The outcome as who asks later gets it, where it can be stored: it may only refer to the result."""
    try:
        return replay.runner.decode_result(replay.runner.encode_result(replay, outcome))
    except EncodingError:
        return outcome


async def _adrive(replay: "_Replay") -> Any:
    replay.top = Scope()  # of this task: its own calls are known by their order
    with replay.active():
        return await replay.runner.adrive(replay)


def _reason(stop: Stop, run_id: str) -> DurableError:
    if isinstance(stop, Aborted) and isinstance(stop.error, DurableError):
        return stop.error
    return ResultNotRecorded(f"the result of run {run_id!r} cannot be rebuilt: {stop}")


class _ReadOnly(Journal):
    """A journal of records that nothing is added to."""

    def stage(self, statements: Sequence[Statement]) -> None:
        """The state is there already."""

    def emit(self, event: Emitted) -> None:
        """Readers have had it."""

    def commit(self, draft: Draft, rows: Sequence[Statement] = ()) -> Record:
        """The record that is there: a step made of steps has run over theirs."""
        return self._known[draft.path]


class _Replay(Execution):
    """An execution in which only what is recorded happens."""

    muted = True
    journal_type = _ReadOnly

    @property
    def replaying(self) -> bool:
        return True

    def enter(self, leaf: bool, force: bool = False) -> None:
        """A step made of steps runs over theirs; a body that would act does not."""
        if leaf and not force:
            why = "rebuilding it came to a step that has no record: the code has changed since"
            raise self.abort(
                ResultNotRecorded(f"the result of run {self.id!r} could not be stored, and {why}")
            )
        super().enter(leaf, force)
