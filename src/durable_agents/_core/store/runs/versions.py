"""Runs and the versions of their agents' code: which runs wait for other code, and that this can be seen."""

from collections.abc import Mapping

from ...codec import dumps
from ..base import Store, Transaction
from .rows import ACTIVE, QUEUE, attributes


def stranded(store: Store, wanted: Mapping[str, str | None], limit: int) -> list[tuple[str, str]]:
    """(run id, runner name) of queued runs that wait for another version, and of which nobody has said so yet."""
    exact = {name: version for name, version in wanted.items() if version is not None}
    if not exact:
        return []
    other = " OR ".join(["name = ? AND application_version <> ?"] * len(exact))
    rows = store.query(
        f"SELECT workflow_uuid, name FROM workflow_status WHERE queue_name = '{QUEUE}' AND {ACTIVE}"
        f" AND status = 'ENQUEUED' AND attributes IS NULL AND ({other}) LIMIT ?",
        (*(value for pair in exact.items() for value in pair), limit),
    )
    return [(run_id, name) for run_id, name in rows]


def block(store: Store, run_id: str, why: str) -> None:
    """Note on a queued run why workers leave it alone, for who looks at it."""

    def work(tx: Transaction) -> None:
        found = tx.query(
            "SELECT 1 FROM workflow_status WHERE workflow_uuid = ? AND status = 'ENQUEUED'" + store.lock_row,
            (run_id,),
        )
        if found:
            note(tx, run_id, {"blocked": why})

    store.transact(work)


def unblock(store: Store, run_id: str) -> None:
    """Somebody drives the run after all."""
    store.transact(lambda tx: note(tx, run_id, {}))


def set_version(store: Store, run_id: str, owner: str, version: str) -> None:
    """The run goes on under other code."""
    sql = "UPDATE workflow_status SET application_version = ? WHERE workflow_uuid = ? AND owner_xid = ?"
    store.execute(sql, (version, run_id, owner))


def note(tx: Transaction, run_id: str, changes: dict[str, str]) -> None:
    ((raw,),) = tx.query("SELECT attributes FROM workflow_status WHERE workflow_uuid = ?", (run_id,))
    kept = {k: v for k, v in attributes(raw).items() if k != "blocked"}
    tx.execute(
        "UPDATE workflow_status SET attributes = ? WHERE workflow_uuid = ?",
        (dumps({**kept, **changes}) if kept or changes else None, run_id),
    )
