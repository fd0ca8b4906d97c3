"""Where an agent's calls stand in a run: `2/model:gpt-5`, `2/tool:charge:call_7`, `node:writer/1/model:gpt-5`.

The number is that of the agent's model call in this run, under the same node or tool call; what the model asks for then
has its number. It does not begin again after a pause, and depends on nothing that arrives in any order.
"""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from strands import Agent

from .._core import RUN, SCOPE, Codec, Execution, Scope

_MEMORY = "strands"


@dataclass(slots=True)
class Place:
    """An agent under one scope of the run."""

    scope: Scope
    turns: "InRun"
    turn: Scope

    def next_turn(self) -> Scope:
        """The scope of the next model call, and of the tools it asks for."""
        path = self.scope.path
        self.turns.counts[path] = self.turns.counts.get(path, 0) + 1
        self.turn = _numbered(self.scope, self.turns.counts[path])
        return self.turn


@dataclass(frozen=True, slots=True)
class Active:
    """An agent that is durable in a run, and what its runner says about it.

    Args:
        name: what its steps live under, below the scope it is called in.
        at_most_once: names of tools.
    """

    name: str
    codec: Codec
    at_most_once: frozenset[str]


@dataclass(slots=True)
class InRun:
    """What this integration keeps of one run in this process.

    Args:
        counts: scope → model calls made under it.
        active: by the id of the agent.
        groups: by the id of the graph or swarm, its nodes in the order of their first results.
        handing_off: ids of the agents of swarms.
        playing: the calls whose parts are being handed out.
        killed: an exception that ends the run where it stands, and that Strands would swallow.
    """

    counts: dict[str, int] = field(default_factory=dict)
    active: dict[int, Active] = field(default_factory=dict)
    places: dict[tuple[str, int], Place] = field(default_factory=dict)
    groups: dict[int, list[str]] = field(default_factory=dict)
    handing_off: set[int] = field(default_factory=set)
    playing: list[AsyncGenerator[Any, None]] = field(default_factory=list)
    killed: BaseException | None = None

    @classmethod
    def of(cls, run: Execution) -> "InRun":
        found: InRun = run.memory.setdefault(_MEMORY, cls())
        return found

    async def stop_playing(self) -> None:
        """End the calls that the native loop has left standing: their consumer has gone."""
        for parts in [*self.playing]:
            with suppress(RuntimeError):  # one that runs in a task of its own, and is cancelled there
                await parts.aclose()

    def check(self, run: Execution) -> None:
        """Raise what ends the run: Strands swallows it when it comes out of one of several tools or nodes."""
        if (stop := self.killed or run.journal.lost or run.closing) is not None:
            raise stop


def _numbered(scope: Scope, number: int) -> Scope:
    part = str(number)
    return Scope(scope.child(part), scope.child_key(part), in_step=scope.in_step, events=scope.events)


def find(agent: Any) -> tuple[Execution, Place, Active] | None:
    """The run and the place the calling code of this agent belongs to; None when it is not durable here."""
    run = RUN.get()
    if run is None or not isinstance(agent, Agent):
        return None
    mine = InRun.of(run)
    if id(agent) not in mine.active:
        return None
    active = mine.active[id(agent)]
    above = SCOPE.get() or run.top
    key = (above.path, id(agent))
    if key not in mine.places:
        scope = above
        if name := active.name:
            scope = Scope(
                above.child(name), above.child_key(name), in_step=above.in_step, events=above.events
            )
        mine.places[key] = Place(scope, mine, _numbered(scope, mine.counts.get(scope.path, 0)))
    return run, mine.places[key], active
