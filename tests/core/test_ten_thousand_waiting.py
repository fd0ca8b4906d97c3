"""Ten thousand runs that wait for people cost a worker nothing: no thread, no connection, no memory, no time."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.crowd import multiply
from core.harness import Program, Programs, until_over
from durable_agents import errors, runs
from durable_agents._core import RUN, engine, step
from durable_agents._core.store import Store
from durable_agents._core.store import runs as rows
from plain import Plain

pytestmark = pytest.mark.usefixtures("idle")

Agent = Callable[..., Plain]
Figure = Callable[[str, str], None]

MANY = 10_000
CROWD = 3_000
LINUX = Path("/proc/self/stat").exists()


@dataclass
class Weight:
    """What a process holds, and what it has used: its own and the database server's time for it."""

    threads: int
    files: int
    connections: int
    megabytes: float
    seconds: float

    @classmethod
    def of(cls, program: Program) -> "Weight":
        home = Path(f"/proc/{program.pid}")
        pages = int((home / "statm").read_text().split()[1])
        backends = _backends()
        return cls(
            threads=len(list((home / "task").iterdir())),
            files=len(list((home / "fd").iterdir())),
            connections=len(backends),
            megabytes=pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
            seconds=sum(_cpu(pid) for pid in (program.pid, *backends)),
        )


def _backends() -> list[int]:
    """The server's processes that serve the workers, this process's connections among them."""
    store = engine.current().store
    if store.dialect == "sqlite":
        return []
    return [
        pid
        for (pid,) in store.query(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'durable_agents'"
        )
    ]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def used_in(program: Program, seconds: float) -> float:
    before = Weight.of(program)
    time.sleep(seconds)
    return Weight.of(program).seconds - before.seconds


@pytest.mark.skipif(not LINUX, reason="reads /proc")
def test_a_worker_does_not_feel_ten_thousand_waiting_runs(programs: Programs, figure: Figure) -> None:
    worker, store = programs.worker(), engine.current().store
    worker.tell("call", "asking", "w", "t", None)
    worker.until("w raises RunWaiting")
    alone, idle = used_in(worker, 2.0), Weight.of(worker)
    begun = time.monotonic()
    multiply(store, "w", [f"w{n}" for n in range(MANY)])
    inserted = time.monotonic() - begun
    assert len(runs.list(status="waiting", limit=2 * MANY)) == MANY + 1
    crowded, full = used_in(worker, 2.0), Weight.of(worker)
    begun = time.monotonic()
    runs.get("w5000").answer("yes")
    until_over(["w5000"])
    answered = time.monotonic() - begun
    assert runs.get("w5000")._closing().value() == ["yes", "send"]
    assert programs.ledger.effects() == ["draft", "send"]
    figure("CPU of an idle worker in 2 s", f"{alone:.2f} s, {crowded:.2f} s with {MANY:,} waiting runs")
    figure(f"answer to result among {MANY:,} waiting runs", f"{answered:.2f} s")
    figure(f"{MANY:,} waiting runs inserted in", f"{inserted:.1f} s")
    assert full.threads == idle.threads
    assert full.connections <= idle.connections + 1  # one more when heartbeat and claim happen to meet
    assert full.files <= idle.files + 1
    assert full.megabytes - idle.megabytes < 8  # less than a kilobyte for each
    assert crowded < alone + 0.1
    assert answered < 1


# -- the statements behind it


class Work:
    """How much of the tables the database looks at: rows and index entries, or steps of SQLite's virtual machine."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, call: Callable[[], Any]) -> int:
        """Of one call, the second one: the first one may find nothing prepared."""
        call()
        return self._steps(call) if self._store.dialect == "sqlite" else self._rows(call)

    def _steps(self, call: Callable[[], Any]) -> int:
        store: Any = self._store
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 10

        connections = [store._reader, store._writer]
        for connection in connections:
            connection.set_progress_handler(count, 10)
        try:
            call()
        finally:
            for connection in connections:
                connection.set_progress_handler(None, 0)
        return steps

    def _rows(self, call: Callable[[], Any]) -> int:
        before = self._read()
        call()
        return self._read() - before

    def _read(self) -> int:
        self._store.query("SELECT pg_stat_force_next_flush()")
        ((tables,),) = self._store.query(
            "SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname IN ('dbos', 'durable_agents')"
        )
        ((indexes,),) = self._store.query(
            "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname IN ('dbos', 'durable_agents')"
        )
        return int(tables) + int(indexes)


@pytest.fixture
def crowd(agent: Agent) -> tuple[Plain, Store]:
    """Many runs of one runner that wait, and as many that are over."""

    def body(asks: bool) -> Any:
        step("tool", "t", lambda: 1)
        run = RUN.get()
        assert run is not None
        return run.wait({"q": 1}) if asks else "done"

    runner, store = agent(body), engine.current().store
    with pytest.raises(errors.RunWaiting):
        runner.run(True, run_id="waits", thread="waits")
    runner.run(False, run_id="over", thread="over")
    multiply(store, "waits", [f"w{n}" for n in range(CROWD)])
    multiply(store, "over", [f"o{n}" for n in range(CROWD)])
    if store.dialect == "postgresql":
        store.execute("ANALYZE workflow_status")
    return runner, store


def test_no_hot_statement_looks_at_all_runs(crowd: tuple[Plain, Store], figure: Figure) -> None:
    """What a worker does all the time, and what each run does at its start, its claim and its end."""
    runner, store = crowd
    worker, work = engine.current().worker, Work(store)
    numbers = iter(range(100))

    def claimed(run_id: str) -> None:
        while not (found := rows.claim(store, worker.id, {runner.name: None}, 1)):
            pass  # this process's own loop is looking at it
        engine.current().take(runner, run_id, found[0][2]).drive()

    def queued() -> None:
        run_id = f"new{next(numbers)}"
        engine.current().shun(run_id)  # for us to claim
        runner.start(False, run_id=run_id, thread=f"thread of {run_id}")
        claimed(run_id)

    def called() -> None:
        run_id = f"called{next(numbers)}"
        runner.run(False, run_id=run_id, thread=f"thread of {run_id}")

    def answered() -> None:
        run_id = f"w{next(numbers)}"
        engine.current().shun(run_id)
        runs.get(run_id).answer(1)
        claimed(run_id)

    done = {
        "heartbeat": work.of(worker.beat),
        "sweep": work.of(worker.sweep),
        "look for queued runs": work.of(lambda: rows.claim(store, worker.id, {runner.name: None}, 32)),
        "look at own runs": work.of(lambda: rows.owned_by(store, worker.id)),
        "find who waits on a thread": work.of(lambda: rows.waiting_on(store, runner.name, "w77")),
        "list the newest": work.of(lambda: rows.find(store, limit=20)),
        "list those that wait": work.of(lambda: rows.find(store, states=["waiting"], limit=20)),
        "a run that is called": work.of(called),
        "a run that is queued": work.of(queued),
        "a run that is answered": work.of(answered),
    }
    most = max(done, key=lambda what: done[what])
    unit = "steps of its machine" if store.dialect == "sqlite" else "rows read"
    figure(f"most work among {2 * CROWD:,} runs", f"{most}, {done[most]:,} {unit}")
    assert {what: steps for what, steps in done.items() if steps >= CROWD} == {}
