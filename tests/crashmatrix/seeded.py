"""Scenarios with a bug each; `test_crashmatrix_selfcheck.py` says how the harness must complain of it."""

import itertools
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from crashmatrix import Answer, Scenario, Turn, World, scenario
from durable_agents import Usage, is_replaying
from durable_agents._core import RUN, Draft, Execution, engine, step
from durable_agents._core.store import runs
from durable_agents._core.store.runs import appends
from durable_agents._core.store.sqlite import SqliteStore
from durable_agents._core.worker import Worker
from plain import Plain


def once(body: Any, native: Any = None) -> Scenario:
    turn = Turn("r1", lambda app, run_id: app.run(2, run_id=run_id), native=lambda body: body(2))
    return Scenario(replays=False, runner=Plain(body), turns=[turn], native=native)


def charge(world: World, amount: int) -> str:
    def call() -> str:
        world.effect(f"charge {amount}")
        return f"receipt {amount}"

    return step("tool", "charge", call, input=str(amount))


@scenario
def sound(world: World) -> Scenario:
    """No bug."""

    def body(n: int) -> list[str]:
        return [charge(world, 1), charge(world, n)]

    return once(body, native=body)


class Forgetful(Plain):
    """Does not look at what was recorded."""

    def drive(self, execution: Execution) -> Any:
        for path in [record.path for record in execution.journal.records("tool")]:
            del execution.journal._known[path]
        return super().drive(execution)


@scenario
def forgetful(world: World) -> Scenario:
    def body(n: int) -> list[str]:
        return [charge(world, 1), charge(world, n)]

    return Scenario(
        replays=False,
        runner=Forgetful(body),
        turns=[Turn("r1", lambda app, run_id: app.run(2, run_id=run_id))],
    )


@scenario
def outside_of_a_step(world: World) -> Scenario:
    def body(n: int) -> str:
        world.effect("bare")
        return charge(world, n)

    return once(body)


@scenario
def recorded_too_early(world: World) -> Scenario:
    """The effect comes after the record that says it has happened."""

    def body(n: int) -> None:
        step("tool", "promise", lambda: None)
        if not is_replaying():
            step("tool", "keep", lambda: world.effect("kept"))

    return once(body)


@scenario
def keyed_by_arrival(world: World) -> Scenario:
    """Parallel steps named in the order they arrive, so that a replay gives each the other's result."""

    def body(n: int) -> list[str]:
        arrivals = itertools.count()

        def call(rank: int) -> str:
            time.sleep(world.latency(rank, 2) * 4)
            return step("tool", "work", lambda: acted(f"work {rank}"), key=str(next(arrivals)))

        def acted(name: str) -> str:
            world.effect(name)
            return name

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(copy_context().run, call, rank) for rank in range(2)]
            return [*(future.result() for future in futures), charge(world, n)]

    return once(body)


@scenario
def unstable_key(world: World) -> Scenario:
    """Each process gives the provider another idempotency key."""

    def body(n: int) -> str:
        return step("node", "n", lambda: charge(world, n), key=uuid.uuid4().hex, leaf=False)

    return once(body)


@scenario
def result_of_the_process(world: World) -> Scenario:
    def body(n: int) -> str:
        return charge(world, n) + (" again" if is_replaying() else "")

    return once(body)


@scenario
def usage_counted_twice(world: World) -> Scenario:
    """A model call that is made again costs tokens again, under another name."""

    def body(n: int) -> str:
        name = "again" if is_replaying() else "m"
        first = charge(world, 1)
        step("model", name, lambda: "text", usage=lambda _: Usage("fake", 1, 1))
        return first + charge(world, n)

    return once(body)


class Stuck(Plain):
    """Never comes to an end in the process that recovers."""

    def drive(self, execution: Execution) -> Any:
        if execution.journal.epoch > 1:
            time.sleep(3600)
        return super().drive(execution)


@scenario
def hangs(world: World) -> Scenario:
    def body(n: int) -> str:
        return charge(world, n)

    return Scenario(
        replays=False, runner=Stuck(body), turns=[Turn("r1", lambda app, run_id: app.run(2, run_id=run_id))]
    )


@scenario
def forgets_its_state(world: World) -> Scenario:
    """What `show` gives lives in the process only."""
    seen: list[str] = []

    def body(n: int) -> str:
        def call() -> str:
            seen.append("charged")
            return charge(world, 1)

        return step("node", "pay", call, leaf=False) + charge(world, n)

    return Scenario(
        replays=False,
        runner=Plain(body),
        turns=[Turn("r1", lambda app, run_id: app.run(2, run_id=run_id))],
        show=lambda app: seen,
    )


