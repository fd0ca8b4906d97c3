"""What the processes of one attempt leave in its folder: the ledger of effects, the death, the claims of runs."""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from durable_agents._core.record import now_us

from .boundaries import Death
from .world import Effect, World

NEVER = sys.maxsize


@dataclass(frozen=True, slots=True)
class Claim:
    """A process has taken a run from the queue, at this time of the monotonic clock and since 1970."""

    run: str
    pid: int
    monotonic: int
    at: int


def note_claim(folder: Path, run: str) -> None:
    """Called by the process that has claimed the run."""
    claim = Claim(run, os.getpid(), time.monotonic_ns(), now_us())
    with (folder / "claims").open("a") as file:
        file.write(json.dumps(asdict(claim)) + "\n")


def claims(folder: Path) -> list[Claim]:
    file = folder / "claims"
    return [Claim(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass(frozen=True, slots=True)
class Traces:
    """See the module.

    Args:
        first: the process that died or was frozen.
        thawed_at: when it was thawed, in nanoseconds of the monotonic clock.
        death: None when it did not come to that.
    """

    first: int
    thawed_at: int
    effects: list[Effect]
    claims: list[Claim]
    death: Death | None

    @classmethod
    def load(cls, folder: Path, first: int, thawed_at: int = NEVER) -> "Traces":
        file = folder / "death"
        death = Death.load(file) if file.exists() else None
        return cls(first, thawed_at, World(folder).effects(), claims(folder), death)

    @property
    def before(self) -> list[Effect]:
        """Up to the death."""
        return [effect for effect in self.effects if effect.pid == self.first and effect.at < self.thawed_at]

    @property
    def strays(self) -> list[Effect]:
        """Had by the thawed process in runs that had been taken from it."""
        return [
            effect
            for effect in self.effects
            if effect.pid == self.first
            and effect.at > max(self.thawed_at, self.taken.get(effect.run, NEVER))
            and effect.began < self._claimed_again.get(effect.run, NEVER)
        ]

    @property
    def taken(self) -> dict[str, int]:
        """When another process first claimed a run; one that it has not claimed is still the first process's own."""
        found: dict[str, int] = {}
        for claim in self.claims:
            if claim.pid != self.first:
                found.setdefault(claim.run, claim.monotonic)
        return found

    @property
    def _claimed_again(self) -> dict[str, int]:
        """The thawed process is a worker like any other, and may take a run that is answered meanwhile."""
        return {
            claim.run: claim.monotonic
            for claim in self.claims
            if claim.pid == self.first and claim.monotonic > self.thawed_at
        }

    def owner(self, run: str, at: int) -> int | None:
        """The process that had claimed a run by then, in microseconds since 1970."""
        found = [claim.pid for claim in self.claims if claim.run == run and claim.at <= at]
        return found[-1] if found else None

    @property
    def taken_alive(self) -> list[str]:
        """Runs that another process claimed although this one lived."""
        until = self.death.at if self.death else NEVER
        return [claim.run for claim in self.claims if claim.pid != self.first and claim.monotonic < until]
