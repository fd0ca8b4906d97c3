"""Answering a waiting run: the answer's record and the run's return to the queue are one transaction."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .codec import JSON, dumps
from .effects import check_answer
from .errors import AlreadyAnswered, NotWaiting, RunNotFound
from .pause import OUTCOME, Question, read_pauses
from .record import ANSWER, WAIT, Draft, Record
from .store import Store, Transaction, runs

if TYPE_CHECKING:
    from .runner import Runner


def answer(
    store: Store,
    runner: "Runner | None",
    run_id: str,
    values: Mapping[str | None, Any],
    worker: str | None,
) -> str | None:
    """Record answers and re-queue the run, or hand it to `worker`.

    Of many processes that answer at once, one is accepted. The same answer again is no error and changes nothing.

    Args:
        runner: the run's, when this process has it: it knows which answers can be taken.
        values: question → answer; the key None stands for the only open question.
        worker: the worker that goes on with the run at once; None queues it for any.

    Returns:
        The owner token when `worker` got the run; None when it was queued, or had this answer already.

    Raises:
        RunNotFound, NotWaiting, AlreadyAnswered: see there.
        EncodingError: an answer has no durable form.
        ConfigurationError: an answer does not say what was asked; the question stays open.
    """
    codec = runner.codec if runner else JSON
    given = {key: json.loads(dumps(codec.encode(value))) for key, value in values.items()}
    token = runs.new_token()
    tried: Record | None = None

    def work(tx: Transaction) -> str | None:
        nonlocal tried
        found = runs.locked(store, tx, run_id)
        if found is None:
            raise RunNotFound(f"there is no run {run_id!r}")
        row, records = found
        if tried is not None and tried.is_among(records):
            return token if row.owner == token else None
        pauses = read_pauses(records)
        if row.state != "waiting":
            _check_repeated(run_id, row.state, pauses, given)
            return None
        pause = pauses[-1]
        if all(_is_repeated(run_id, pauses[:-1], key, value) for key, value in given.items()):
            return None
        named = {_question(run_id, pause, key): key for key in values}
        for question, key in named.items():
            check_answer(question, values[key])
            if runner is not None and not question.startswith(OUTCOME):
                runner.check_answer(pause.questions[question], values[key])
        payload = dumps({question: given[key] for question, key in named.items()})
        draft = Draft(ANSWER, f"{WAIT}:{pause.number}/{ANSWER}", payload)
        tried = draft.after(records[-1], epoch=row.epoch, worker=worker or "")
        return token if runs.reopen(store, tx, tried, worker, token) else None

    return store.transact(work)


def _is_repeated(run_id: str, past: list[Question], key: str | None, value: Any) -> bool:
    """Whether a question of an earlier pause gets the answer again that it has got."""
    for pause in past:
        if key is not None and key in pause.answers:
            if pause.answers[key] != value:
                raise AlreadyAnswered(
                    f"question {key!r} of run {run_id!r} has been answered with another value"
                )
            return True
    return False


def _question(run_id: str, pause: Question, key: str | None) -> str:
    asked = ", ".join(repr(question) for question in pause.questions)
    if key is None:
        if len(pause.questions) != 1:
            raise NotWaiting(
                f"run {run_id!r} has several open questions ({asked}); say which one with question="
            )
        return next(iter(pause.questions))
    if key not in pause.questions:
        raise NotWaiting(f"run {run_id!r} has no open question {key!r}; open are {asked}")
    return key


def _check_repeated(
    run_id: str, state: str, pauses: list[Question], values: Mapping[str | None, Any]
) -> None:
    """A run that does not wait takes no answer, except the one it has already got."""
    last = pauses[-1].answers if pauses else {}
    given = {question: answer for pause in pauses for question, answer in pause.answers.items()}
    for key, value in values.items():
        question = next(iter(last), None) if key is None and len(last) == 1 else key
        if question is None or question not in given:
            raise NotWaiting(
                f"run {run_id!r} is {state} and asks nothing" + (f" named {key!r}" if key else "")
            )
        if given[question] != value:
            raise AlreadyAnswered(
                f"question {question!r} of run {run_id!r} has been answered with another value"
            )
