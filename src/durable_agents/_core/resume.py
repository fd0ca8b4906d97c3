"""`Run.resume()`: a run that failed or was cancelled goes on. A record takes back the errors it failed with."""

from .codec import dumps
from .errors import RunNotFound, RunOver, RunWaiting
from .journal import standing
from .record import CLOSE, RETRY, WAIT, Draft, Record
from .store import Store, Transaction, runs


def resume(store: Store, run_id: str) -> None:
    """Queue the run again; nothing happens to one that is queued or running.

    What is taken back are the end of the run and the error records of the steps that the error passed through, so that
    these run again. Errors the framework had handled stay.

    Raises:
        RunNotFound, RunWaiting, RunOver: see there.
    """

    def work(tx: Transaction) -> None:
        found = runs.locked(store, tx, run_id)
        if found is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        row, records = found
        if not row.over:
            if row.state == "waiting":
                raise RunWaiting(run_id, _open_questions(records))
            return
        if row.state == "succeeded":
            raise RunOver(
                f"run {run_id!r} has succeeded: there is nothing to resume; fork() it to do it over"
            )
        closing = standing(records).get(CLOSE)
        end = closing.value() if closing is not None else {}
        if "superseded_by" in end:
            raise RunOver(
                f"run {run_id!r} was superseded by {end['superseded_by']!r} on its thread; fork() it"
            )
        number = 1 + sum(record.kind == RETRY for record in records)
        payload = dumps({"taken_back": [*end.get("steps", ()), CLOSE]})
        retry = Draft(RETRY, f"{RETRY}:{number}", payload).after(records[-1], epoch=row.epoch)
        runs.reopen(store, tx, retry)

    store.transact(work)


def _open_questions(records: list[Record]) -> dict[str, object]:
    last = next(record for record in reversed(records) if record.kind == WAIT)
    return dict(last.value()["questions"])
