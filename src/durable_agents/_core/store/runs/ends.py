"""How a run comes to rest, and back: its outcome, its pause, its cancellation, its return to the queue."""

import secrets
from collections.abc import Sequence
from typing import Literal

from ...codec import dumps
from ...record import CLOSE, Draft, Record
from ..base import Statement, Store, Transaction
from .appends import append_in, insert
from .rows import APPLICATION, FOREVER, ROW, Row, attributes, is_alive, row_of


def finish(
    store: Store, record: Record, owner: str, status: str, rows: Sequence[Statement] = (), error: str = ""
) -> bool:
    """Write the close record and the outcome in one transaction, while `owner` owns the run."""

    def work(tx: Transaction) -> bool:
        written = append_in(store, tx, record, owner, rows)
        if written == "new":
            _end(store, tx, record, status, error)
        return written is not None

    return store.transact(work)


def _end(store: Store, tx: Transaction, record: Record, status: str, error: str = "") -> None:
    """The outcome in the row, beside the close record."""
    run_id = record.body["run"]
    tx.execute(
        "UPDATE workflow_status SET status = ?, owner_xid = NULL, deduplication_id = NULL, attributes = NULL,"
        f" delay_until_epoch_ms = NULL, updated_at = {store.now}, completed_at = {store.now}"
        " WHERE workflow_uuid = ?",
        (status, run_id),
    )
    result = None if error else dumps({"result_in_step": record.seq})
    tx.execute(
        "INSERT INTO workflow_output (workflow_uuid, output, error, retention_timestamp) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (workflow_uuid) DO UPDATE SET output = excluded.output, error = excluded.error",
        (run_id, result, _as_text(error) or None, record.body["at"] // 1000),
    )


def _as_text(text: str) -> str:
    """The text with what no database takes as text made visible: halves of characters, and NUL."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def park(
    store: Store, record: Record, owner: str, rows: Sequence[Statement] = ()
) -> Literal["parked", "cancelled"] | None:
    """Write the record of the questions and let go of the run, its worker and its thread, in one transaction.

    A run that somebody wanted to cancel ends instead. None when `owner` no longer owns the run.
    """

    def work(tx: Transaction) -> Literal["parked", "cancelled"] | None:
        written = append_in(store, tx, record, owner, rows)
        if written is None:
            return None
        run_id = record.body["run"]
        ((status, raw),) = tx.query(
            "SELECT status, attributes FROM workflow_status WHERE workflow_uuid = ?", (run_id,)
        )
        if written == "again":
            return "cancelled" if status == "CANCELLED" else "parked"
        if attributes(raw).get("cancel"):
            _cancel(store, tx, record, int(record.body["epoch"]), {})
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


def reopen(store: Store, tx: Transaction, record: Record, worker: str | None = None, token: str = "") -> bool:
    """Append to a row at rest that `tx` has locked, and make it queued, or owned by `worker` under `token`.

    A worker that was declared dead gets nothing: whoever drives the run finds it in the queue.

    Returns:
        Whether `worker` owns the run.
    """
    run_id = record.body["run"]
    insert(tx, record)
    if worker is None or not is_alive(store, tx, worker):
        tx.execute(
            "UPDATE workflow_status SET status = 'ENQUEUED', delay_until_epoch_ms = NULL, executor_id = NULL,"
            f" completed_at = NULL, updated_at = {store.now} WHERE workflow_uuid = ?",
            (run_id,),
        )
        return False
    tx.execute(
        "UPDATE workflow_status SET status = 'PENDING', delay_until_epoch_ms = NULL, owner_xid = ?, executor_id = ?,"
        " recovery_attempts = recovery_attempts + 1, deduplication_id = queue_partition_key,"
        f" started_at_epoch_ms = {store.now}, updated_at = {store.now} WHERE workflow_uuid = ?",
        (token, worker, run_id),
    )
    return True


def new_token() -> str:
    """What names one claim of a run."""
    return secrets.token_hex(16)


def _cancel(store: Store, tx: Transaction, last: Record, epoch: int, why: dict[str, str]) -> None:
    """End a run that nobody drives, whose newest record is `last`."""
    draft = Draft(CLOSE, CLOSE, dumps(why), status="cancelled")
    record = draft.after(last, epoch=epoch)
    insert(tx, record)
    _end(store, tx, record, "CANCELLED")


def supersede(store: Store, tx: Transaction, thread: str, by: str) -> None:
    """A new run on a thread drops the pause of the run that waits there, as a new input does natively."""
    waiting = tx.query(
        "SELECT workflow_uuid FROM workflow_status WHERE queue_name = 'durable_agents' AND queue_partition_key = ?"
        f" AND status = 'DELAYED' AND workflow_uuid <> ?{store.lock_row}",
        (thread, by),
    )
    for (run_id,) in waiting:
        found = locked(store, tx, run_id)
        if found is not None and found[0].status == "DELAYED":
            row, records = found
            _cancel(store, tx, records[-1], row.epoch, {"superseded_by": by})


def request_cancel(store: Store, run_id: str) -> None:
    """Cancel a run that nobody drives at once; ask the owner of a running one."""

    def work(tx: Transaction) -> None:
        found = locked(store, tx, run_id)
        if found is None:
            return
        row, records = found
        if row.status in ("ENQUEUED", "DELAYED"):
            _cancel(store, tx, records[-1], row.epoch, {})
        elif row.status == "PENDING":
            tx.execute(
                "UPDATE workflow_status SET attributes = ? WHERE workflow_uuid = ?",
                ('{"cancel":true}', run_id),
            )

    store.transact(work)
