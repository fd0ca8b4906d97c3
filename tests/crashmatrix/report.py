"""What the harness prints."""

import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from .attempts import Outcome

_EVERY_SECONDS = 10.0
_SHOWN_PER_SCENARIO = 3


@dataclass(slots=True)
class Report:
    """Progress, failures as they come, and a table at the end.

    Args:
        command: how the harness is called.
    """

    command: str
    points: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    ways: Counter[tuple[str, bool]] = field(default_factory=Counter)
    late: Counter[tuple[str, str]] = field(default_factory=Counter)
    served: int = 0
    recorded: int = 0
    cpu: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    _began: float = field(default_factory=time.monotonic)
    _said: float = field(default_factory=time.monotonic)

    def uncrashed(self, outcome: Outcome) -> None:
        """Take in an uncrashed or native run."""
        row = (outcome.subject.name, outcome.subject.database.name)
        self.points.setdefault(row, 0)
        self.served, self.recorded = self.served + outcome.served, self.recorded + outcome.recorded
        self._problems(outcome, f"--scenario {row[0]} --db {row[1]}", "uncrashed")

    def killed(self, outcome: Outcome, planned: int) -> None:
        """Take in a killed run, one of as many as are planned."""
        row = (outcome.subject.name, outcome.subject.database.name)
        self.points[row] += 1
        self.late[row] += outcome.was_late
        self.cpu[row] += outcome.cpu
        if kill := outcome.kill:
            self.ways[kill.way, bool(outcome.problems)] += 1
            only = f"--scenario {row[0]} --db {row[1]} --point {kill.number}"
            only += f" --how {kill.way} --mode {kill.mode}"
            what = (
                f"point {kill.number} of {len(kill.reference.points)}, {kill.way}, {kill.mode}: {kill.point}"
            )
            self._problems(outcome, only, what)
        now, done, failed = time.monotonic(), self.points.total(), self.failures.total()
        if now - self._said > _EVERY_SECONDS:
            self._said = now
            speed = done / (now - self._began)
            print(f"  {done} of {planned} points, {failed} failed, {speed:.0f} points/s", flush=True)

    def _problems(self, outcome: Outcome, only: str, what: str) -> None:
        row = (outcome.subject.name, outcome.subject.database.name)
        if not outcome.problems:
            return
        self.failures[row] += 1
        if self.failures[row] > _SHOWN_PER_SCENARIO:
            return
        print(f"\nFAILED {' on '.join(row)}, {what}")
        for problem in outcome.problems:
            print(f"    {problem}")
        print(f"    again: {self.command} {only}", flush=True)
        if self.failures[row] == _SHOWN_PER_SCENARIO:
            print(f"    (further failures of {' on '.join(row)} are only counted)", flush=True)

    def table(self) -> None:
        width = max((len(name) for name, _ in self.points), default=8)
        print(
            f"\n{'scenario':{width}}  {'database':10} {'points':>6} {'failed':>6} {'late':>5} {'CPU/point':>9}"
        )
        for row in sorted(self.points):
            points = self.points[row]
            each = f"{self.cpu[row] / points:.3f} s" if points else "-"
            print(
                f"{row[0]:{width}}  {row[1]:10} {points:6} {self.failures[row]:6} {self.late[row]:5} {each:>9}"
                + ("  FAILED" if self.failures[row] else "")
            )
        print(
            f"replayed without a crash: {self.served} steps served of {self.recorded} recorded, none executed"
        )
        for way in sorted({way for way, _ in self.ways}):
            failed = self.ways[way, True]
            print(f"{way}: {self.ways[way, False] + failed} points, {failed} failed")
        if self.late.total():
            print("late: strict kills that did not wait any longer for a sibling, such as a node that asks")
        sys.stdout.flush()
