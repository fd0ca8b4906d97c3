"""`Run.resume()`: a run that failed or was cancelled goes on. A record takes back the errors it failed with."""

from collections.abc import Mapping, Sequence

from . import failure
from .codec import dumps
from .effects import marks_of, was_answered
from .errors import CallerNeeded, RunNotFound, RunOver, RunWaiting
from .journal import standing
from .pause import read_pauses
from .record import CLOSE, OWN_KINDS, RETRY, WAIT, Draft, Record
from .store import Store, Transaction, runs


def resume_here(store: Store, run_id: str, worker: str) -> str | None:
    """Take a run that failed for want of live arguments; the token of the claim. None: it is no such run any more."""
    token = runs.new_token()

    def work(tx: Transaction) -> bool:
        found = runs.locked(store, tx, run_id)
        if found is None:
            return False
        row, records = found
        closing = standing(records).get(CLOSE)
        if row.state != "failed" or closing is None or not failure.is_of(closing.value(), CallerNeeded):
            return False
        return _reopen(store, tx, row, records, worker, token)

    return token if store.transact(work) else None


def resume(store: Store, run_id: str) -> None:
    """Queue the run again; nothing happens to one that is queued or running.

    What is taken back are the end of the run and the error records of the steps that the error passed through, so that
    these run again. Errors the framework had handled stay. Code may have raised an error of its own that does not tell
    its cause: then the last step is taken back, if it failed.

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
        _reopen(store, tx, row, records)

    store.transact(work)


def _reopen(
    store: Store,
    tx: Transaction,
    row: runs.Row,
    records: Sequence[Record],
    worker: str | None = None,
    token: str = "",
) -> bool:
    held = standing(records)
    closing = held.get(CLOSE)
    end = closing.value() if closing is not None else {}
    if "superseded_by" in end:
        raise RunOver(f"run {row.id!r} was superseded by {end['superseded_by']!r} on its thread; fork() it")
    if (later := runs.came_after(tx, row)) is not None:
        raise RunOver(
            f"run {row.id!r} cannot be resumed: run {later!r} came after it on its thread, which is no longer as "
            f"it left it; send its input again as a new run"
        )
    number = 1 + sum(record.kind == RETRY for record in records)
    payload = dumps({"taken_back": [*_taken_back(held, end.get("steps", ())), CLOSE]})
    retry = Draft(RETRY, f"{RETRY}:{number}", payload).after(records[-1], epoch=row.epoch)
    return runs.reopen(store, tx, retry, worker, token)


def _taken_back(held: Mapping[str, Record], passed: Sequence[str]) -> list[str]:
    """The records that no longer hold, given the steps that the run's error passed through.

    A tool that ran at most once and raised has a known outcome: it runs again, and its marks are taken back too. Where
    somebody has told the outcome, that is asked again.
    """
    found = [*passed, *_untold(held, passed)]
    answered = [question for pause in read_pauses(held.values()) for question in pause.answers]
    marks = [
        mark for path in found if not was_answered(path, answered) for mark in marks_of(path, held.values())
    ]
    return [*found, *marks]


def _untold(held: Mapping[str, Record], passed: Sequence[str]) -> list[str]:
    """The last step, if it failed and the run's error does not tell: it names none, or only steps around that one."""
    innermost = [path for path in passed if not any(other.startswith(f"{path}/") for other in passed)]
    steps = [record for record in held.values() if record.kind not in OWN_KINDS and record.path not in passed]
    if not steps:
        return []
    last = steps[-1]
    answered = [question for pause in read_pauses(held.values()) for question in pause.answers]
    failed = last.status == "error" or was_answered(last.path, answered)
    is_inside = not passed or any(last.path.startswith(f"{path}/") for path in innermost)
    return [last.path] if failed and is_inside else []


def _open_questions(records: list[Record]) -> dict[str, object]:
    last = next(record for record in reversed(records) if record.kind == WAIT)
    return dict(last.value()["questions"])
