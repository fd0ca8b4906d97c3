"""What a test run through the runner counts, and what `conformance.py` of an integration is given.

An integration's `conformance.py` has one function, called once in each process that runs tests, after the engine was
launched and before any test is collected:

    def install(ledger: Ledger) -> None

It replaces the framework's entry points for as long as the process lives. A call that is made inside of a run, or by
the native loop of one, is native. An outermost call makes the durable form of the user's object as it is given, calls
the same verb of that, and says `ledger.ran()`, with the run if that is to be replayed after the test. What the runner
refuses with `NotSupported`, before the framework's own code has run, is told with `ledger.refused(error)` and called
natively.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TextIO

from durable_agents._core import Execution, Runner

from .replays import Replay, replay

_NAMED = re.compile(r"'[^']*'|\"[^\"]*\"")
_REASON_CHARACTERS = 120


@dataclass(slots=True)
class Counts:
    """What went through the runner, in one test or in many.

    Args:
        runs: outermost runs.
        refused: calls that the runner refused and that were native, by reason.
        replayed: runs that were driven once more over their records.
        recorded, served: how many steps those had recorded, and how many of them the replays got.
        faults: what was wrong with replays.
    """

    runs: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    replayed: int = 0
    recorded: int = 0
    served: int = 0
    faults: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.refused)

    def __iadd__(self, other: "Counts") -> "Counts":
        self.runs += other.runs
        self.refused += other.refused
        self.replayed += other.replayed
        self.recorded += other.recorded
        self.served += other.served
        self.faults += other.faults
        return self

    def add(self, run_id: str, seen: Replay) -> None:
        self.replayed += 1
        self.recorded += seen.recorded
        self.served += seen.served
        if seen.fault:
            self.faults.append(f"run {run_id!r}: {seen.fault}")


class Ledger:
    """Counts of the current test; they are written when it is over, since a process may not live to its end."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._lock, self._now = file, threading.Lock(), Counts()
        self._over: dict[str, Runner] = {}

    @property
    def runs(self) -> int:
        """How many outermost runs the current test has had."""
        return self._now.runs

    def ran(self, run: Execution | None = None) -> None:
        """An outermost call has become a run of ours, which is to be replayed."""
        with self._lock:
            self._now.runs += 1
            if run is not None:
                self._over[run.id] = run.runner

    def replay(self) -> None:
        """Replay the runs of the current test."""
        with self._lock:
            over, self._over = self._over, {}
        for run_id, runner in over.items():
            if (seen := replay(run_id, runner)) is not None:
                self._now.add(run_id, seen)

    def refused(self, error: Exception) -> None:
        """The runner has refused an outermost call, which is native instead."""
        text = " ".join(_NAMED.sub("'…'", str(error)).split())
        reason = text if len(text) <= _REASON_CHARACTERS else f"{text[: _REASON_CHARACTERS - 1]}…"
        with self._lock:
            self._now.refused[reason] += 1

    def turn(self, test: str) -> None:
        """The test is over."""
        with self._lock:
            counted, self._now = self._now, Counts()
        if counted:
            self._file.write(
                json.dumps(
                    {"test": test, **{each.name: getattr(counted, each.name) for each in fields(counted)}}
                )
                + "\n"
            )
            self._file.flush()


def read(files: Iterable[Path]) -> dict[str, Counts]:
    """What was counted in each test, from the files of all processes."""
    counts: dict[str, Counts] = {}
    for file in files:
        for line in file.read_text().splitlines():
            told = json.loads(line)
            test = counts.setdefault(told.pop("test"), Counts())
            test += Counts(**told | {"refused": Counter(told["refused"])})
    return counts
