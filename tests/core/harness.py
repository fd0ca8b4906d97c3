"""Real processes for the core's tests, and what they leave behind: the ledger of their effects."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import durable_agents
from core.nursery import Forked, Nursery
from durable_agents._core import engine
from durable_agents._core.opening import open_run
from durable_agents._core.store import runs
from plain import Plain

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = (PROGRAMS.parents[2] / "src", PROGRAMS.parent.parent, PROGRAMS)


def eventually(
    condition: Callable[[], object], seconds: float = 20.0, what: str | Callable[[], object] = ""
) -> None:
    """Wait until the condition holds; fail when it does not in time, and say what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        late = time.monotonic() > deadline
        assert not late, f"not within {seconds} s: {what() if callable(what) else what or condition}"
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


def until_over(run_ids: Iterable[str], seconds: float = 30.0) -> None:
    """Wait until all these runs have succeeded."""
    left = list(run_ids)

    def over() -> bool:
        while left and status(left[0]) == "succeeded":
            del left[0]
        return not left

    def how() -> str:
        """A failed run's error says why."""
        return str(
            {
                run_id: (status(run_id), status(run_id) and durable_agents.runs.get(run_id).error)
                for run_id in left
            }
        )

    eventually(over, seconds, how)


def status(run_id: str) -> str:
    """The run's status, "" when there is none of this id."""
    try:
        return durable_agents.runs.get(run_id).status
    except durable_agents.errors.RunNotFound:
        return ""


@dataclass
class Program:
    """A running program."""

    process: subprocess.Popen[str] | Forked
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

    def came_of(self, run_id: str, which: int = 0) -> str:
        """What a `worker` program says came of the first thing, or the next, that it was told to do with a run."""

        def said() -> list[str]:
            return [line for line in self.output.splitlines() if line.startswith(f"{run_id} ")]

        eventually(lambda: len(said()) > which, what=lambda: self.output)
        return said()[which].removeprefix(f"{run_id} ")

    def tell(self, *command: Any) -> None:
        """Give a `worker` program something to do."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

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
    nursery: Callable[[], Nursery]
    started: list[Program] = field(default_factory=list)

    def start(self, name: str, *arguments: str, **environment: str) -> Program:
        """Start a program. `die="before:charge"` or `"after:charge"` makes it kill itself there."""
        log = self._log(name)
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
            "PYTHONUNBUFFERED": "1",
            **self._variables(environment),
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

    def fork(self, name: str, *arguments: str, **environment: str) -> Program:
        """`start` for tests that need many processes: the program is a fork of one that has imported the library."""
        log = self._log(name)
        variables = self._variables(environment)
        program = Program(self.nursery().fork(PROGRAMS / f"{name}.py", arguments, variables, log), log)
        self.started.append(program)
        return program

    def _log(self, name: str) -> Path:
        return self.home / f"{len(self.started)}-{name}.log"

    def _variables(self, environment: dict[str, str]) -> dict[str, str]:
        return {
            "DURABLE_AGENTS_DATABASE_URL": self.database_url,
            "LEDGER": str(self.ledger.path),
            **{key.upper(): value for key, value in environment.items()},
        }

    def worker(self, **environment: str) -> Program:
        """A `worker` program, forked, that has launched."""
        program = self.fork("worker", **environment)
        program.until("works")
        return program

    def freeze(self, program: Program) -> None:
        """SIGSTOP, but not inside a transaction on SQLite: that would stop every other process too."""
        while True:
            os.kill(program.pid, signal.SIGSTOP)
            if not self.database_url.startswith("sqlite") or _is_writable(self.database_url):
                return
            thaw(program)
            time.sleep(0.01)

    def end(self) -> None:
        for program in self.started:
            if program.process.poll() is None:
                program.kill()
            if program.process.stdin:
                program.process.stdin.close()


def thaw(program: Program) -> None:
    os.kill(program.pid, signal.SIGCONT)


def _is_writable(url: str) -> bool:
    with closing(
        sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
    ) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


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
