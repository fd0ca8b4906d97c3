"""The life of a run's row, and the records that belong to it: every statement against DBOS's tables.

A run is one row of `workflow_status`. How its columns are used here:

    workflow_uuid         the run id
    name                  `<framework>.<name>` of the runner
    status                ENQUEUED queued (or running, between two workers) · PENDING running · DELAYED waiting ·
                          SUCCESS · ERROR · CANCELLED
    queue_name            always `durable_agents`, never registered with DBOS: no DBOS poller claims the row
    queue_partition_key   the thread
    deduplication_id      the thread while the run is active; DBOS's unique index on it and the queue admits one
    executor_id           the worker that drives the run; on a queued row, the worker whose caller waits to drive it
    owner_xid             a new token per claim; every write of a worker is conditional on it
    recovery_attempts     how often the run was claimed (the record's epoch)
    attributes            {"cancel": true} once somebody asked the owner to stop

`operation_outputs` holds the records, `function_id` being `seq` and `function_name` the path. The payload of the close
record is the run's result; `workflow_output` only says where that is.
"""

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..codec import dumps
from ..record import Record
from .base import Statement, Store, Transaction

QUEUE = "durable_agents"
APPLICATION = "durable_agents"
# DBOS's own `resume` puts a row on its internal queue; we take it back from there.
_QUEUES = f"('{QUEUE}', '_dbos_internal_queue')"
_FOREVER = 2**63 - 1
_PORTABLE = "portable_json"