@scenario
def repeats_a_sibling(world: World) -> Scenario:
    """A step whose record comes long after its effect: what a strict kill at its sibling must find."""

    def body(n: int) -> list[Any]:
        run = RUN.get()
        assert run is not None

        def late() -> None:
            call = "tool:late"
            if call not in run.journal.known:
                world.effect("unprotected")  # in no step of its own
                time.sleep(0.05)
                run.journal.commit(Draft("tool", call, "null"))

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(copy_context().run, work) for work in (late, lambda: charge(world, n))]
            return [future.result() for future in futures]

    return once(body)


@scenario
def answers_twice(world: World) -> Scenario:
    """The answer to the first question is taken for the second one too."""

    def ask(question: str) -> Any:
        run = RUN.get()
        assert run is not None
        given = list(run.answers.values())
        return given[-1] if given and is_replaying() else run.wait({question: question})[question]

    def body(n: int) -> list[Any]:
        return [ask("first"), charge(world, n), ask("second")]

    turn = Turn("r1", lambda app, run_id: app.run(2, run_id=run_id), attaches=False)
    return Scenario(replays=False, runner=Plain(body), turns=[turn, Answer("r1", "one"), Answer("r1", "two")])


@scenario
def other_than_natively(world: World) -> Scenario:
    def body(n: int) -> str:
        return charge(world, n)

    return once(body, native=lambda n: world.effect("charge 2"))


@scenario
def without_boundaries(world: World) -> Scenario:
    return Scenario(replays=False, runner=Plain(lambda n: n, name="nothing"), turns=[])


@scenario
def breaks_uncrashed(world: World) -> Scenario:
    raise RuntimeError("this scenario cannot be built")


@scenario
def fails_uncrashed(world: World) -> Scenario:
    def body(n: int) -> str:
        charge(world, n)
        raise LookupError("no such order")

    return once(body)


@scenario
def never_the_same(world: World) -> Scenario:
    """What it does is named anew in every process, so that no boundary is ever met again."""

    def body(n: int) -> str:
        world.effect(f"effect {os.getpid()}")
        return charge(world, n)

    return once(body)


@scenario
def takes_from_the_living(world: World) -> Scenario:
    """A worker that takes every other one for dead."""

    def sweep(self: Worker) -> int:
        self._store.execute("DELETE FROM durable_agents_worker WHERE worker_id <> ?", (self.id,))
        return runs.release_dead(self._store)

    if world.recovers:
        Worker.sweep = sweep  # type: ignore[method-assign]

    def body(n: int) -> str:
        first = charge(world, 1)
        time.sleep(0.2)
        return first + charge(world, n)

    return once(body)


@scenario
def unfenced(world: World) -> Scenario:
    """Records are written by whoever once had the run."""
    fenced = appends._insert_record_sql
    fence = "AND s.owner_xid = ? AND s.status = 'PENDING'"
    assert fence in fenced(SqliteStore)  # type: ignore[arg-type]
    appends._insert_record_sql = lambda store: fenced(store).replace(fence, "AND ? <> ''")

    def body(n: int) -> list[str]:
        return [charge(world, 1), charge(world, n)]

    return once(body)


@scenario
def beside_its_records(world: World) -> Scenario:
    """State that does not go through the journal."""

    def body(n: int) -> str:
        def pay() -> str:
            world.effect("pay")
            engine.current().store.execute("UPDATE workflow_status SET priority = priority + 1")
            return "paid"

        return step("tool", "pay", pay) + charge(world, n)

    return once(body)


@scenario
def begins_anyway(world: World) -> Scenario:
    """A step does not ask whether its run is still this worker's."""
    enter = Execution.enter
    Execution.enter = lambda self, leaf, force=False: enter(self, leaf, True)  # type: ignore[method-assign]

    def body(n: int) -> list[str]:
        return [charge(world, 1), charge(world, n)]

    return once(body)


class Stranded(Plain):
    """Does not come back from a run that somebody else has ended."""

    def _attached(self, run: Any) -> Any:
        time.sleep(3600)


@scenario
def never_returns(world: World) -> Scenario:
    def body(n: int) -> str:
        return charge(world, n)

    turn = Turn("r1", lambda app, run_id: app.run(2, run_id=run_id), attaches=False)
    return Scenario(replays=False, runner=Stranded(body), turns=[turn])
