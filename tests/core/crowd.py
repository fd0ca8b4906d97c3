"""Thousands of runs at rest, made in a second: copies of one that really came to rest."""

from collections.abc import Sequence

from durable_agents._core.record import OPEN, Draft, Record
from durable_agents._core.store import Statement, Store
from durable_agents._core.store.runs import get, thread_key

Rows = list[tuple[object, ...]]


def multiply(store: Store, run_id: str, copies: Sequence[str]) -> None:
    """Insert copies of a run as if each had come to rest like it, a moment before it, on a thread of its own name."""
    model = get(store, run_id)
    assert model is not None
    statements = []
    for table in ("workflow_status", "workflow_input", "workflow_output", "operation_outputs"):
        columns = _columns(store, table)
        found = store.query(f"SELECT {', '.join(columns)} FROM {table} WHERE workflow_uuid = ?", (run_id,))
        rows: Rows = []
        for number, copy in enumerate(copies, 1):
            changes: dict[str, object] = {"workflow_uuid": copy}
            if table == "workflow_status":
                changes |= {
                    "queue_partition_key": thread_key(model.name, copy),
                    "created_at": model.created - number,
                }
            rows += [tuple({**dict(zip(columns, row, strict=True)), **changes}.values()) for row in found]
        if table == "operation_outputs":
            rows = _sealed(rows, columns)
        marks = ", ".join("?" * len(columns))
        statements.append(
            Statement(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(rows))
        )
    store.write(statements)


def _columns(store: Store, table: str) -> list[str]:
    if store.dialect == "sqlite":
        return [row[1] for row in store.query(f"PRAGMA table_info({table})")]
    sql = "SELECT column_name FROM information_schema.columns WHERE table_name = ? AND is_generated = 'NEVER'"
    return [name for (name,) in store.query(sql, (table,))]


def _sealed(rows: Rows, columns: list[str]) -> Rows:
    """The records with their run's id in them, and chained."""
    run_at, number_at, output_at = (columns.index(c) for c in ("workflow_uuid", "function_id", "output"))
    sealed: Rows = []
    last: Record | None = None
    for row in sorted(rows, key=lambda row: (row[run_at], row[number_at])):
        old = Record.load(str(row[output_at]))
        body = old.body
        draft = Draft(
            old.kind, old.path, old.payload or "", name=body.get("name", ""), status=old.status,
            started=body.get("started", 0),
        )  # fmt: skip
        first = old.kind == OPEN
        last = draft.seal(
            run=str(row[run_at]),
            seq=old.seq,
            prev="" if first or last is None else last.hash,
            at=body["at"],
            worker=body["worker"],
            epoch=body["epoch"],
        )
        sealed.append((*row[:output_at], last.dump(), *row[output_at + 1 :]))
    return sealed
