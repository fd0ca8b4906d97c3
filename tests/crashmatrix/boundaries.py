"""The places where a process can be killed or frozen, how it counts them, and how it ends there.

*Hard*: at once. *Strict*: the step it happens in goes no further, and its siblings get up to half a second to record
what they have done, so that nothing but this step may run again; what was just staged is written, as when the heartbeat
comes by, so that state stands there without the record that it belongs to.
"""

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

BEFORE_INSERT, INSERTED = "before insert", "inserted"
CLAIMED = "claimed"
BEFORE_EFFECT, AFTER_EFFECT = "before effect", "after effect"
BEFORE_STAGE, STAGED = "before stage", "staged"
BEFORE_RECORD, RECORDED = "before record", "recorded"
BEFORE_RETRY, RETRIED = "before retry", "retried"
BEFORE_PARK, PARKED = "before park", "parked"
BEFORE_ANSWER, ANSWERED = "before answer", "answered"
BEFORE_CLOSE, CLOSED = "before close", "closed"

# To those who come after a dead process these are no places of their own: the database is as it was at the boundary
# before, and what the process had in mind is gone. A frozen one wakes up with it.
_ONLY_TO_FREEZE = (BEFORE_INSERT, BEFORE_STAGE, BEFORE_RECORD, BEFORE_PARK, BEFORE_ANSWER, BEFORE_RETRY)
# No step is cut off here, so there are no siblings to wait for: strict is the same as hard.
_OUTSIDE_OF_STEPS = (INSERTED, CLAIMED, PARKED, ANSWERED, RETRIED, BEFORE_CLOSE, CLOSED)


def is_place_to_die(kind: str, is_strict: bool) -> bool:
    """Whether a kill there shows what no other one does."""
    if kind == STAGED:
        return is_strict
    return kind not in _ONLY_TO_FREEZE and not (is_strict and kind in _OUTSIDE_OF_STEPS)


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
    """How a process died, or was frozen.

    Args:
        strict: False when it could not wait until the siblings had recorded what they had done: then every effect
            without a record may repeat, as after a hard kill.
        pid: the process.
        at: when, in nanoseconds of the machine's monotonic clock.
    """

    place: Place
    strict: bool
    pid: int
    at: int

    @classmethod
    def load(cls, file: Path) -> "Death":
        data = json.loads(file.read_text())
        return cls(Place(*data["place"]), data["strict"], data["pid"], data["at"])


def kill() -> None:
    """The end of this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class Boundaries:
    """The boundaries one process passes.

    Args:
        death: the file that says how the process died.
        end: where it ends; None counts only.
        strict: see the module.
        how: ends the process; when it was only frozen, returns once it goes on.
    """

    def __init__(
        self,
        death: Path,
        end: Point | None = None,
        strict: bool = False,
        how: Callable[[], None] = kill,
    ) -> None:
        self._death, self._end, self._strict, self._how = death, end, strict, how
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._unrecorded: set[Place] = set()
        self._doomed: Place | None = None
        self._over = threading.Event()
        self._here = threading.local()
        self._began: dict[int, int] = {}
        self.passed: list[Point] = []

    @property
    def is_over(self) -> bool:
        """Whether this process was frozen, and goes on."""
        return self._over.is_set()

    def await_end(self) -> None:
        """The turns are over; a thread that nobody waits for may come to the end a little later."""
        self._over.wait(_PATIENCE_SECONDS)

    def cross(self, kind: str, place: Place, what: str = "", tidy: Callable[[], None] = lambda: None) -> None:
        """Pass a boundary; the process may end here, or freeze. A strict end is preceded by `tidy`."""
        where = stable(" ".join(part for part in (what, place.run, place.path) if part))
        with self._lock:
            self._counts[where, kind] += 1
            point = Point(where, kind, self._counts[where, kind])
            self.passed.append(point)
            if point != self._end or self._doomed is not None or self.is_over:
                return
            must_wait = self._strict and place.path and self._others(place)
            if not must_wait:
                if self._strict:
                    tidy()
                self._die(place, strict=self._strict and bool(place.path))
                return
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

    def hold_if_doomed(self, place: Place) -> None:
        """Called before a record is written: not before the end is that of the dying step, or of what is around it."""
        if self._is_doomed(place):
            self._over.wait()

    def recorded(self, place: Place) -> None:
        with self._lock:
            self._unrecorded.discard(place)

    def step_begins(self) -> None:
        """The calling thread is about to begin a step."""
        self._here.began = time.monotonic_ns()

    def step_scope(self, scope: object) -> None:
        """The body of the step that the calling thread has begun runs in this scope."""
        self._began[id(scope)] = getattr(self._here, "began", 0)

    def began(self, scope: object) -> int:
        """When the step of this scope began, on the monotonic clock."""
        return self._began.get(id(scope), 0)

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
                    self._die(place, strict=not others)
                    return
            time.sleep(_PAUSE_SECONDS)

    def _die(self, place: Place, strict: bool) -> None:
        death = Death(place, strict, os.getpid(), time.monotonic_ns())
        unfinished = self._death.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(death)))
        unfinished.rename(self._death)
        self._how()
        self._doomed = None
        self._over.set()


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
