"""The boundaries of the core, put around its private functions in a child process only."""

import functools
from collections.abc import Callable
from typing import Any

from durable_agents._core import entry, journal, run
from durable_agents._core.record import CLOSE, FLUSH, WAIT
from durable_agents._core.store import runs
from durable_agents._core.store.postgres import PostgresStore
from durable_agents._core.store.sqlite import SqliteStore

from .boundaries import ANSWERED, BEFORE_CLOSE, CLAIMED, CLOSED, INSERTED, PARKED, RECORDED, Boundaries, Place


def skip_migration() -> None:
    """The databases are copies of a migrated one; looking again at each launch would cost more than the run."""
    for store in (SqliteStore, PostgresStore):
        store.migrate = lambda self: None  # type: ignore[method-assign]


def install(boundaries: Boundaries) -> None:
    """Count the boundaries of this process, and die where `boundaries` says."""
    _around(journal.Journal, "_write", functools.partial(_write, boundaries))
    _around(runs, "start", functools.partial(_start, boundaries))
    _around(runs, "claim", functools.partial(_claim, boundaries))
    _around(run, "answer", functools.partial(_answer, boundaries))
    _around(entry, "answer", functools.partial(_answer, boundaries))


def _around(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    setattr(owner, name, hooked)


def _write(
    boundaries: Boundaries, original: Any, self: journal.Journal, draft: Any, rows: Any, write: Any
) -> Any:
    place, outside = Place(self.run_id, draft.path), Place(self.run_id, "")
    boundaries.await_death_if_doomed(outside if draft.kind in (CLOSE, WAIT) else place)
    if draft.kind == CLOSE:
        boundaries.cross(BEFORE_CLOSE, outside)
    record = original(self, draft, rows, write)
    if draft.kind in (CLOSE, WAIT):
        boundaries.rested(self.run_id)
        boundaries.cross(CLOSED if draft.kind == CLOSE else PARKED, outside)
    elif draft.kind != FLUSH:  # the heartbeat flushes state when it happens to come by
        boundaries.recorded(place)
        boundaries.cross(RECORDED, place)
    return record


def _start(boundaries: Boundaries, original: Any, store: Any, new: Any, worker: Any) -> Any:
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
    token = original(store, codec, run_id, *args)
    boundaries.cross(ANSWERED, Place(run_id, ""))
    return token
