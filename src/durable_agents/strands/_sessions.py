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
        found = {0: self.initial}
        if number:
            rows = self.store.query(_tables.READ, (self.space, self.name, number))
            bodies = {int(row[0]): (int(row[1]), row[2]) for row in rows}
            chain = [number]
            while chain[-1] in bodies and (above := bodies[chain[-1]][0]):
                chain.append(above)
            if chain[-1] not in bodies:
                raise NotRecoverable(
                    f"conversation {chain[-1]} of the session {self.name!r} of {self.space!r} is gone: it was deleted"
                )
            for each in reversed(chain):
                parent, body = bodies[each]
                found[each] = _decode(json.loads(body), found[parent])
        return found[number]

    def statement(
        self, parent: int, before: Conversation, now: Conversation, *, done: bool, run_id: str
    ) -> tuple[int, Statement]:
        """What adds the conversation `now` to the one of the number `parent`, which is `before`; and its number."""
        rows = self.store.query(_tables.LAST, (self.space, self.name))
        number = max(int(rows[0][0] or 0), parent) + 1
        body = dumps(_encode(now, before))
        row = (self.space, self.name, number, parent, int(done), run_id, body)
        return number, Statement(_tables.WRITE, (row,))


def _encode(known: Conversation, base: Conversation) -> dict[str, Any]:
    messages = {}
    for key, now in known.messages.items():
        before = base.messages.get(key, [])
        kept = 0
        while kept < min(len(now), len(before)) and now[kept] == before[kept]:
            kept += 1
        messages[key] = [kept, now[kept:]]
    return {"messages": messages, "rest": known.rest, "groups": known.groups}


def _decode(body: dict[str, Any], base: Conversation) -> Conversation:
    messages = {
        key: [*base.messages.get(key, [])[:kept], *new] for key, (kept, new) in body["messages"].items()
    }
    return Conversation(messages, body["rest"], body["groups"])
