"""One attempt at something: what all attempts share, the uncrashed run and the native run. `ways` has the others."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import check, child
from .api import Build
from .boundaries import Point
from .check import Reference
from .child import Scene
from .databases import Database
from .forks import Attempt, End, fork
from .world import World


@dataclass(frozen=True, slots=True)
class Subject:
    """What is attempted: a scenario on a database."""

    name: str
    build: Build
    database: Database


@dataclass(frozen=True, slots=True)
class Kill:
    """A point of a scenario where a process is to be killed or frozen.

    Args:
        number: the point's number among those of the scenario, from 1.
        way, mode: see `ways`.
    """

    subject: Subject
    reference: Reference
    number: int
    way: str
    mode: str

    @property
    def point(self) -> Point:
        return self.reference.points[self.number - 1]

    @property
    def is_strict(self) -> bool:
        return self.mode == "strict"


@dataclass(slots=True)
class Outcome:
    """What came of an attempt; no problems: it is as it should be.

    Args:
        cpu: seconds of CPU its processes used.
        was_late: whether a strict kill could not wait for the siblings.
        served, recorded: of an uncrashed run's steps, how many a replay was served, and how many there are.
    """

    subject: Subject
    problems: list[str] = field(default_factory=list)
    cpu: float = 0.0
    was_late: bool = False
    served: int = 0
    recorded: int = 0
    kill: Kill | None = None
    reference: Reference | None = None


Begin = Callable[[int], Attempt[Outcome]]
"""Begins an attempt at a place of its own among those that run at the same time."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where attempts take place: a folder for their files, seconds per process, whether files of failed ones stay."""

    folder: Path
    timeout: float
    keep: bool = False


def uncrashed(room: Room, subject: Subject, place: int) -> Attempt[Outcome]:
    """Run the scenario without a kill, and replay what it recorded."""
    scene, outcome = scene_of(room, subject, "uncrashed", place), Outcome(subject)
    end = yield fork(lambda: child.live(scene), scene.folder / "output", room.timeout).look
    outcome.cpu = end.cpu
    if end.code != 0:
        outcome.problems.append(ended("the uncrashed run", end))
    else:
        seen = read(scene.folder / "lived")
        points = sorted(Point(**point) for point in seen["points"])
        outcome.reference = Reference(seen, World(scene.folder).effects(), points)
        if not seen["may_fail"]:
            failed = [run["outcome"] for run in seen["runs"].values() if run["status"] == "failed"]
            outcome.problems += [f"the uncrashed run fails: {error}" for error in failed]
        if not points:
            outcome.problems.append("the scenario has no boundaries: nothing durable happens in it")
        if seen["replays"] and not outcome.problems:
            end = yield fork(lambda: child.replay(scene), scene.folder / "replay", room.timeout).look
            _take_replay(scene, outcome, outcome.reference, end)
    leave(room, scene, outcome)
    return outcome


def _take_replay(scene: Scene, outcome: Outcome, reference: Reference, end: End) -> None:
    """Compare what the runs came to with what was made of their records."""
    outcome.cpu += end.cpu
    if end.code != 0:
        outcome.problems.append(ended("the replay", end))
        return
    replayed = read(scene.folder / "replayed")
    outcome.served, outcome.recorded = replayed["served"], replayed["recorded"]
    outcome.problems += check.replayed(reference.seen, replayed)
    again = World(scene.folder).effects()[len(reference.effects) :]
    outcome.problems += [f"the replay had effect {effect.name!r}" for effect in again]


def natively(room: Room, subject: Subject, reference: Reference, place: int) -> Attempt[Outcome]:
    """Run the scenario's native agent, and compare the uncrashed durable run with it."""
    scene, outcome = scene_of(room, subject, "native", place), Outcome(subject)
    end = yield fork(lambda: child.native(scene), scene.folder / "output", room.timeout).look
    if end.code != 0:
        outcome.problems.append(ended("the native run", end))
    elif (seen := read(scene.folder / "native"))["turns"]:
        outcome.problems += check.against_native(reference, seen, World(scene.folder).effects())
    leave(room, scene, outcome)
    return outcome


def scene_of(room: Room, subject: Subject, name: str, place: int) -> Scene:
    """Make ready for an attempt of this name."""
    folder = room.folder / f"{subject.name}-{subject.database.name}-{name}"
    folder.mkdir()
    return Scene(subject.build, folder, subject.database, subject.database.prepare(folder, place))


def leave(room: Room, scene: Scene, outcome: Outcome) -> None:
    """Clean up after an attempt."""
    if outcome.problems and room.keep:
        outcome.problems.append(f"its files are in {scene.folder}")
    else:
        shutil.rmtree(scene.folder)


def read(file: Path) -> Any:
    """What a child has left."""
    return json.loads(file.read_text())


def ended(who: str, end: End) -> str:
    """Of a child that should not have ended like that."""
    how = "hung and was ended" if end.code is None else f"ended with {end.code}"
    return f"{who} {how}; it printed:\n{indented(end.output)}"


def indented(text: str) -> str:
    """The end of a long text."""
    return "\n".join(f"        {line}" for line in text.splitlines()[-60:])
