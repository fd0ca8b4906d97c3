"""A long run: a crash near its end costs the rest of it, and the way back there costs next to nothing."""

import time

import pytest

from core.harness import Programs
from durable_agents._core import engine, step
from durable_agents._core.store import runs as rows
from plain import Plain

STEPS = 2_000
MOST_MS = 0.3  # of processor time per step; 0.1 is the promise, the machine of a test is shared


def test_a_long_run_that_was_killed_near_its_end_only_does_the_rest(
    programs: Programs, idle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = programs.start("agents", "run", "long", "r", str(STEPS), die="before:last")
    assert killed.ends(25) < 0
    done: list[int] = []

    def body(steps: int) -> int:
        for number in range(steps):
            step("tool", "part", lambda number=number: done.append(number) or "x" * 1000)
        return steps

    runner, store, worker = Plain(body, "long"), engine.current().store, engine.current().worker.id
    store.execute("DELETE FROM durable_agents_worker WHERE worker_id <> ?", (worker,))
    rows.release_dead(store)
    ((run_id, _, token),) = rows.claim(store, worker, {runner.name: None}, 1)
    started = time.thread_time()
    execution = engine.current().take(runner, run_id, token)
    loaded = time.thread_time()
    assert execution.drive() == STEPS
    replayed = time.thread_time()
    assert done == [STEPS - 1]
    load, replay = ((b - a) * 1000 / STEPS for a, b in ((started, loaded), (loaded, replayed)))
    with capsys.disabled():
        print(f"\n{store.dialect}: load {load:.3f} ms, replay {replay:.3f} ms of processor time per step")
    assert load + replay <= MOST_MS
