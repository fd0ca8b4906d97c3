"""Who drives a run: its start, its claim by a worker, its way back to the queue."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...record import Record
from ..base import Store, Transaction
from .appends import insert
from .ends import new_token, supersede
from .rows import ACTIVE, APPLICATION, PORTABLE, QUEUE, QUEUES, attributes, is_alive, tie
from .versions import note

LONGEST_REST = 30.0
"""Seconds; see `unclaim`."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run about to be inserted; `opening` is its first record."""

    id: str
    name: str
    thread: str | None
    opening: Record
    version: str
    parent: str | None = None
    forked_from: str | None = None


def start(store: Store, new: NewRun, worker: str | None) -> tuple[bool, str | None]:
    """Insert a run: owned by `worker` when its thread is free, else queued and reserved for it; unreserved without one.

    Returns:
        (False, None) when the id exists; (True, token) when the caller owns the run; (True, None) when it is queued.
    """
    token = new_token()

    def work(tx: Transaction) -> tuple[bool, str | None]:
        owned = (
            worker is not None
            and is_alive(store, tx, worker)
            and (new.thread is None or _thread_is_free(tx, new.thread))
        )
        if owned and new.thread is not None:
            # Before we take the thread: an answer that comes at the same time must not wait for us, nor lose its turn.
            supersede(store, tx, new.thread, new.id)
            if not _thread_is_free(tx, new.thread):
                raise _ThreadTaken
        # Two of one process never have the same time: what it starts first on a thread is the older.
        inserted = tx.query(
            "INSERT INTO workflow_status (workflow_uuid, status, name, executor_id, created_at, updated_at,"
            " application_version, recovery_attempts, queue_name, started_at_epoch_ms, deduplication_id, priority,"
            " queue_partition_key, owner_xid, creator_xid, serialization, application_name, parent_workflow_id,"
            " forked_from)"
            f" VALUES (?, ?, ?, ?, CASE WHEN {store.now} > ? THEN {store.now} ELSE ? END, {store.now}, ?, ?, '{QUEUE}',"
            f" {store.now if owned else 'NULL'}, ?, 0, ?, ?, ?, '{PORTABLE}', '{APPLICATION}', ?, ?)"
            " ON CONFLICT DO NOTHING RETURNING created_at",
            (
                new.id, "PENDING" if owned else "ENQUEUED", new.name, worker, store.latest,
                store.latest + 1, new.version, int(owned),
                new.thread if owned else None, new.thread, token if owned else None, token, new.parent,
                new.forked_from,
            ),
        )  # fmt: skip
        if not inserted:
            mine = tx.query(
                "SELECT owner_xid FROM workflow_status WHERE workflow_uuid = ? AND creator_xid = ?",
                (new.id, token),
            )
            if mine:  # committed by an earlier try whose answer was lost; it may have been taken over since
                raise _Exists(True, token if mine[0][0] == token else None)
            if tx.query("SELECT 1 FROM workflow_status WHERE workflow_uuid = ?", (new.id,)):
                raise _Exists(False, None)
            raise _ThreadTaken  # another run took the thread between our look and the insert
        store.latest = max(store.latest, inserted[0][0])
        tx.execute(
            "INSERT INTO workflow_input (workflow_uuid, inputs, retention_timestamp) VALUES (?, ?, ?)",
            (
                new.id,
                '{"positionalArgs":[{"input_in_step":1}],"namedArgs":{}}',
                new.opening.body["at"] // 1000,
            ),
        )
        insert(tx, new.opening)
        return True, token if owned else None

    while True:
        try:
            return store.transact(work)
        except _Exists as found:
            return found.new, found.token
        except _ThreadTaken:
            continue


class _ThreadTaken(Exception):
    """Nothing is inserted, and no pause dropped: look again."""


class _Exists(Exception):
    """Nothing is inserted, and no pause dropped: the run is there."""

    def __init__(self, new: bool, token: str | None) -> None:
        self.new, self.token = new, token


def _thread_is_free(tx: Transaction, thread: str) -> bool:
    return not tx.query(
        f"SELECT 1 FROM workflow_status WHERE queue_name = '{QUEUE}' AND queue_partition_key = ?"
        f" AND {ACTIVE} LIMIT 1",
        (thread,),
    )


