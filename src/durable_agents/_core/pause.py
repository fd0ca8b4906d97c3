"""Pauses: a run waits for people, and what they answered."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .codec import Codec
from .record import ANSWER, WAIT, Record

OUTCOME = "outcome:"
"""Ids of the core's own questions begin so: what became of a tool that was cut off? The step's path follows."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A runner's loop stopped to wait for people.

    Args:
        questions: id → what is asked, as JSON data.
        state: JSON data the runner wants back when the next segment starts.
        result: what the native verb returns for an interrupted run; not stored.
    """

    questions: dict[str, Any]
    state: Any = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class Question:
    """A pause as it was recorded, and the answers given to it so far."""

    number: int
    questions: dict[str, Any]
    state: Any
    answers: dict[str, Any] = field(default_factory=dict)

    @property
    def is_our_own(self) -> bool:
        """Whether the core asks, and not the framework, whose own way of answering does not apply then."""
        return any(question.startswith(OUTCOME) for question in self.questions)


def read_pauses(records: Iterable[Record], codec: Codec | None = None) -> list[Question]:
    """The pauses among a run's records, each with the answers it got.

    Args:
        codec: the runner's; without it answers stay JSON data, as for a process that does not have the runner.
    """
    found: dict[int, Question] = {}
    for record in records:
        if record.kind == WAIT:
            data, number = record.value(), int(record.path.removeprefix(f"{WAIT}:"))
            found[number] = Question(number, data["questions"], data["state"])
        elif record.kind == ANSWER and found:
            next(reversed(found.values())).answers.update(
                codec.decode(record.value()) if codec else record.value()
            )
    return list(found.values())
