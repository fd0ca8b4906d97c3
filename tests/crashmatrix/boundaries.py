"""The places where a process can be killed, how it counts them, and how it dies.

*Hard*: at once. *Strict*: the killed step goes no further, and its siblings get up to half a second to record what they
have done, so that nothing but the killed step may run again.
"""

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

BEFORE_EFFECT = "before effect"
AFTER_EFFECT = "after effect"
RECORDED = "recorded"
INSERTED = "inserted"
CLAIMED = "claimed"
ANSWERED = "answered"
PARKED = "parked"
BEFORE_CLOSE = "before close"
CLOSED = "closed"

_PATIENCE_SECONDS = 0.5
_PAUSE_SECONDS = 0.002
_VARYING = re.compile(
    r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-\d+)?|(?<![0-9A-Za-z])[0-9a-f]{12,}(?![0-9A-Za-z])"
)


def stable(text: str) -> str:
    """The text without what differs between two runs of one agent: uuids, digests, addresses."""
    return _VARYING.sub("*", text)


class Place(NamedTuple):
    """Where a boundary is: in which run and step. No run: outside."""

    run: str
    path: str

    def encloses(self, other: "Place") -> bool:
        """Whether the other place is this step or inside of it."""
        return self.run == other.run and (not self.path or f"{other.path}/".startswith(f"{self.path}/"))


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One boundary. It is named by what happens there: the order among parallel steps is not the same in two runs."""

    where: str
    kind: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.kind} {self.where}" + (f" (no. {self.occurrence})" if self.occurrence > 1 else "")


@dataclass(frozen=True, slots=True)
class Death:
    """How a process died.

    `strict` is False when it could not wait until the siblings had recorded what they had done: then every effect
    without a record may repeat, as after a hard kill.
    """

    place: Place
    strict: bool

    @classmethod
    def load(cls, file: Path) -> "Death":
        data = json.loads(file.read_text())
        return cls(Place(*data["place"]), data["strict"])


class Boundaries:
    """The boundaries one process passes.

    Args:
        death: the file that says how the process died.
        kill: where it dies; None counts only.
        strict: see the module.
    """

    def __init__(self, death: Path, kill: Point | None = None, strict: bool = False) -> None:
        self._death, self._kill, self._strict = death, kill, strict
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._unrecorded: set[Place] = set()
        self._doomed: Place | None = None
        self.passed: list[Point] = []

    def cross(self, kind: str, place: Place, what: str = "") -> None:
        """Pass a boundary; the process may end here."""
        where = stable(" ".join(part for part in (what, place.run, place.path) if part))
        with self._lock:
            self._counts[where, kind] += 1
            point = Point(where, kind, self._counts[where, kind])
            self.passed.append(point)
            if point != self._kill or self._doomed is not None:
                return
            if not (self._strict and place.path):
                self._die(Death(place, strict=False))
            if not self._others(place):
                self._die(Death(place, strict=True))
            self._doomed = place
        if _on_event_loop():
            # The siblings need this thread. It returns, and the doomed step can neither act nor be recorded any
            # more, nor can the run come to an end or a pause.
            threading.Thread(target=self._die_when_siblings_are_recorded, args=(place,), daemon=True).start()
        else:
            self._die_when_siblings_are_recorded(place)

    def act(self, place: Place, effect: Any) -> None:
        """Let an effect happen, unless its step is dying."""
        with self._lock:
            if not self._is_doomed(place):
                effect()
                if place.path:
                    self._unrecorded.add(place)

    def await_death_if_doomed(self, place: Place) -> None:
        """Called before a record is written: the dying step's, and those of steps and runs around it, never are."""
        if self._is_doomed(place):
            threading.Event().wait()

    def recorded(self, place: Place) -> None:
        with self._lock:
            self._unrecorded.discard(place)

    def rested(self, run: str) -> None:
        """The run is over or waits: what its steps have not recorded, they never will."""
        with self._lock:
            self._unrecorded = {place for place in self._unrecorded if place.run != run}

    def _is_doomed(self, place: Place) -> bool:
        doomed = self._doomed
        return doomed is not None and (doomed.encloses(place) or place.encloses(doomed))

    def _others(self, place: Place) -> list[Place]:
        """The steps beside this one that have acted and are not recorded."""
        return [other for other in self._unrecorded if not other.encloses(place)]

    def _die_when_siblings_are_recorded(self, place: Place) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with self._lock:
                others = self._others(place)
                if not others or time.monotonic() > deadline:
                    self._die(Death(place, strict=not others))
            time.sleep(_PAUSE_SECONDS)

    def _die(self, death: Death) -> None:
        self._death.write_text(json.dumps(asdict(death)))
        os.kill(os.getpid(), signal.SIGKILL)


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
