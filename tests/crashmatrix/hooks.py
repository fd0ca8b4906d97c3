"""The boundaries of the core, put around its private functions in a child process only, and what else it watches."""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from durable_agents._core import context, entry, journal, run
from durable_agents._core import store as stores
from durable_agents._core.execution import Execution
from durable_agents._core.record import CLOSE, FLUSH, WAIT
from durable_agents._core.step import Call
from durable_agents._core.store import runs
from durable_agents._core.store.postgres import PostgresStore
from durable_agents._core.store.sqlite import SqliteStore

from .boundaries import (
    ANSWERED,
    BEFORE_ANSWER,
    BEFORE_CLOSE,
    BEFORE_INSERT,
    BEFORE_PARK,
    BEFORE_RECORD,
    BEFORE_RETRY,
    BEFORE_STAGE,
    CLAIMED,
    CLOSED,
    INSERTED,
    PARKED,
    RECORDED,
    RETRIED,
    STAGED,
    Boundaries,
    Place,
)

_STORES = (SqliteStore, PostgresStore)


def skip_migration() -> None:
    """The databases are copies of a migrated one; looking again at each launch would cost more than the run."""
    stores.migrate = lambda store: None  # type: ignore[attr-defined]


def install(boundaries: Boundaries) -> None:
    """Count the boundaries of this process, and end where `boundaries` says."""
    _around(Execution, "enter", functools.partial(_enter, boundaries))
    _around(context.Scope, "__init__", functools.partial(_scope, boundaries))
    _around(journal.Journal, "stage", functools.partial(_stage, boundaries))
    _around(journal.Journal, "_write", functools.partial(_write, boundaries))
    _around(runs, "start", functools.partial(_start, boundaries))
    _around(runs, "claim", functools.partial(_claim, boundaries))
    _around(run, "answer", functools.partial(_answer, boundaries))
    _around(run, "resume", functools.partial(_resume, boundaries))
    _around(entry, "answer", functools.partial(_answer, boundaries))


def _around(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(owner, name, hooked)


def _enter(boundaries: Boundaries, original: Any, *args: Any, **kwargs: Any) -> None:
    boundaries.step_begins()
    original(*args, **kwargs)


def _scope(boundaries: Boundaries, original: Any, self: context.Scope, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    boundaries.step_scope(self)


def _stage(boundaries: Boundaries, original: Any, self: journal.Journal, statements: Any) -> None:
    outside = Place(self.run_id, "")
    if statements:
        boundaries.cross(BEFORE_STAGE, outside)
    original(self, statements)
    if statements:
        boundaries.cross(STAGED, outside, tidy=self.flush)


_ENDS = {CLOSE: (BEFORE_CLOSE, CLOSED), WAIT: (BEFORE_PARK, PARKED)}


def _write(
    boundaries: Boundaries, original: Any, self: journal.Journal, draft: Any, rows: Any, write: Any
) -> Any:
    if draft.kind == FLUSH:  # the heartbeat flushes state when it happens to come by
        return original(self, draft, rows, write)
    before, after = _ENDS.get(draft.kind, (BEFORE_RECORD, RECORDED))
    is_end = draft.kind in _ENDS
    place = Place(self.run_id, "" if is_end else draft.path)
    boundaries.hold_if_doomed(place)
    boundaries.cross(before, place)
    record = original(self, draft, rows, write)
    if is_end:
        boundaries.rested(self.run_id)
    else:
        boundaries.recorded(place)
    boundaries.cross(after, place)
    return record


def _start(boundaries: Boundaries, original: Any, store: Any, new: Any, worker: Any) -> Any:
    boundaries.cross(BEFORE_INSERT, Place(new.id, ""))
    inserted, token = original(store, new, worker)
    if inserted:
        boundaries.cross(INSERTED, Place(new.id, ""))
    return inserted, token


def _claim(boundaries: Boundaries, original: Any, *args: Any, **kwargs: Any) -> Any:
    claimed = original(*args, **kwargs)
    for run_id, *_ in claimed:
        boundaries.cross(CLAIMED, Place(run_id, ""))
    return claimed


def _answer(boundaries: Boundaries, original: Any, store: Any, codec: Any, run_id: str, *args: Any) -> Any:
    boundaries.cross(BEFORE_ANSWER, Place(run_id, ""))
    token = original(store, codec, run_id, *args)
    boundaries.cross(ANSWERED, Place(run_id, ""))
    return token


def _resume(boundaries: Boundaries, original: Any, store: Any, run_id: str) -> None:
    boundaries.cross(BEFORE_RETRY, Place(run_id, ""))
    original(store, run_id)
    boundaries.cross(RETRIED, Place(run_id, ""))


def serialise_transactions() -> AbstractContextManager[object]:
    """The lock that whoever writes holds: a process frozen inside a transaction would block the database for all."""
    lock = threading.RLock()

    def alone(original: Any, *args: Any) -> Any:
        with lock:
            return original(*args)

    for store in _STORES:
        for name in ("transact", "execute", "beat"):
            _around(store, name, alone)
    return lock


@contextmanager
def _listed(driven: list[str], run_id: str) -> Iterator[None]:
    driven.append(run_id)
    try:
        yield
    finally:
        driven.remove(run_id)


def count_drives() -> list[str]:
    """The runs that this process drives; the list changes as they come and go."""
    driven: list[str] = []

    def drive(original: Any, self: Execution) -> Any:
        with _listed(driven, self.id):
            return original(self)

    async def adrive(original: Any, self: Execution) -> Any:
        with _listed(driven, self.id):
            return await original(self)

    _around(Execution, "drive", drive)
    _around(Execution, "adrive", adrive)
    return driven


def hesitate(seconds: Callable[[], float]) -> None:
    """Wait before a run is driven that was claimed."""

    def drive(original: Any, self: Execution) -> Any:
        time.sleep(seconds())
        return original(self)

    async def adrive(original: Any, self: Execution) -> Any:
        await asyncio.sleep(seconds())
        return await original(self)

    _around(Execution, "drive", drive)
    _around(Execution, "adrive", adrive)


def note_served() -> set[tuple[str, str]]:
    """The steps of runs that are served from their records; the set grows as they are."""
    served: set[tuple[str, str]] = set()

    def recorded(original: Any, self: Call) -> Any:
        record = original(self)
        if record is not None:
            served.add((self.run.id, self.path))
        return record

    _around(Call, "recorded", recorded)
    return served


def note_claims(note: Callable[[str], None]) -> None:
    """Call `note` with each run that this process has claimed from the queue."""

    def claim(original: Any, *args: Any, **kwargs: Any) -> Any:
        claimed = original(*args, **kwargs)
        for run_id, *_ in claimed:
            note(run_id)
        return claimed

    _around(runs, "claim", claim)
