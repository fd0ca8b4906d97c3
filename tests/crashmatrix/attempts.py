"""One attempt at something: the uncrashed run, the native run, a kill with its recovery."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import check, child
from .api import Build
from .boundaries import Death, Point
from .check import Reference
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
    """A point of a scenario where a process is to be killed; `number` is its number among them, from 1."""

    subject: Subject
    reference: Reference
    number: int
    mode: str

    @property
    def point(self) -> Point:
        return self.reference.points[self.number - 1]


@dataclass(slots=True)
class Outcome:
    """What came of an attempt; no problems: it is as it should be.

    Args:
        cpu: seconds of CPU its processes used.
        was_late: whether a strict kill could not wait for the siblings.
    """

    subject: Subject
    problems: list[str] = field(default_factory=list)
    cpu: float = 0.0
    was_late: bool = False
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
    """Run the scenario without a kill: durably, and natively where it brings its native agent."""
    folder = _folder(room, subject, "uncrashed")
    outcome = Outcome(subject)
    url = subject.database.prepare(folder, place)
    end = yield fork(
        lambda: child.live(subject.build, folder, subject.database, url, None, False),
        folder / "output",
        room.timeout,
    )
    outcome.cpu = end.cpu
    if end.code != 0:
        outcome.problems.append(_ended("the uncrashed run", end))
    else:
        seen = _read(folder / "lived")
        points = sorted(Point(**point) for point in seen["points"])
        outcome.reference = Reference(seen, World(folder).effects(), points)
        if not seen["may_fail"]:
            failed = [run["outcome"] for run in seen["runs"].values() if run["status"] == "failed"]
            outcome.problems += [f"the uncrashed run fails: {error}" for error in failed]
        if not points:
            outcome.problems.append("the scenario has no boundaries: nothing durable happens in it")
    _leave(room, folder, outcome)
    return outcome


def natively(room: Room, subject: Subject, reference: Reference) -> Attempt[Outcome]:
    """Run the scenario's native agent, and compare the uncrashed durable run with it."""
    folder = _folder(room, subject, "native")
    outcome = Outcome(subject)
    end = yield fork(lambda: child.native(subject.build, folder), folder / "output", room.timeout)
    if end.code != 0:
        outcome.problems.append(_ended("the native run", end))
    elif (seen := _read(folder / "native"))["turns"]:
        outcome.problems += check.against_native(reference, seen, World(folder).effects())
    _leave(room, folder, outcome)
    return outcome


def killed(room: Room, kill: Kill, place: int) -> Attempt[Outcome]:
    """Kill a process at the point, recover in another, and compare."""
    subject = kill.subject
    folder = _folder(room, subject, f"{kill.mode}-{kill.number}")
    outcome = Outcome(subject, kill=kill)
    url = subject.database.prepare(folder, place)
    strict = kill.mode == "strict"
    first = yield fork(
        lambda: child.live(subject.build, folder, subject.database, url, kill.point, strict),
        folder / "output",
        room.timeout,
    )
    outcome.cpu = first.cpu
    if not first.was_killed:
        outcome.problems.append(_ended("the process was to be killed and", first))
        _leave(room, folder, outcome)
        return outcome
    death, before = Death.load(folder / "death"), World(folder).effects()
    outcome.was_late = strict and bool(death.place.path) and not death.strict
    second = yield fork(
        lambda: child.recover(subject.build, folder, subject.database, url), folder / "recovery", room.timeout
    )
    outcome.cpu += second.cpu
    if second.code != 0:
        outcome.problems.append(_ended("the process that was to recover the run", second))
    else:
        seen = _read(folder / "recovered")
        outcome.problems += check.after_kill(kill.reference, seen, before, World(folder).effects(), death)
        if outcome.problems and second.output:
            outcome.problems.append(f"the recovering process printed:\n{_indented(second.output)}")
    _leave(room, folder, outcome)
    return outcome


def _folder(room: Room, subject: Subject, name: str) -> Path:
    folder = room.folder / f"{subject.name}-{subject.database.name}-{name}"
    folder.mkdir()
    return folder


def _leave(room: Room, folder: Path, outcome: Outcome) -> None:
    if outcome.problems and room.keep:
        outcome.problems.append(f"its files are in {folder}")
    else:
        shutil.rmtree(folder)


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _ended(who: str, end: End) -> str:
    how = "hung and was ended" if end.code is None else f"ended with {end.code}"
    return f"{who} {how}; it printed:\n{_indented(end.output)}"


def _indented(text: str) -> str:
    return "\n".join(f"        {line}" for line in text.splitlines()[-60:])
