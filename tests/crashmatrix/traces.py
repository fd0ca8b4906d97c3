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
        death: None when it did not come to that.
    """

    first: int
    effects: list[Effect]
    claims: list[Claim]
    death: Death | None

    @classmethod
    def load(cls, folder: Path, first: int) -> "Traces":
        file = folder / "death"
        death = Death.load(file) if file.exists() else None
        return cls(first, World(folder).effects(), claims(folder), death)

    @property
    def before(self) -> list[Effect]:
        """What the first process did in runs that were its own."""
        strays = self.strays
        return [effect for effect in self.effects if effect.pid == self.first and effect not in strays]

    @property
    def strays(self) -> list[Effect]:
        """Had by the thawed process in steps of runs that had been taken from it by then.

        It is a worker like any other, and may have taken the run again since.
        """
        return [
            effect
            for effect in self.effects
            if effect.pid == self.first
            and (
                not self.was_its_own(effect) or self._claims(effect.run, effect.began or effect.at, effect.at)
            )
        ]

    def was_its_own(self, effect: Effect) -> bool:
        """Whether the run was the first process's when the step began: nobody had claimed it, or it was the last."""
        claims = self._claims(effect.run, 0, effect.began or effect.at)
        return not claims or claims[-1] == self.first

    def _claims(self, run: str, since: int, until: int) -> list[int]:
        """Who claimed a run in this time of the monotonic clock."""
        return [claim.pid for claim in self.claims if claim.run == run and since < claim.monotonic <= until]

    def owner(self, run: str, at: int) -> int | None:
        """The process that had claimed a run by then, in microseconds since 1970."""
        found = [claim.pid for claim in self.claims if claim.run == run and claim.at <= at]
        return found[-1] if found else None

    @property
    def taken_alive(self) -> list[str]:
        """Runs that another process claimed although this one lived."""
        until = self.death.at if self.death else NEVER
        return [claim.run for claim in self.claims if claim.pid != self.first and claim.monotonic < until]
