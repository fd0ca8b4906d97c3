"""Per step: a bare INSERT + commit through the same driver, a plain DBOS step, ours, and our replay."""

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import floor
import plain_dbos
from dbos import DBOS

import durable_agents
from durable_agents._core import Execution, Request, Runner, engine, step
from durable_agents._core.store import Statement

STEPS = 200
PAYLOAD = "x" * 200


@dataclass
class Best:
    """The best round of a variant, per step in milliseconds."""

    wall: float = 1e9
    cpu: float = 1e9

    def take(self, wall: float, cpu: float, count: int) -> None:
        self.wall, self.cpu = min(self.wall, wall / count * 1000), min(self.cpu, cpu / count * 1000)


class Loop(Runner):
    """A runner whose native loop is STEPS steps."""

    framework = "bench"
    timed = (0.0, 0.0)

    def is_async(self, execution: Execution) -> bool:
        return False

    def drive(self, execution: Execution) -> int:
        wall, cpu = time.perf_counter(), time.thread_time()
        for _ in range(STEPS):
            step("tool", "t", lambda: PAYLOAD)
        self.timed = (time.perf_counter() - wall, time.thread_time() - cpu)
        return STEPS

    def run(self) -> tuple[float, float]:
        self.call(Request(None), uuid.uuid4().hex)
        return self.timed


def report(name: str, url: str, rounds: int) -> None:
    """Measure on this database and print a table."""
    with ExitStack() as opened:
        opened.enter_context(plain_dbos.launched(url))
        durable_agents.launch(url)
        opened.callback(durable_agents.shutdown)
        insert = floor.inserter(url, len(PAYLOAD), opened)
        loop = Loop(f"loop_{name}")
        variants: dict[str, Callable[[], tuple[float, float]]] = {
            "bare INSERT + commit": lambda: bare(insert),
            "plain DBOS step": dbos_steps,
            "durable step": loop.run,
        }
        best = {variant: Best() for variant in (*variants, "replay of a step")}
        for _ in range(rounds):
            for variant, measure in variants.items():
                best[variant].take(*measure(), STEPS)
            best["replay of a step"].take(*replay(loop), STEPS)
    print(f"\n{name}: ms per step, {STEPS} steps of {len(PAYLOAD)} B, best of {rounds}")
    print(f"  {'':24}{'wall':>8}{'CPU':>8}{'CPU over floor':>17}")
    for variant, found in best.items():
        over = found.cpu - best["bare INSERT + commit"].cpu
        print(f"  {variant:24}{found.wall:8.3f}{found.cpu:8.3f}{over:17.3f}")


def bare(insert: Callable[[str, int], None]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.thread_time()
    insert(uuid.uuid4().hex, STEPS)
    return time.perf_counter() - wall, time.thread_time() - cpu


def replay(loop: Loop) -> tuple[float, float]:
    """Load the records of a run that was killed at its end, and go over all its steps."""
    run_id = uuid.uuid4().hex
    loop.call(Request(None), run_id)
    store = engine.current().store
    store.write(
        [
            Statement(
                "UPDATE workflow_status SET status = 'PENDING', owner_xid = 'again' WHERE workflow_uuid = ?",
                ((run_id,),),
            )
        ]
    )
    store.write(
        [
            Statement(
                "DELETE FROM operation_outputs WHERE workflow_uuid = ? AND function_name = 'close'",
                ((run_id,),),
            )
        ]
    )
    wall, cpu = time.perf_counter(), time.thread_time()
    engine.current().take(loop, run_id, "again").drive()
    return time.perf_counter() - wall, time.thread_time() - cpu


@DBOS.workflow()
def plain_workflow(count: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(count):
        DBOS.run_step({"name": "t"}, lambda: PAYLOAD)
    return time.perf_counter() - wall, time.thread_time() - cpu


def dbos_steps() -> tuple[float, float]:
    return plain_workflow(STEPS)
