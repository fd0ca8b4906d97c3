"""At-most-once tools: a tool that was cut off is not run again until somebody has said what became of it.

Its start is marked before it runs. A mark without a record means that nobody knows whether the effect has happened: the
run waits with a question, whose answer is the tool's result, its error, or the word to run it again. A tool that the
framework stopped, to ask a person for example, was not cut off, and a mark says that too.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .codec import dumps
from .errors import ConfigurationError, RecordedError
from .pause import OUTCOME
from .record import ANSWER, MARK, RETRY, Draft, Record, utc

if TYPE_CHECKING:
    from .step import Call

RUN_AGAIN = "run again"
_ANSWERS = {
    "result": 'answer({"result": …}) when it has happened: the tool is taken to have returned this',
    "error": 'answer({"error": "…"}) when it has failed for good: the tool is taken to have raised this',
    "run again": 'answer("run again") when it has not happened',
}


def mark(call: "Call") -> Draft:
    """The record that the tool is about to start. A person will need its arguments."""
    started = _starts(call)
    payload = {"arguments": call.text, "idempotency_key": call.idempotency_key}
    return Draft(MARK, _mark_path(call, "started", len(started) + 1), dumps(payload), name=call.name)


def paused(call: "Call") -> Draft:
    """The record that the tool's last start was ended by the framework, which will call it again."""
    return Draft(MARK, _mark_path(call, "paused", len(_starts(call))), "null", name=call.name)


def settled(call: "Call") -> Draft | None:
    """What somebody has said became of a tool that was cut off, as its record; None when it may run.

    Parks the run while nobody has.
    """
    if not call.at_most_once or not (started := _starts(call)):
        return None
    known = call.run.journal.known
    cut_off = [n for n in range(1, len(started) + 1) if _mark_path(call, "paused", n) not in known]
    if len(started) not in cut_off:
        return None
    question = _question(call, len(cut_off))
    answer = call.run.wait({question: _asked(call, started[-1])})[question]
    if answer == RUN_AGAIN:
        return None
    if "error" in answer:
        return call.draft(error=RecordedError("UnknownOutcome", answer["error"]))
    return call.draft(answer["result"])


def _question(call: "Call", number: int) -> str:
    """The id of the question. What was answered before the run failed and was resumed is asked anew, under another."""
    asked: set[str] = set()
    stale: set[str] = set()
    for record in list(call.run.journal.known.values()):
        if record.kind == ANSWER:
            asked.update(record.value())
        elif record.kind == RETRY:
            stale = set(asked)
    while (question := OUTCOME + call.path + (f"@{number}" if number > 1 else "")) in stale:
        number += 1
    return question


def check_answer(question: str, value: Any) -> None:
    """Raise `ConfigurationError` for an answer that does not say what became of a tool. Other questions take any."""
    if not question.startswith(OUTCOME) or value == RUN_AGAIN:
        return
    if isinstance(value, Mapping) and (set(value) == {"result"} or _is_error(value)):
        return
    raise ConfigurationError(
        f"{value!r:.200} does not say what became of {question.removeprefix(OUTCOME)!r}; "
        + "; ".join(_ANSWERS.values())
    )


def _is_error(value: Mapping[str, Any]) -> bool:
    return set(value) == {"error"} and isinstance(value["error"], str)


def marks_of(path: str, records: Iterable[Record]) -> list[str]:
    """The paths of the marks of a tool."""
    return [record.path for record in records if record.kind == MARK and record.path.startswith(f"{path}@")]


def was_answered(path: str, questions: Iterable[str]) -> bool:
    """Whether one of these questions was about what became of the tool at this path."""
    asked = OUTCOME + path
    return any(question == asked or question.startswith(f"{asked}@") for question in questions)


def _mark_path(call: "Call", what: str, number: int) -> str:
    return f"{call.path}@{what}" + (f"@{number}" if number > 1 else "")


def _starts(call: "Call") -> list[Record]:
    """The records of the starts of this tool."""
    found: list[Record] = []
    while (record := call.run.journal.known.get(_mark_path(call, "started", len(found) + 1))) is not None:
        found.append(record)
    return found


def _asked(call: "Call", started: Record) -> dict[str, Any]:
    return {
        "unknown_outcome": call.name,
        "about": f"the process died in {call.name!r}, which may or may not have taken effect, and runs at most once",
        "path": call.path,
        "started": utc(started.body["at"]).isoformat(),
        **started.value(),
        "answers": list(_ANSWERS.values()),
    }
