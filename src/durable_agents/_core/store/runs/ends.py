"""How a run comes to rest: its outcome, its pause and the answer to that, its cancellation."""

import uuid
from collections.abc import Sequence
from typing import Literal

from ...codec import dumps
from ...record import Record
from ..base import Statement, Store, Transaction
from .appends import append_in
from .rows import APPLICATION, FOREVER, PORTABLE, ROW, Row, attributes, row_of


def finish(
    store: Store, record: Record, owner: str, status: str, rows: Sequence[Statement] = (), error: str = ""
) -> bool:
    """Write the close record and the outcome in one transaction, while `owner` owns the run."""

    def work(tx: Transaction) -> bool:
        if not append_in(store, tx, record, owner, rows):
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
        if not append_in(store, tx, record, owner, rows):
            return None
        run_id = record.body["run"]
        ((raw,),) = tx.query("SELECT attributes FROM workflow_status WHERE workflow_uuid = ?", (run_id,))
        if attributes(raw).get("cancel"):
            tx.execute(_CANCEL.format(now=store.now) + "workflow_uuid = ?", (run_id,))
            return "cancelled"
        tx.execute(
            "UPDATE workflow_status SET status = 'DELAYED', delay_until_epoch_ms = ?, owner_xid = NULL,"
            f" executor_id = NULL, deduplication_id = NULL, updated_at = {store.now} WHERE workflow_uuid = ?",
            (FOREVER, run_id),
        )
        return "parked"

    return store.transact(work)


def locked(store: Store, tx: Transaction, run_id: str) -> tuple[Row, list[Record]] | None:
    """The row, kept from changing until the transaction ends, and its records."""
    found = tx.query(
        f"{ROW} WHERE workflow_uuid = ? AND application_name = ?{store.lock_row}", (run_id, APPLICATION)
    )
    if not found:
        return None
    texts = tx.query(
        "SELECT output FROM operation_outputs WHERE workflow_uuid = ? ORDER BY function_id", (run_id,)
    )
    return row_of(found[0]), [Record.load(text) for (text,) in texts]


def reopen(store: Store, tx: Transaction, record: Record, worker: str | None) -> str | None:
    """Append to a waiting row that `tx` has locked and make it queued, or owned by `worker`: then its token."""
    run_id, at, token = record.body["run"], record.body["at"] // 1000, uuid.uuid4().hex
    tx.execute(
        "INSERT INTO operation_outputs (workflow_uuid, function_id, function_name, output, started_at_epoch_ms,"
        " completed_at_epoch_ms, serialization, application_name, retention_timestamp)"
        f" VALUES (?, ?, ?, ?, ?, ?, '{PORTABLE}', '{APPLICATION}', ?)",
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
