"""The matrix of one family of scenarios, in a warm process of its own."""

import contextlib
import fnmatch
import importlib
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

from . import attempts, forks
from .api import REGISTRY
from .attempts import Kill, Outcome, Room, Subject
from .boundaries import is_place_to_die
from .databases import Database
from .plan import sample
from .report import Report
from .ways import WAYS

MODES = ("hard", "strict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to run.

    Args:
        scenarios: patterns of names; none for all.
        ways: of `WAYS`.
        modes: of `MODES`.
        point: only this one.
        fixed: a fixed sample of this size; None for every point.
        jobs: how many at a time.
    """

    scenarios: Sequence[str] = ()
    ways: Sequence[str] = tuple(WAYS)
    modes: Sequence[str] = MODES
    point: int | None = None
    fixed: int | None = None
    jobs: int = 4

    def takes(self, name: str) -> bool:
        return not self.scenarios or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.scenarios)


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a family: kill points, failures of any sort, seconds of CPU of everything."""

    points: int
    failures: int
    cpu: float


def run(choice: Choice, databases: Sequence[Database], room: Room, report: Report) -> Summary:
    """Run the chosen scenarios among those that are loaded."""
    began, used = time.monotonic(), _cpu(databases)
    subjects = [
        Subject(name, build, database)
        for name, build in REGISTRY.found.items()
        if choice.takes(name)
        for database in databases
    ]
    kills = _plan(choice, _uncrashed(choice, subjects, room, report))

    def begin(kill: Kill) -> attempts.Begin:
        return lambda place: WAYS[kill.way](room, kill, place)

    forks.warm()
    forks.run_all(map(begin, kills), choice.jobs, lambda outcome: report.killed(outcome, len(kills)))
    report.table()
    summary = Summary(report.points.total(), report.failures.total(), _cpu(databases) - used)
    each = (
        f"; {summary.cpu / summary.points:.2f} s of CPU each, with harness and server"
        if summary.points
        else ""
    )
    print(
        f"{summary.points} points, {summary.failures} failed, in {time.monotonic() - began:.0f} s{each}",
        flush=True,
    )
    return summary


def _uncrashed(choice: Choice, subjects: Sequence[Subject], room: Room, report: Report) -> list[Outcome]:
    """The subjects that run well uncrashed. What their processes had to import is imported here for those to come."""
    found: list[Outcome] = []

    def take(outcome: Outcome) -> None:
        report.uncrashed(outcome)
        if outcome.reference is None:
            return
        for module in outcome.reference.seen.pop("imported"):
            with contextlib.suppress(ImportError):  # a name that only its package knows
                importlib.import_module(module)
        if not outcome.problems:
            found.append(outcome)

    def begin(subject: Subject) -> attempts.Begin:
        return lambda place: attempts.uncrashed(room, subject, place)

    forks.warm()
    forks.run_all(map(begin, subjects), choice.jobs, take)
    forks.warm()

    def begin_native(outcome: Outcome) -> attempts.Begin:
        assert outcome.reference is not None
        reference = outcome.reference
        return lambda place: attempts.natively(room, outcome.subject, reference, place)

    once = {outcome.subject.name: outcome for outcome in found}
    forks.run_all(map(begin_native, once.values()), choice.jobs, report.uncrashed)
    return sorted(found, key=lambda outcome: (outcome.subject.name, outcome.subject.database.name))


def _plan(choice: Choice, outcomes: Sequence[Outcome]) -> list[Kill]:
    kills = [
        Kill(outcome.subject, reference, number, way, mode)
        for outcome in outcomes
        if (reference := outcome.reference) is not None
        for way in choice.ways
        for mode in choice.modes
        for number, point in enumerate(reference.points, 1)
        if choice.point in (None, number)
        and (way == "freeze" or is_place_to_die(point.kind, mode == "strict"))
    ]
    return kills if choice.fixed is None else sample(kills, choice.fixed)


def _cpu(databases: Sequence[Database]) -> float:
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in own) + sum(
        database.cpu() for database in databases
    )
