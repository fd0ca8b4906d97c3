"""The records of a run: read in order, written one by one while their writer owns the run."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ...record import Record
from ..base import Statement, Store, Transaction
from .rows import APPLICATION, PORTABLE


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
        f" SELECT s.workflow_uuid, ?, ?, ?, ?, ?, '{PORTABLE}', s.application_name, ?"
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


def append_in(
    store: Store, tx: Transaction, record: Record, owner: str, rows: Sequence[Statement]
) -> Literal["new", "again"] | None:
    """`append` inside a transaction that does more.

    "again": an earlier try of the whole transaction was committed and its answer lost. The run may have gone on since,
    in other hands, so nothing more may be done. None when `owner` no longer owns the run.
    """
    if tx.execute(_insert_record_sql(store) + " ON CONFLICT DO NOTHING", _record_params(record, owner)) != 1:
        return "again" if _is_stored(tx.query, record) else None
    tx.write(rows)
    return "new"


def insert(tx: Transaction, record: Record) -> None:
    """Append to a run whose row the transaction has locked, and that nobody owns."""
    at = record.body["at"] // 1000
    tx.execute(
        "INSERT INTO operation_outputs (workflow_uuid, function_id, function_name, output, started_at_epoch_ms,"
        " completed_at_epoch_ms, serialization, application_name, retention_timestamp)"
        f" VALUES (?, ?, ?, ?, ?, ?, '{PORTABLE}', '{APPLICATION}', ?)",
        (record.body["run"], record.seq, record.path, record.dump(), at, at, at),
    )
