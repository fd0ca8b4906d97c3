"""The records of one run in this process: loaded once when the run is claimed, appended one by one while it is owned.

The bytes stored are the bytes chained, so records of one run are written one after the other, under its lock. A record
that could not be written ends the journal: later ones would be chained to it.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from .errors import BrokenRecord, OwnershipLost, Stop
from .log import Trouble, logger
from .record import CLOSE, FLUSH, OPEN, RETRY, WAIT, Draft, Record, check_link, now_us, rows_digest
from .store import Statement, Store, runs
from .stream import Emitted, Numbering

T = TypeVar("T")

# Between two tries to write a record while the database is unwell, in seconds.
_LONGEST_PAUSE = 2.0


def load(run_id: str, texts: Iterable[str]) -> list[Record]:
    """Stored records, their chain checked.

    Raises:
        BrokenRecord: a record does not fit the one before it.
    """
    found, prev = [], ""
    for seq, text in enumerate(texts, 1):
        record = Record.load(text)
        check_link(record, run_id, seq, prev)
        prev = record.hash
        found.append(record)
    return found


def standing(records: Iterable[Record]) -> dict[str, Record]:
    """Path → record of what holds: a retry takes back what it names."""
    found: dict[str, Record] = {}
    for record in records:
        if record.kind == RETRY:
            for path in record.value()["taken_back"]:
                found.pop(path, None)
        found[record.path] = record
    return found


def inherited(store: Store, opening: Mapping[str, Any]) -> list[Record]:
    """The records that a fork is served from the run it was forked from; none for other runs.

    Raises:
        BrokenRecord: that run is gone, or not the one the fork was made from.
    """
    fork = opening.get("fork")
    if fork is None or fork["seq"] == 0:
        return []
    records = load(fork["run"], runs.records(store, fork["run"])[: fork["seq"]])
    if len(records) != fork["seq"] or records[-1].hash != fork["hash"]:
        raise BrokenRecord(f"run {fork['run']!r}, which another one was forked from, is gone or was changed")
    return [
        *inherited(store, records[0].value()),
        *(r for r in records if r.kind not in (OPEN, CLOSE, FLUSH)),
    ]


class Journal:
    """The fenced, chained records of a run that this process owns.

    Args:
        owner: token of the claim; the database refuses writes once it has another.
        worker, epoch: who writes, and how often the run had been claimed by then.
        on_lost: called once, from the thread that noticed, when the run is no longer ours.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        *,
        owner: str,
        worker: str,
        epoch: int,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.run_id, self.owner = run_id, owner
        self._store, self._worker, self.epoch, self._on_lost = store, worker, epoch, on_lost
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._hurried = threading.Event()
        self._staged: list[Statement] = []
        self.lost: Stop | None = None
        loaded = load(run_id, runs.records(store, run_id))
        self.opening: dict[str, Any] = loaded[0].value()
        base = inherited(store, self.opening)
        self.recorded_before = len(base) + len(loaded)
        self._known = standing([*base, *loaded])
        self._events = Numbering(store, run_id, fresh=epoch <= 1)
        self.has_recorded = False
        self._seq = len(loaded)
        self._prev = loaded[-1].hash if loaded else ""
        self._at = loaded[-1].body["at"] if loaded else 0
        self.last_epoch = int(loaded[-1].body["epoch"]) if loaded else 0
        self.last_kind = loaded[-1].kind if loaded else ""

    @property
    def known(self) -> Mapping[str, Record]:
        """Path → record of everything that has finished."""
        return MappingProxyType(self._known)

    def records(self, kind: str) -> list[Record]:
        """The records of this kind that hold, in the order they were written."""
        with self._lock:
            return [record for record in self._known.values() if record.kind == kind]

    @property
    def segment(self) -> int:
        """How often the run has waited for people."""
        return len(self.records(WAIT))

    def segment_of(self, record: Record) -> int:
        """How often the run had waited for people before this record."""
        return sum(pause.body["seq"] < record.body["seq"] for pause in self.records(WAIT))

    def stage(self, statements: Sequence[Statement]) -> None:
        """Rows of the framework's state, to be written with the next record. Lost with the process until then."""
        with self._lock:
            self._staged.extend(statements)

    @property
    def has_staged(self) -> bool:
        return bool(self._staged)

    def flush(self) -> None:
        """Write what is staged, under a record of its own."""
        with self._writing:
            if self._staged:
                self.commit(Draft(FLUSH, f"{FLUSH}:{self._seq + 1}", "null"))

    def flush_soon(self) -> None:
        """`flush` unless somebody is writing right now: then the next record takes the rows along."""
        if self._staged and self._writing.acquire(blocking=False):
            try:
                if self.lost is None:
                    self.flush()
            finally:
                self._writing.release()

    def commit(self, draft: Draft, rows: Sequence[Statement] = ()) -> Record:
        """Write a record together with `rows` and everything staged before, in one fenced transaction.

        Raises:
            OwnershipLost: another worker owns the run; nothing was written.
        """
        return self._write(
            draft, rows, lambda record, all_rows: runs.append(self._store, record, self.owner, all_rows)
        )

    def emit(self, event: Emitted) -> None:
        """Commit an event with the next record, unless it was emitted before."""
        self._know_events([event])
        with self._lock:
            self._staged.extend(self._events.statements([event]))

    def close(self, draft: Draft, status: str, error: str = "") -> Record:
        """Write the last record and the run's outcome."""
        return self._write(
            draft, (), lambda record, rows: runs.finish(self._store, record, self.owner, status, rows, error)
        )

    def park(self, draft: Draft) -> bool:
        """Write the record of the questions and let go of the run; False when it was cancelled meanwhile."""
        outcome: list[bool] = []

        def write(record: Record, rows: Sequence[Statement]) -> bool:
            parked = runs.park(self._store, record, self.owner, rows)
            outcome.append(parked == "parked")
            return parked is not None

        self._write(draft, (), write)
        return outcome[-1]

    def _write(
        self, draft: Draft, rows: Sequence[Statement], write: Callable[[Record, Sequence[Statement]], bool]
    ) -> Record:
        with self._writing:  # for as long as it takes; whoever only stages or looks does not wait for that
            if self.lost is not None:
                raise self.lost
            self._know_events(draft.events)
            with self._lock:  # events are numbered in the order in which they are committed
                staged = [*self._staged]
                emitted = self._events.statements(draft.events)
            together = [*staged, *rows, *emitted]
            record = draft.seal(
                run=self.run_id,
                seq=self._seq + 1,
                prev=self._prev,
                at=max(self._at, now_us()),
                worker=self._worker,
                epoch=self.epoch,
                rows=rows_digest((s.sql, s.rows) for s in together) if together else "",
            )
            try:
                # To give the run up would repeat what this record tells of.
                written = self.insist(f"writing the record {record.path!r}", lambda: write(record, together))
            except Exception as error:
                logger.error(
                    "run %r: record %r could not be written; this process stops driving it: %s",
                    self.run_id,
                    record.path,
                    error,
                    exc_info=not self._store.may_heal(error),
                )
                raise self._lose() from error
            except BaseException:
                self._lose()
                raise
            if not written:
                raise self._lose()
            with self._lock:
                del self._staged[: len(staged)]
                self._seq, self._prev, self._at = record.seq, record.hash, record.body["at"]
                self._known[record.path] = record
                self.has_recorded = True
            return record

    def insist(self, what: str, work: Callable[[], T]) -> T:
        """Do this with the database, again and again until that is well.

        It ends earlier when the run is lost, and with the error when that is none of the database's, or when the run is
        about to be handed back.
        """
        trouble: Trouble | None = None
        pause = 0.05
        while True:
            try:
                with self._store.briefly():
                    done = work()
            except Exception as error:
                if self._hurried.is_set() or not self._store.may_heal(error):
                    raise
                trouble = trouble or Trouble(f"run {self.run_id!r}: {what}")
                trouble.met(error)
            else:
                if trouble is not None:
                    trouble.over()
                return done
            self._hurried.wait(pause)
            if self.lost is not None:
                raise self.lost
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _know_events(self, events: Sequence[Emitted]) -> None:
        """Read which events there are, outside of the lock: that may take as long as the database is unwell."""
        if events:
            self.insist("reading its events", self._events.load)

    def hurry(self) -> None:
        """The run is about to be handed back: a record that waits for the database is tried once more."""
        self._hurried.set()

    def _lose(self) -> Stop:
        with self._lock:
            is_news = self.lost is None
            lost = self.lost = self.lost or OwnershipLost(
                f"run {self.run_id!r} is owned by another worker, or its database could not be written"
            )
        self._hurried.set()
        if is_news:
            self._on_lost()
        return lost

    def abandon(self) -> None:
        """Write nothing more: the worker itself was declared dead. Does not wait for a record that is being written."""
        self._lose()