STATUS = {
    "PENDING": "running",
    "DELAYED": "waiting",
    "SUCCESS": "succeeded",
    "ERROR": "failed",
    "CANCELLED": "cancelled",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "failed",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What a run's row says. `status` is DBOS's word, `state` ours."""

    id: str
    name: str
    status: str
    owner: str | None
    worker: str | None
    epoch: int
    thread: str | None
    created: int

    @property
    def state(self) -> str:
        return STATUS.get(self.status) or ("running" if self.epoch else "queued")

    @property
    def over(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


_ROW = (
    "SELECT workflow_uuid, name, status, owner_xid, executor_id, recovery_attempts, queue_partition_key, created_at"
    " FROM workflow_status"
)


def _row(values: tuple[Any, ...]) -> Row:
    run_id, name, status, owner, worker, epoch, thread, created = values
    return Row(run_id, name, status, owner, worker, int(epoch or 0), thread, created)


def get(store: Store, run_id: str) -> Row | None:
    rows = store.query(f"{_ROW} WHERE workflow_uuid = ? AND application_name = ?", (run_id, APPLICATION))
    return _row(rows[0]) if rows else None


_STATES = {
    "queued": "status = 'ENQUEUED' AND COALESCE(recovery_attempts, 0) = 0",
    "running": "(status = 'PENDING' OR (status = 'ENQUEUED' AND recovery_attempts > 0))",
    "waiting": "status = 'DELAYED'",
    "succeeded": "status = 'SUCCESS'",
    "failed": "status IN ('ERROR', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED')",
    "cancelled": "status = 'CANCELLED'",
}
STATES = tuple(_STATES)


def find(store: Store, *, states: Sequence[str] = (), name: str | None = None, limit: int = 100) -> list[Row]:
    """Rows of runs, newest first; `states` are of `STATES`."""
    where, params = ["application_name = ?"], [APPLICATION]
    if states:
        where.append(f"({' OR '.join(_STATES[state] for state in states)})")
    if name is not None:
        where.append("name = ?")
        params.append(name)
    tie = _tie(store)
    sql = f"{_ROW} WHERE {' AND '.join(where)} ORDER BY created_at DESC, {tie} DESC LIMIT ?"
    return [_row(values) for values in store.query(sql, (*params, limit))]


def _tie(store: Store) -> str:
    """What orders rows of one millisecond."""
    return "rowid" if store.dialect == "sqlite" else "workflow_uuid"


def thread_key(name: str, thread: str) -> str:
    """A thread as the row knows it: two runners may use the same thread ids for different conversations."""
    return f"{name}/{thread}"


def waiting_on(store: Store, name: str, thread: str) -> Row | None:
    """The run of this runner that waits on this thread."""
    rows = store.query(
        f"{_ROW} WHERE name = ? AND queue_partition_key = ? AND status = 'DELAYED' AND application_name = ?"
        " ORDER BY created_at DESC LIMIT 1",
        (name, thread_key(name, thread), APPLICATION),
    )
    return _row(rows[0]) if rows else None


# -- records


def records(store: Store, run_id: str) -> list[str]:
    """The stored records of a run in the order of their numbers."""
    sql = "SELECT output FROM operation_outputs WHERE workflow_uuid = ? ORDER BY function_id"
    return [text for (text,) in store.query(sql, (run_id,))]


def _insert_record_sql(store: Store) -> str:
    # One statement that writes only while the token still owns the row. The lock is needed on PostgreSQL: without it
    # the record of a frozen worker could land after a takeover had committed.
    return (
        "INSERT INTO operation_outputs (workflow_uuid, function_id, function_name, output, started_at_epoch_ms,"
        " completed_at_epoch_ms, serialization, application_name, retention_timestamp)"
        f" SELECT s.workflow_uuid, ?, ?, ?, ?, ?, '{_PORTABLE}', s.application_name, ?"
        " FROM workflow_status s WHERE s.workflow_uuid = ? AND s.owner_xid = ? AND s.status = 'PENDING'"
        + (f"{store.lock_row} OF s" if store.lock_row else "")
    )


def _record_params(record: Record, owner: str) -> tuple[object, ...]:
    at, started = record.body["at"] // 1000, record.body.get("started", record.body["at"]) // 1000
    return (record.seq, record.path, record.dump(), started, at, at, record.body["run"], owner)


def _is_stored(query: Callable[..., list[tuple[Any, ...]]], record: Record) -> bool:
    """Whether exactly this record stands at its place: an earlier try was committed, its answer lost."""
    found = query(
        "SELECT output FROM operation_outputs WHERE workflow_uuid = ? AND function_id = ?",
        (record.body["run"], record.seq),
    )
    return bool(found) and json.loads(found[0][0])["body"] == record.text


def append(store: Store, record: Record, owner: str, rows: Sequence[Statement] = ()) -> bool:
    """Write a record, and the framework's rows with it, while `owner` owns the run; False when it no longer does."""
    sql, params = _insert_record_sql(store), _record_params(record, owner)
    conflict_free = sql + " ON CONFLICT DO NOTHING"
    if not rows:
        return store.execute(conflict_free, params) == 1 or _is_stored(store.query, record)

    def work(tx: Transaction) -> bool:
        if tx.execute(conflict_free, params) != 1:
            return _is_stored(tx.query, record)
        tx.write(rows)
        return True

    return store.transact(work)


# -- start


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run about to be inserted; `opening` is its first record."""

    id: str
    name: str
    thread: str | None
    opening: Record
    version: str
    parent: str | None = None


def start(store: Store, new: NewRun, worker: str | None) -> tuple[bool, str | None]:
    """Insert a run: owned by `worker` when its thread is free, else queued and reserved for it; unreserved without one.

    Returns:
        (False, None) when the id exists; (True, token) when the caller owns the run; (True, None) when it is queued.
    """
    token = uuid.uuid4().hex

    def work(tx: Transaction) -> tuple[bool, str | None]:
        owned = worker is not None and (new.thread is None or _thread_is_free(tx, new.thread))
        inserted = tx.execute(
            "INSERT INTO workflow_status (workflow_uuid, status, name, executor_id, created_at, updated_at,"
            " application_version, recovery_attempts, queue_name, started_at_epoch_ms, deduplication_id, priority,"
            " queue_partition_key, owner_xid, creator_xid, serialization, application_name, parent_workflow_id)"
            f" VALUES (?, ?, ?, ?, {store.now}, {store.now}, ?, ?, '{QUEUE}', ?, ?, 0, ?, ?, ?, '{_PORTABLE}',"
            f" '{APPLICATION}', ?) ON CONFLICT DO NOTHING",
            (
                new.id, "PENDING" if owned else "ENQUEUED", new.name, worker, new.version, int(owned),
                new.opening.body["at"] // 1000 if owned else None, new.thread if owned else None, new.thread,
                token if owned else None, token, new.parent,
            ),
        )  # fmt: skip
        if not inserted:
            mine = tx.query(
                "SELECT owner_xid FROM workflow_status WHERE workflow_uuid = ? AND creator_xid = ?",
                (new.id, token),
            )
            if mine:  # committed by an earlier try whose answer was lost
                return True, mine[0][0]
            if not tx.query("SELECT 1 FROM workflow_status WHERE workflow_uuid = ?", (new.id,)):
                raise _ThreadTaken  # another run took the thread between our look and the insert
            return False, None
        at = new.opening.body["at"] // 1000
        tx.execute(
            "INSERT INTO workflow_input (workflow_uuid, inputs, retention_timestamp) VALUES (?, ?, ?)",
            (new.id, '{"positionalArgs":[{"input_in_step":1}],"namedArgs":{}}', at),
        )
        tx.execute(
            "INSERT INTO operation_outputs (workflow_uuid, function_id, function_name, output, started_at_epoch_ms,"
            " completed_at_epoch_ms, serialization, application_name, retention_timestamp)"
            f" VALUES (?, 1, ?, ?, ?, ?, '{_PORTABLE}', '{APPLICATION}', ?)",
            (new.id, new.opening.path, new.opening.dump(), at, at, at),
        )
        if owned and new.thread is not None:
            _supersede(store, tx, new.thread, new.id)
        return True, token if owned else None

    while True:
        try:
            return store.transact(work)
        except _ThreadTaken:
            continue


class _ThreadTaken(Exception):
    pass


def _thread_is_free(tx: Transaction, thread: str) -> bool:
    return not tx.query(
        f"SELECT 1 FROM workflow_status WHERE queue_name = '{QUEUE}' AND queue_partition_key = ?"
        " AND status IN ('ENQUEUED', 'PENDING') LIMIT 1",
        (thread,),
    )


def _supersede(store: Store, tx: Transaction, thread: str, by: str) -> None:
    """A new run on a thread drops the pause of the run that waits there, as a new input does natively."""
    tx.execute(
        f"UPDATE workflow_status SET status = 'CANCELLED', updated_at = {store.now}, completed_at = {store.now},"
        " attributes = ? WHERE queue_name = ? AND queue_partition_key = ? AND status = 'DELAYED'"
        " AND workflow_uuid <> ?",
        (dumps({"superseded_by": by}), QUEUE, thread, by),
    )


# -- claim and release


def claim(
    store: Store,
    worker: str,
    names: Sequence[str],
    limit: int,
    *,
    only: str | None = None,
    shunned: Collection[str] = (),
) -> list[tuple[str, str, str]]:
    """Take queued runs, oldest first; of each thread the oldest, and only while no other run of it is active.

    Args:
        names: runners this process has. Rows of others stay where they are.
        only: claim just this run, also when it is reserved for this worker's own caller.
        shunned: run ids to leave to others.

    Returns:
        (run id, runner name, owner token) per claimed run.
    """
    if not names or limit < 1:
        return []
    waiting = f"SELECT 1 FROM workflow_status WHERE queue_name IN {_QUEUES} AND status = 'ENQUEUED' LIMIT 1"
    if only is None and not store.query(waiting):  # look before locking: an empty claim must not write
        return []
    tie = _tie(store)
    marks = ", ".join("?" * len(names))
    # DBOS's own resume leaves the old worker on the row and moves it to another queue: that is no reservation.
    open_to_all = f"w.executor_id IS NULL OR w.queue_name <> '{QUEUE}'"
    mine = (
        f"({open_to_all})"
        if only is None
        else f"w.workflow_uuid = ? AND ({open_to_all} OR w.executor_id = ?)"
    )
    if shunned:
        mine += f" AND w.workflow_uuid NOT IN ({', '.join('?' * len(shunned))})"
    token = uuid.uuid4().hex
    candidates = (
        f"SELECT w.workflow_uuid FROM workflow_status w WHERE w.queue_name IN {_QUEUES} AND w.status = 'ENQUEUED'"
        f" AND w.application_name = '{APPLICATION}' AND w.name IN ({marks}) AND {mine}"
        " AND (w.queue_partition_key IS NULL OR NOT EXISTS (SELECT 1 FROM workflow_status o"
        f" WHERE o.queue_name IN {_QUEUES} AND o.queue_partition_key = w.queue_partition_key"
        " AND o.workflow_uuid <> w.workflow_uuid AND (o.status = 'PENDING' OR (o.status = 'ENQUEUED'"
        f" AND (o.created_at, o.{tie}) < (w.created_at, w.{tie})))))"
        f" ORDER BY w.created_at, w.{tie} LIMIT ?{store.skip_locked}"
    )

    def work(tx: Transaction) -> list[tuple[str, str, str]]:
        rows = tx.query(
            f"UPDATE workflow_status SET status = 'PENDING', owner_xid = ?, executor_id = ?, queue_name = '{QUEUE}',"
            f" recovery_attempts = COALESCE(recovery_attempts, 0) + 1, deduplication_id = queue_partition_key,"
            f" started_at_epoch_ms = {store.now}, updated_at = {store.now}"
            f" WHERE status = 'ENQUEUED' AND workflow_uuid IN ({candidates})"
            " RETURNING workflow_uuid, name, queue_partition_key",
            (token, worker, *names, *((only, worker) if only else ()), *shunned, limit),
        )
        for run_id, _, thread in rows:
            if thread is not None:
                _supersede(store, tx, thread, run_id)
        return [(run_id, name, token) for run_id, name, _ in rows]

    try:
        return store.transact(work)
    except Exception as error:
        if _is_conflict(
            error
        ):  # another worker took a run of the same thread first: nothing is claimed, look again later
            return []
        raise


def _is_conflict(error: Exception) -> bool:
    return type(error).__name__ in (
        "IntegrityError",
        "UniqueViolation",
        "DeadlockDetected",
        "SerializationFailure",
    )


_REQUEUE = (
    "UPDATE workflow_status SET status = 'ENQUEUED', owner_xid = NULL, executor_id = NULL, started_at_epoch_ms = NULL,"
    " updated_at = {now} WHERE status = 'PENDING' AND "
)


def release(store: Store, run_id: str, owner: str) -> bool:
    """Hand an owned run back to any worker; it keeps its thread and its place in the queue."""
    return (
        store.execute(_REQUEUE.format(now=store.now) + "workflow_uuid = ? AND owner_xid = ?", (run_id, owner))
        == 1
    )


def release_dead(store: Store) -> int:
    """Re-queue what dead workers left running, and free what they had reserved. Dead is who has no row."""
    dead = "executor_id NOT IN (SELECT worker_id FROM durable_agents_worker)"
    theirs = f"queue_name = '{QUEUE}' AND executor_id IS NOT NULL AND {dead}"
    if not store.query(
        f"SELECT 1 FROM workflow_status WHERE status IN ('PENDING', 'ENQUEUED') AND {theirs} LIMIT 1"
    ):
        return 0
    store.execute(f"UPDATE workflow_status SET executor_id = NULL WHERE status = 'ENQUEUED' AND {theirs}")
    return store.execute(_REQUEUE.format(now=store.now) + theirs)


def owned_by(store: Store, worker: str) -> list[tuple[str, str, bool]]:
    """(run id, owner token, cancel requested) of every run this worker owns."""
    rows = store.query(
        "SELECT workflow_uuid, owner_xid, attributes FROM workflow_status"
        f" WHERE status = 'PENDING' AND executor_id = ? AND queue_name = '{QUEUE}'",
        (worker,),
    )
    return [(run_id, owner, bool(_attributes(raw).get("cancel"))) for run_id, owner, raw in rows]


def _attributes(raw: Any) -> dict[str, Any]:
    found = json.loads(raw) if isinstance(raw, str) else raw
    return found if isinstance(found, dict) else {}


def owner(store: Store, run_id: str) -> str | None:
    """The token that owns a run now."""
    rows = store.query("SELECT owner_xid FROM workflow_status WHERE workflow_uuid = ?", (run_id,))
    return rows[0][0] if rows else None


# -- end, wait, answer, cancel


def finish(
    store: Store, record: Record, owner: str, status: str, rows: Sequence[Statement] = (), error: str = ""
) -> bool:
    """Write the close record and the outcome in one transaction, while `owner` owns the run."""

    def work(tx: Transaction) -> bool:
        if not _append_in(store, tx, record, owner, rows):
            return False
        run_id = record.body["run"]
        tx.execute(
            "UPDATE workflow_status SET status = ?, owner_xid = NULL, deduplication_id = NULL, attributes = NULL,"
            f" updated_at = {store.now}, completed_at = {store.now} WHERE workflow_uuid = ?",
            (status, run_id),
        )
        tx.execute(
            "INSERT INTO workflow_output (workflow_uuid, output, error, retention_timestamp) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (workflow_uuid) DO UPDATE SET output = excluded.output, error = excluded.error",
            (
                run_id,
                None if error else dumps({"result_in_step": record.seq}),
                error or None,
                record.body["at"] // 1000,
            ),
        )
        return True

    return store.transact(work)


def park(
    store: Store, record: Record, owner: str, rows: Sequence[Statement] = ()
) -> Literal["parked", "cancelled"] | None:
    """Write the record of the questions and let go of the run, its worker and its thread, in one transaction.

    A run that somebody wanted to cancel ends instead. None when `owner` no longer owns the run.
    """

    def work(tx: Transaction) -> Literal["parked", "cancelled"] | None:
        if not _append_in(store, tx, record, owner, rows):
            return None
        run_id = record.body["run"]
        ((raw,),) = tx.query("SELECT attributes FROM workflow_status WHERE workflow_uuid = ?", (run_id,))
        if _attributes(raw).get("cancel"):
            tx.execute(_CANCEL.format(now=store.now) + "workflow_uuid = ?", (run_id,))
            return "cancelled"
        tx.execute(
            "UPDATE workflow_status SET status = 'DELAYED', delay_until_epoch_ms = ?, owner_xid = NULL,"
            f" executor_id = NULL, deduplication_id = NULL, updated_at = {store.now} WHERE workflow_uuid = ?",
            (_FOREVER, run_id),
        )
        return "parked"

    return store.transact(work)


def _append_in(store: Store, tx: Transaction, record: Record, owner: str, rows: Sequence[Statement]) -> bool:
    if tx.execute(_insert_record_sql(store) + " ON CONFLICT DO NOTHING", _record_params(record, owner)) != 1:
        return _is_stored(tx.query, record)
    tx.write(rows)
    return True


def locked(store: Store, tx: Transaction, run_id: str) -> tuple[Row, list[Record]] | None:
    """The row, kept from changing until the transaction ends, and its records."""
    found = tx.query(
        f"{_ROW} WHERE workflow_uuid = ? AND application_name = ?{store.lock_row}", (run_id, APPLICATION)
    )
    if not found:
        return None
    texts = tx.query(
        "SELECT output FROM operation_outputs WHERE workflow_uuid = ? ORDER BY function_id", (run_id,)
    )
    return _row(found[0]), [Record.load(text) for (text,) in texts]


def reopen(store: Store, tx: Transaction, record: Record, worker: str | None) -> str | None:
    """Append to a waiting row that `tx` has locked and make it queued, or owned by `worker`: then its token."""
    run_id, at, token = record.body["run"], record.body["at"] // 1000, uuid.uuid4().hex
    tx.execute(
        "INSERT INTO operation_outputs (workflow_uuid, function_id, function_name, output, started_at_epoch_ms,"
        " completed_at_epoch_ms, serialization, application_name, retention_timestamp)"
        f" VALUES (?, ?, ?, ?, ?, ?, '{_PORTABLE}', '{APPLICATION}', ?)",
        (run_id, record.seq, record.path, record.dump(), at, at, at),
    )
    if worker is None:
        tx.execute(
            "UPDATE workflow_status SET status = 'ENQUEUED', delay_until_epoch_ms = NULL, executor_id = NULL,"
            f" updated_at = {store.now} WHERE workflow_uuid = ?",
            (run_id,),
        )
        return None
    tx.execute(
        "UPDATE workflow_status SET status = 'PENDING', delay_until_epoch_ms = NULL, owner_xid = ?, executor_id = ?,"
        " recovery_attempts = recovery_attempts + 1, deduplication_id = queue_partition_key,"
        f" started_at_epoch_ms = {store.now}, updated_at = {store.now} WHERE workflow_uuid = ?",
        (token, worker, run_id),
    )
    return token


_CANCEL = (
    "UPDATE workflow_status SET status = 'CANCELLED', owner_xid = NULL, executor_id = NULL, deduplication_id = NULL,"
    " updated_at = {now}, completed_at = {now} WHERE "
)


def request_cancel(store: Store, run_id: str) -> None:
    """Cancel a run that nobody drives at once; ask the owner of a running one."""

    def work(tx: Transaction) -> None:
        tx.query(f"SELECT 1 FROM workflow_status WHERE workflow_uuid = ?{store.lock_row}", (run_id,))
        undriven = "workflow_uuid = ? AND status IN ('ENQUEUED', 'DELAYED')"
        tx.execute(_CANCEL.format(now=store.now) + undriven, (run_id,))
        tx.execute(
            "UPDATE workflow_status SET attributes = ? WHERE workflow_uuid = ? AND status = 'PENDING'",
            ('{"cancel":true}', run_id),
        )

    store.transact(work)


def unreserve(store: Store, run_id: str, worker: str) -> None:
    """Open a queued run that waits for its caller to any worker."""
    store.execute(
        "UPDATE workflow_status SET executor_id = NULL"
        " WHERE workflow_uuid = ? AND executor_id = ? AND status = 'ENQUEUED'",
        (run_id, worker),
    )
