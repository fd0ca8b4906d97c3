"""The row of a run, and the questions that one can ask of it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...record import WAIT
from ..base import Store, Transaction

QUEUE = "durable_agents"
APPLICATION = "durable_agents"
# DBOS's own `resume` puts a row on its internal queue; we take it back from there.
QUEUES = f"('{QUEUE}', '_dbos_internal_queue')"
FOREVER = 2**63 - 1
# The condition of DBOS's partial indexes on what is queued or running. SQLite uses them only for statements that have
# it word for word.
ACTIVE = "status IN ('ENQUEUED', 'PENDING')"
PORTABLE = "portable_json"
# What JSON may write in another way, and LIKE may read in another way.
_SPECIAL = re.compile(r"[^A-Za-z0-9-]+")

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
    """What a run's row says. `status` is DBOS's word, `state` ours.

    `rested` says that the claim that is now came after a rest, `blocked` why the worker that looked last would not
    drive the run; `cancelled` that somebody has asked its owner to stop.
    """

    id: str
    name: str
    status: str
    owner: str | None
    worker: str | None
    epoch: int
    thread: str | None
    created: int
    rested: bool
    blocked: str
    cancelled: bool

    @property
    def state(self) -> str:
        return STATUS.get(self.status) or ("running" if self.epoch else "queued")

    @property
    def over(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


ROW = (
    "SELECT workflow_uuid, name, status, owner_xid, executor_id, recovery_attempts, queue_partition_key, created_at,"
    " delay_until_epoch_ms, attributes FROM workflow_status"
)


def row_of(values: tuple[Any, ...]) -> Row:
    run_id, name, status, owner, worker, epoch, thread, created, delay, raw = values
    noted = attributes(raw)
    return Row(
        run_id, name, status, owner, worker, int(epoch or 0), thread, created, delay == 0,
        str(noted.get("blocked", "")), bool(noted.get("cancel")),
    )  # fmt: skip


def get(store: Store, run_id: str) -> Row | None:
    rows = store.query(f"{ROW} WHERE workflow_uuid = ? AND application_name = ?", (run_id, APPLICATION))
    return row_of(rows[0]) if rows else None


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
    order = tie(store)
    sql = f"{ROW} WHERE {' AND '.join(where)} ORDER BY created_at DESC, {order} DESC LIMIT ?"
    return [row_of(values) for values in store.query(sql, (*params, limit))]


def tie(store: Store) -> str:
    """What orders rows of one millisecond."""
    return "rowid" if store.dialect == "sqlite" else "workflow_uuid"


def thread_key(name: str, thread: str) -> str:
    """A thread as the row knows it: two runners may use the same thread ids for different conversations."""
    return f"{name}/{thread}"


def waiting_on(store: Store, name: str, thread: str) -> Row | None:
    """The run of this runner that waits on this thread."""
    rows = store.query(
        f"{ROW} WHERE name = ? AND queue_partition_key = ? AND status = 'DELAYED' AND application_name = ?"
        " ORDER BY created_at DESC LIMIT 1",
        (name, thread_key(name, thread), APPLICATION),
    )
    return row_of(rows[0]) if rows else None


def asked(store: Store, name: str, text: str, thread: str | None, *, waiting: bool) -> list[str]:
    """Ids of the runs of this runner that may wait, or have waited, with `text` in what was asked; newest first."""
    where, params = "", [name, APPLICATION, f"{WAIT}:%", f"%{_SPECIAL.sub('%', text)}%"]
    if waiting:
        where = f" AND {_STATES['waiting']}"
    if thread is not None:
        where += " AND queue_partition_key = ?"
        params.append(thread_key(name, thread))
    found = store.query(
        "SELECT workflow_uuid FROM workflow_status WHERE name = ? AND application_name = ? AND EXISTS (SELECT 1 FROM"
        " operation_outputs AS step WHERE step.workflow_uuid = workflow_status.workflow_uuid"
        f" AND step.function_name LIKE ? AND step.output LIKE ?){where} ORDER BY created_at DESC",
        params,
    )
    return [run_id for (run_id,) in found]


def came_after(tx: Transaction, row: Row) -> str | None:
    """A run that was driven on the thread of a run that is over, after that had ended; None when there is none."""
    found = tx.query(
        "SELECT later.workflow_uuid FROM workflow_status AS ended JOIN workflow_status AS later"
        " ON later.queue_partition_key = ended.queue_partition_key AND later.name = ended.name"
        " AND later.workflow_uuid <> ended.workflow_uuid AND (later.started_at_epoch_ms >= ended.completed_at"
        " OR (later.status = 'ENQUEUED' AND later.recovery_attempts > 0)) WHERE ended.workflow_uuid = ? LIMIT 1",
        (row.id,),
    )
    return str(found[0][0]) if found else None


def is_alive(store: Store, tx: Transaction, worker: str) -> bool:
    """Whether nobody has declared the worker dead, nor does before the transaction ends.

    One that was, and has not noticed yet, must take no run: the next sweep would take it away again.
    """
    sql = "SELECT 1 FROM durable_agents_worker WHERE worker_id = ?"
    return bool(tx.query(sql + (" FOR KEY SHARE" if store.dialect == "postgresql" else ""), (worker,)))


def owner(store: Store, run_id: str) -> str | None:
    """The token that owns a run now."""
    rows = store.query("SELECT owner_xid FROM workflow_status WHERE workflow_uuid = ?", (run_id,))
    return rows[0][0] if rows else None


def attributes(raw: Any) -> dict[str, Any]:
    found = json.loads(raw) if isinstance(raw, str) else raw
    return found if isinstance(found, dict) else {}
