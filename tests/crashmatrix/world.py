"""The world outside of the agent: a ledger of effects, in a file that outlives every process."""

import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from durable_agents import idempotency_key
from durable_agents._core import RUN, SCOPE

from .boundaries import AFTER_EFFECT, BEFORE_EFFECT, Boundaries, Place

_LATENCY_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Effect:
    """A line of the ledger.

    Args:
        name: what happened.
        run, path: the step it happened in; "" outside.
        key: that step's idempotency key; "" outside.
        pauses: how often the run had waited before: each pause starts a segment that is never run again.
        pid: the process that did it.
        began, at: when its step began, and when it happened, in nanoseconds of the machine's monotonic clock.
    """

    name: str
    run: str = ""
    path: str = ""
    key: str = ""
    pauses: int = 0
    pid: int = field(default_factory=os.getpid)
    began: int = 0
    at: int = 0

    @property
    def place(self) -> Place:
        return Place(self.run, self.path)


class World:
    """What a scenario's tools, models and nodes act on.

    Args:
        folder: where the ledger lies.
        boundaries: those of this process; None where nothing is counted.
        recovers: whether this process goes on after a crash.
    """

    def __init__(self, folder: Path, boundaries: Boundaries | None = None, recovers: bool = False) -> None:
        self._ledger, self._mended = folder / "ledger", folder / "mended"
        self._boundaries, self.recovers = boundaries, recovers

    def effect(self, name: str) -> None:
        """Do something that cannot be undone: one line in the ledger, on disk, between two boundaries.

        Args:
            name: what is done; other work has another name, whatever the order it is done in.
        """
        done = self._here(name)
        if self._boundaries is None:
            self._append(done)
            return
        self._boundaries.cross(BEFORE_EFFECT, done.place, name)
        self._boundaries.act(done.place, lambda: self._append(done))
        self._boundaries.cross(AFTER_EFFECT, done.place, name)

    def latency(self, rank: int, of: int) -> float:
        """How long, in seconds, a call takes to arrive; after a crash parallel calls arrive the other way round.

        Args:
            rank: which of the calls it is, from 0.
            of: how many there are.
        """
        return _LATENCY_SECONDS * (of - 1 - rank if self.recovers else rank)

    def is_first(self, name: str) -> bool:
        """Whether the effect, which the caller has just had, was never had by another step: for what fails at first.

        A crash may repeat the step, which must then fail again, also in a process that was frozen meanwhile: so it is
        the step that counts, not the call.
        """
        had = [effect for effect in self.effects() if effect.name == name]
        here = self._here(name)
        return had[0].place == here.place if here.run else len(had) == 1

    def mend(self) -> None:
        """What was broken works from now on."""
        self._mended.touch()

    @property
    def is_mended(self) -> bool:
        return self._mended.exists()

    def effects(self) -> list[Effect]:
        if not self._ledger.exists():
            return []
        return [Effect(**json.loads(line)) for line in self._ledger.read_text().splitlines()]

    def _append(self, effect: Effect) -> None:
        file = os.open(self._ledger, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            done = replace(effect, at=time.monotonic_ns())
            os.write(file, (json.dumps(asdict(done)) + "\n").encode())
            os.fsync(file)
        finally:
            os.close(file)

    def _here(self, name: str) -> Effect:
        run, scope = RUN.get(), SCOPE.get()
        if run is None or scope is None:
            return Effect(name)
        key = idempotency_key() if scope.key else ""
        began = self._boundaries.began(scope) if self._boundaries else 0
        return Effect(name, run.id, scope.path, key, len(run.pauses), began=began)
