"""`Run.fork()`: a new run that is served the first records of another one and goes its own way from there.

Records are never copied: the fork's opening names the source, and the hash of the last record it is served.
"""

import os
from typing import TYPE_CHECKING

from .codec import dumps
from .errors import InputMismatch, NotRecoverable, StepNotFound
from .journal import load
from .opening import check_id, version_of
from .record import OPEN, OWN_KINDS, Draft, Record, now_us
from .store import Store, runs

if TYPE_CHECKING:
    from .runner import Runner


def fork(store: Store, runner: "Runner", source: str, before: str | None, run_id: str) -> None:
    """Queue the fork under `run_id`; called again for the same fork it changes nothing. See `Run.fork`."""
    check_id("run_id", run_id)
    runner.check_fork(source)
    records = load(source, runs.records(store, source))
    opening = records[0].value()
    if opening["live"] and runner.restore is None:
        raise NotRecoverable(
            f"run {source!r} was called with {', '.join(opening['live'])}, which a fork does not have; "
            f"give the runner restore="
        )
    kept = 0 if before is None else _kept(source, records, before)
    payload = {
        **opening,
        "code": runner.code,
        "thread": None if opening["thread"] is None else run_id,
        "fork": {"run": source, "seq": kept, "hash": records[max(kept, 1) - 1].hash},
    }
    thread = None if payload["thread"] is None else runs.thread_key(runner.name, run_id)
    draft = Draft(OPEN, OPEN, dumps(payload), name=runner.name)
    record = draft.seal(run=run_id, seq=1, prev="", at=now_us(), worker="", epoch=0)
    new = runs.NewRun(run_id, runner.name, thread, record, version_of(runner.code), forked_from=source)
    inserted, _ = runs.start(store, new, None)
    if not inserted:
        _check_same(store, run_id, payload["fork"])


def _kept(source: str, records: list[Record], before: str) -> int:
    """How many records come before the first one of the step, or of a step inside of it."""
    for record in records:
        if record.path == before or record.path.startswith((f"{before}/", f"{before}@")):
            return record.seq - 1
    steps = ", ".join(repr(record.path) for record in records if record.kind not in OWN_KINDS) or "none"
    raise StepNotFound(f"run {source!r} has recorded no step {before!r}; its steps are {steps:.2000}")


def _check_same(store: Store, run_id: str, fork: dict[str, object]) -> None:
    row = runs.get(store, run_id)
    first = load(run_id, runs.records(store, run_id)[:1]) if row is not None else []
    if not first or first[0].value().get("fork") != fork:
        raise InputMismatch(f"run {run_id!r} exists and is another run than this fork; choose another run_id")


def fork_id(source: str) -> str:
    """A new id for a fork that its caller gave none."""
    return f"{source[:200]}-fork-{os.urandom(4).hex()}"
