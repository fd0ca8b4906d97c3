"""Real processes for the core's tests, and what they leave behind: the ledger of their effects."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durable_agents._core import engine
from durable_agents._core.opening import open_run
from durable_agents._core.store import runs
from plain import Plain

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = (PROGRAMS.parents[2] / "src", PROGRAMS.parent.parent, PROGRAMS)


def eventually(condition: Callable[[], object], seconds: float = 20.0, what: str = "") -> None:
    """Wait until the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.01)


@dataclass
class Ledger:
    """The file that the programs' effects append a line to."""

    path: Path

    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def effects(self) -> list[str]:
        """The effects in the order they happened."""
        return [line[0] for line in self.lines()]

    def keys(self, effect: str) -> list[str]:
        """The idempotency keys the effect was made with."""
        return [line[1] for line in self.lines() if line[0] == effect]

    def pids(self, effect: str) -> list[int]:
        return [int(line[2]) for line in self.lines() if line[0] == effect]


@dataclass
class Program:
    """A running program."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, line: str) -> bool:
        return line in self.log.read_text().splitlines()

    def until(self, line: str, seconds: float = 30.0) -> None:
        """Wait until the program has printed this line."""
        eventually(
            lambda: self.says(line) or self.process.poll() is not None, seconds, f"{line!r}: {self.output}"
        )
        assert self.says(line), self.output

    @property
    def output(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def ends(self, seconds: float = 60.0) -> int:
        """The exit code; a program that a signal ended has the negative number of it."""
        return self.process.wait(seconds)


@dataclass
class Programs:
    """Starts programs of `tests/core/programs` on one database and one ledger."""

    database_url: str
    home: Path
    ledger: Ledger
    started: list[Program] = field(default_factory=list)

    def start(self, name: str, *arguments: str, **environment: str) -> Program:
        """Start a program. `die="before:charge"` or `"after:charge"` makes it kill itself there."""
        log = self.home / f"{len(self.started)}-{name}.log"
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            "PYTHONUNBUFFERED": "1",
            "DURABLE_AGENTS_DATABASE_URL": self.database_url,
            "LEDGER": str(self.ledger.path),
            **{key.upper(): value for key, value in environment.items()},
        }
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / f"{name}.py"), *arguments],
                env=variables,
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        program = Program(process, log)
        self.started.append(program)
        return program

    def end(self) -> None:
        for program in self.started:
            if program.process.poll() is None:
                program.kill()
            if program.process.stdin:
                program.process.stdin.close()


def crash(run_id: str, after: int = 0) -> None:
    """Leave the run as a crash after its `after`-th record does, once a sweeper has noticed. 0: just before its end."""
    store = engine.current().store
    last = (
        after
        or store.query(
            "SELECT max(function_id) - 1 FROM operation_outputs WHERE workflow_uuid = ?", (run_id,)
        )[0][0]
    )
    store.execute("DELETE FROM operation_outputs WHERE workflow_uuid = ? AND function_id > ?", (run_id, last))
    store.execute("DELETE FROM workflow_output WHERE workflow_uuid = ?", (run_id,))
    store.execute(
        "UPDATE workflow_status SET status = 'ENQUEUED', owner_xid = NULL, executor_id = NULL, completed_at = NULL,"
        " recovery_attempts = 1 WHERE workflow_uuid = ?",
        (run_id,),
    )


def drive(runner: Plain, input: Any = None, *, run_id: str, thread: str | None = None) -> Any:
    """Drive a run here, once, new or queued. A verb would go on waiting for a run that it has lost."""
    running = engine.current()
    worker = running.worker.id
    _, token = open_run(running.store, runner.name, runner._request(input, thread), run_id, worker)
    if token is None:
        ((_, _, token),) = runs.claim(running.store, worker, {runner.name: None}, 1, only=run_id)
    return running.take(runner, run_id, token).drive()


def steal(run_id: str) -> None:
    """Give the run to another worker, as a takeover does while this process is frozen."""
    engine.current().store.execute(
        "UPDATE workflow_status SET owner_xid = 'thief', executor_id = 'thief' WHERE workflow_uuid = ?",
        (run_id,),
    )
