"""Conversations: what an agent, or the agents of a graph or swarm, know before and after a run.

Each run, and each segment of one, begins from a conversation that is never changed afterwards and adds one to it. Of
messages only what is new is stored. A conversation is committed with the record that ends its run.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from .._core import Statement, Store, dumps
from .._core.errors import NotRecoverable
from . import _tables

_WHOLE_EVERY = 32
"""Every so many conversations one is stored whole, so that few rows have to be read."""


@dataclass(slots=True)
class Conversation:
    """What is known, as encoded JSON data.

    Args:
        messages: key of an agent → its messages.
        rest: key of an agent → everything else of its snapshot, and the sums of its metrics.
        groups: key of a graph or swarm → its state.
    """

    messages: dict[str, list[Any]] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """The conversations of one session of a runner.

    Args:
        space: the runner's name.
        initial: what the agent was built with; number 0.
    """

    store: Store
    space: str
    name: str
    initial: Conversation

    def head(self) -> int:
        """The number of the newest conversation that a run has ended with."""
        rows = self.store.query(_tables.HEAD, (self.space, self.name))
        return int(rows[0][0] or 0)

    def read(self, number: int) -> Conversation:
        """The conversation of this number."""
        if not number:
            return self.initial
        chain = self._chain(number, _tables.READ_NEWEST) or self._chain(number, _tables.READ)
        if not chain:
            raise NotRecoverable(
                f"conversation {number} of the session {self.name!r} of {self.space!r} is gone: it was deleted"
            )
        known = self.initial
        for body in reversed(chain):
            known = _decode(json.loads(body), known)
        return known

    def _chain(self, number: int, sql: str) -> list[str]:
        """The row of this number, its parent, and so on to the beginning; nothing when one is not among those read."""
        params = (self.space, self.name, number)
        rows = self.store.query(sql, params * (2 if sql is _tables.READ_NEWEST else 1))
        bodies = {int(row[0]): (int(row[1]), str(row[2])) for row in rows}
        chain = []
        while number:
            if number not in bodies:
                return []
            number, body = bodies[number]
            chain.append(body)
        return chain

    def statement(
        self, parent: int, before: Conversation, now: Conversation, *, done: bool, run_id: str
    ) -> tuple[int, Statement]:
        """What adds the conversation `now` to the one of the number `parent`, which is `before`; and its number."""
        rows = self.store.query(_tables.LAST, (self.space, self.name))
        number = max(int(rows[0][0] or 0), parent) + 1
        if number % _WHOLE_EVERY == 0:
            parent, before = 0, self.initial
        body = dumps(_encode(now, before))
        row = (self.space, self.name, number, parent, int(done), run_id, body)
        return number, Statement(_tables.WRITE, (row,))


def _encode(known: Conversation, base: Conversation) -> dict[str, Any]:
    messages = {key: _added(now, base.messages.get(key, [])) for key, now in known.messages.items()}
    return {"messages": messages, "rest": known.rest, "groups": known.groups}


def _added(now: list[Any], before: list[Any]) -> list[Any]:
    """What is new: from where and how many of the messages before are still there, and those that come after.

    Conversation managers take away from the front.
    """
    first = next((n for n, message in enumerate(before) if message == now[0]), 0) if now else 0
    kept = 0
    while kept < len(now) and first + kept < len(before) and now[kept] == before[first + kept]:
        kept += 1
    return [first, kept, now[kept:]]


def _decode(body: dict[str, Any], base: Conversation) -> Conversation:
    messages = {
        key: [*base.messages.get(key, [])[first : first + kept], *new]
        for key, (first, kept, new) in body["messages"].items()
    }
    return Conversation(messages, body["rest"], body["groups"])