def claim(
    store: Store,
    worker: str,
    wanted: Mapping[str, str | None],
    limit: int,
    *,
    only: str | None = None,
    shunned: Collection[str] = (),
) -> list[tuple[str, str, str]]:
    """Take queued runs, oldest first; of each thread the one that was running already, else the oldest.

    Args:
        wanted: runners this process has, each with the version of its code that it takes runs of; None: of any. Rows of
            others stay where they are.
        only: claim just this run, also when it is reserved for this worker's own caller.
        shunned: run ids to leave to others.

    Returns:
        (run id, runner name, owner token) per claimed run.
    """
    if not wanted or limit < 1:
        return []
    order = tie(store)
    ours, names = _of_these(wanted)
    # DBOS's own resume leaves the old worker on the row and moves it to another queue: that is no reservation.
    open_to_all = f"w.executor_id IS NULL OR w.queue_name <> '{QUEUE}'"
    mine = (
        f"({open_to_all})"
        if only is None
        else f"w.workflow_uuid = ? AND ({open_to_all} OR w.executor_id = ?)"
    )
    if shunned:
        mine += f" AND w.workflow_uuid NOT IN ({', '.join('?' * len(shunned))})"
    token = new_token()
    turn = (
        "(w.queue_partition_key IS NULL OR NOT EXISTS (SELECT 1 FROM workflow_status o"
        f" WHERE o.queue_name IN {QUEUES} AND o.queue_partition_key = w.queue_partition_key AND o.{ACTIVE}"
        " AND o.workflow_uuid <> w.workflow_uuid AND (o.status = 'PENDING' OR o.deduplication_id IS NOT NULL"
        f" OR (w.deduplication_id IS NULL AND (o.created_at, o.{order}) < (w.created_at, w.{order})))))"
    )
    candidates = (
        "SELECT w.workflow_uuid, w.queue_partition_key, w.deduplication_id FROM workflow_status w"
        f" WHERE w.queue_name IN {QUEUES} AND w.{ACTIVE} AND w.status = 'ENQUEUED'"
        f" AND w.application_name = '{APPLICATION}' AND ({ours}) AND {mine}"
        # The last condition is for a clock that was set back, and for what DBOS's own resume leaves behind.
        " AND (w.delay_until_epoch_ms IS NULL OR w.delay_until_epoch_ms <= "
        f"{store.now} OR w.delay_until_epoch_ms > {store.now} + {int(LONGEST_REST * 2000)})"
        f" AND {turn} ORDER BY w.created_at, w.{order} LIMIT ?"
    )
    params = (*names, *((only, worker) if only else ()), *shunned)
    if only is None and not store.query(candidates, (*params, 1)):  # an empty claim must not write
        return []

    def work(tx: Transaction) -> list[tuple[str, str, str]]:
        found = tx.query(candidates + store.skip_locked, (*params, limit))
        if not found or not is_alive(store, tx, worker):
            return []
        for run_id, thread, key in found:
            if thread is not None and key is None:
                supersede(store, tx, thread, run_id)
        # The turn is looked at again: the pause of an older run may just have been answered instead of dropped.
        rows = tx.query(
            f"UPDATE workflow_status AS w SET status = 'PENDING', owner_xid = ?, executor_id = ?,"
            f" queue_name = '{QUEUE}', recovery_attempts = COALESCE(recovery_attempts, 0) + 1,"
            " deduplication_id = queue_partition_key,"
            " delay_until_epoch_ms = CASE WHEN delay_until_epoch_ms IS NULL THEN NULL ELSE 0 END,"
            f" started_at_epoch_ms = {store.now}, updated_at = {store.now}"
            f" WHERE w.status = 'ENQUEUED' AND w.workflow_uuid IN ({', '.join('?' * len(found))}) AND {turn}"
            " RETURNING workflow_uuid, name",
            (token, worker, *(run_id for run_id, _, _ in found)),
        )
        return [(run_id, name, token) for run_id, name in rows]

    try:
        return store.transact(work)
    except Exception as error:
        if _is_conflict(
            error
        ):  # another worker took a run of the same thread first: nothing is claimed, look again later
            return []
        raise


