"""Events of a run, kept for readers: `emit` on the side of the run, `Run.stream(after=…)` on the reader's.

An event is committed together with the record that stands next after it, in the same transaction, and numbered there:
readers see each event once and in order, over any number of crashes. What a step emits is committed with the step's
own record, so a step that is cut off and runs again has emitted nothing before. Code between steps runs again in a
replay; its events are known by their place among the paths and are silent the second time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .codec import Codec, dumps
from .context import RUN, SCOPE
from .errors import EncodingError
from .log import logger
from .store import Statement, Store

_INSERT = "INSERT INTO durable_agents_event (run_id, cursor, path, body) VALUES (?, ?, ?, ?)"
_READ = (
    "SELECT cursor, body FROM durable_agents_event WHERE run_id = ? AND cursor > ? ORDER BY cursor LIMIT ?"
)
_PAGE = 500


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    Args:
        cursor: its number, from 1; give it to `Run.stream(after=…)` to go on behind it.
        data: what was emitted.
    """

    cursor: int
    data: Any


@dataclass(frozen=True, slots=True)
class Emitted:
    """An event that is not committed yet, as text."""

    path: str
    body: str


def emit(data: Any) -> None:
    """Give an event to whoever streams this run, now or later. Outside a run: nothing.

    Args:
        data: what the runner's codec takes; of anything else its `repr` is kept, and a warning logged.
    """
    run = RUN.get()
    if run is None:
        return
    scope = SCOPE.get() or run.top
    body = _text(run.runner.codec, data, run.id)
    # Calls from other threads and tasks come in any order: told apart by what they say.
    segment = "event" if scope.is_ours else f"event:{run.digest(body)[:12]}"
    event = Emitted(scope.child(scope.use(segment)), body)
    if scope.events is None:
        run.journal.emit(event)
    else:
        scope.events.append(event)


def _text(codec: Codec, data: Any, run_id: str) -> str:
    try:
        return dumps(codec.encode(data))
    except EncodingError as reason:
        logger.warning("run %r: an event is kept as text: %s", run_id, reason)
        return dumps(repr(data))


class Numbering:
    """The numbers of a run's events; used under the journal's lock.

    Args:
        fresh: whether the run was never driven before, so that it has no events yet.
    """

    def __init__(self, store: Store, run_id: str, fresh: bool) -> None:
        self._store, self._run_id = store, run_id
        self._paths: set[str] | None = set() if fresh else None
        self._last = 0

    def load(self) -> None:
        """Read which events there are already, if that is not known yet."""
        if self._paths is None:
            sql = "SELECT path, cursor FROM durable_agents_event WHERE run_id = ?"
            rows = self._store.query(sql, (self._run_id,))
            self._last = max((cursor for _, cursor in rows), default=0)
            self._paths = {path for path, _ in rows}

    def statements(self, events: Sequence[Emitted]) -> list[Statement]:
        """What inserts those of the events that are not there yet; `load` comes first."""
        rows = []
        for event in events:
            assert self._paths is not None
            if event.path not in self._paths:
                self._paths.add(event.path)
                self._last += 1
                rows.append((self._run_id, self._last, event.path, event.body))
        return [Statement(_INSERT, tuple(rows))] if rows else []


def read(store: Store, codec: Codec, run_id: str, after: int) -> list[Event]:
    """The next events behind the cursor `after`, a page of them."""
    rows = store.query(_READ, (run_id, after, _PAGE))
    return [Event(cursor, codec.decode(json.loads(body))) for cursor, body in rows]