def _of_these(wanted: Mapping[str, str | None]) -> tuple[str, list[str]]:
    """The condition that a row `w` is of these runners and versions, and its parameters."""
    any_version = [name for name, version in wanted.items() if version is None]
    exact = [(name, version) for name, version in wanted.items() if version is not None]
    parts = [f"w.name IN ({', '.join('?' * len(any_version))})"] if any_version else []
    parts += ["w.name = ? AND w.application_version = ?"] * len(exact)
    return " OR ".join(parts), [*any_version, *(value for pair in exact for value in pair)]


def _is_conflict(error: Exception) -> bool:
    return type(error).__name__ in (
        "IntegrityError",
        "UniqueViolation",
        "DeadlockDetected",
        "SerializationFailure",
    )


_REQUEUE = (
    "UPDATE workflow_status SET status = 'ENQUEUED', owner_xid = NULL, executor_id = NULL, started_at_epoch_ms = NULL,"
    " delay_until_epoch_ms = NULL, updated_at = {now}"
)
_OWNED = " WHERE status = 'PENDING' AND workflow_uuid = ? AND owner_xid = ?"


def release(store: Store, run_id: str, owner: str) -> bool:
    """Hand an owned run back to any worker; it keeps its thread and its place in the queue."""
    return store.execute(_REQUEUE.format(now=store.now) + _OWNED, (run_id, owner)) == 1


def unclaim(store: Store, run_id: str, owner: str, *, rest: float | None = None, why: str = "") -> bool:
    """`release` as if the run had not been claimed: for a claim in which nothing was recorded, and nothing failed.

    Args:
        rest: seconds until it may be claimed again, at most `LONGEST_REST`; the claim after that finds it `rested`.
        why: shown with the run until somebody drives it.
    """
    requeue = f"{_REQUEUE.format(now=store.now)}, recovery_attempts = recovery_attempts - 1"
    if rest is not None:
        delay = f"delay_until_epoch_ms = {store.now} + {int(rest * 1000)}"
        requeue = requeue.replace("delay_until_epoch_ms = NULL", delay)

    def work(tx: Transaction) -> bool:
        if tx.execute(requeue + _OWNED, (run_id, owner)) != 1:
            return False
        if why:
            note(tx, run_id, {"blocked": why})
        return True

    return store.transact(work)


def release_dead(store: Store) -> int:
    """Re-queue what dead workers left running, and free what they had reserved. Dead is who has no row, for ever."""
    dead = store.query(
        f"SELECT DISTINCT executor_id FROM workflow_status WHERE {ACTIVE} AND queue_name = '{QUEUE}'"
        " AND executor_id IS NOT NULL AND executor_id NOT IN (SELECT worker_id FROM durable_agents_worker)"
    )
    if not dead:
        return 0
    # Their ids, and not who has no row by now: a statement that had to wait does not see workers that came since.
    theirs = f"{ACTIVE} AND queue_name = '{QUEUE}' AND executor_id IN ({', '.join('?' * len(dead))})"
    ids = [worker for (worker,) in dead]

    def free(tx: Transaction, status: str, change: str) -> int:
        # What a frozen worker has locked is left to the next sweep; the rest must not wait for it.
        mine = f"SELECT workflow_uuid FROM workflow_status WHERE status = '{status}' AND {theirs}{store.skip_locked}"
        return tx.execute(f"{change} WHERE status = '{status}' AND workflow_uuid IN ({mine})", ids)

    def work(tx: Transaction) -> int:
        free(tx, "ENQUEUED", "UPDATE workflow_status SET executor_id = NULL")
        return free(tx, "PENDING", _REQUEUE.format(now=store.now))

    return store.transact(work)


def owned_by(store: Store, worker: str) -> list[tuple[str, str, bool]]:
    """(run id, owner token, cancel requested) of every run this worker owns."""
    rows = store.query(
        "SELECT workflow_uuid, owner_xid, attributes FROM workflow_status"
        f" WHERE status = 'PENDING' AND executor_id = ? AND queue_name = '{QUEUE}'",
        (worker,),
    )
    return [(run_id, owner, bool(attributes(raw).get("cancel"))) for run_id, owner, raw in rows]


def unreserve(store: Store, run_id: str, worker: str) -> None:
    """Open a queued run that waits for its caller to any worker."""
    store.execute(
        "UPDATE workflow_status SET executor_id = NULL"
        " WHERE workflow_uuid = ? AND executor_id = ? AND status = 'ENQUEUED'",
        (run_id, worker),
    )
