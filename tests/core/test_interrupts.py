"""Callers that go away: cancelled tasks, loops that end, Ctrl-C. Their runs are released and somebody finishes them."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from core.harness import Programs, eventually
from durable_agents import errors, runs
from durable_agents._core import RUN, astep, engine, step
from plain import Plain

Agent = Callable[..., Plain]
here = pytest.mark.usefixtures("sqlite")


class Long:
    """A body that hangs between two steps, the first time it is driven."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hanging = threading.Event()

    async def tool(self, name: str) -> str:
        self.calls.append(name)
        return name

    async def __call__(self, _: None) -> list[str]:
        first = await astep("tool", "first", lambda: self.tool("first"))
        if not self.hanging.is_set():
            self.hanging.set()
            await asyncio.sleep(3600)
        return [first, await astep("tool", "second", lambda: self.tool("second"))]

    def body(self) -> Callable[[None], Coroutine[Any, Any, list[str]]]:
        async def body(input: None) -> list[str]:
            return await self(input)

        return body


def finished(run_id: str, long: Long) -> None:
    assert runs.get(run_id).result(10) == ["first", "second"]
    assert long.calls == ["first", "second"]


@here
def test_a_cancelled_caller_detaches_and_the_run_goes_on(agent: Agent) -> None:
    long = Long()
    runner = agent(long.body())

    async def main() -> None:
        task = asyncio.create_task(runner.arun(run_id="detached"))
        await asyncio.to_thread(long.hanging.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    finished("detached", long)


@here
def test_a_caller_that_is_cancelled_at_once_strands_nothing(agent: Agent) -> None:
    async def body(_: None) -> str:
        return await astep("tool", "t", lambda: asyncio.sleep(0, "done"))

    runner = agent(body)

    async def main() -> None:
        for n in range(40):
            task = asyncio.create_task(runner.arun(run_id=f"at-once-{n}"))
            await asyncio.sleep(0.0005 * (n % 20))
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())

    def stranded() -> list[str]:
        return [r.id for r in runs.list(runner=runner.name) if r.status != "succeeded"]

    eventually(lambda: not stranded(), 5, f"{stranded()}")


@here
def test_a_timeout_around_the_verb_detaches(agent: Agent) -> None:
    long = Long()
    runner = agent(long.body())

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runner.arun(run_id="timeout"), 0.3)

    asyncio.run(main())
    finished("timeout", long)


@here
def test_a_loop_that_ends_with_asyncio_run_leaves_the_run_to_others(agent: Agent) -> None:
    long = Long()
    runner = agent(long.body())

    async def main() -> None:
        task = asyncio.create_task(runner.arun(run_id="ended"))
        await asyncio.to_thread(long.hanging.wait, 10)
        assert not task.done()

    asyncio.run(main())
    finished("ended", long)


@here
@pytest.mark.parametrize("kept", [True, False], ids=["task kept", "task collected"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_closed_without_unwinding_leaves_the_run_to_others(agent: Agent, kept: bool) -> None:
    long = Long()
    runner = agent(long.body())
    run_id = f"closed-{kept}"
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(runner.arun(run_id=run_id))

    async def until_hanging() -> None:
        while not long.hanging.is_set():
            await asyncio.sleep(0.01)

    loop.run_until_complete(until_hanging())
    loop.close()
    if not kept:
        del task
        gc.collect()
    finished(run_id, long)


@here
@pytest.mark.parametrize("kept", [True, False], ids=["task kept", "task collected"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_closed_inside_a_step_leaves_the_run_to_others(agent: Agent, kept: bool) -> None:
    calls: list[str] = []

    async def hang() -> str:
        calls.append("tool")
        if len(calls) == 1:
            await asyncio.sleep(3600)
        return "done"

    async def body(_: None) -> str:
        return await astep("tool", "t", hang)

    runner = agent(body)
    run_id = f"inside-{kept}"
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(runner.arun(run_id=run_id))

    async def until_hanging() -> None:
        while not calls:
            await asyncio.sleep(0.01)

    loop.run_until_complete(until_hanging())
    loop.close()
    if not kept:
        del task
        gc.collect()
    assert runs.get(run_id).result(10) == "done"
    assert calls == ["tool", "tool"]


@here
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_closed_while_the_caller_waits_for_its_turn(agent: Agent) -> None:
    gate = threading.Event()

    async def body(input: str) -> str:
        if input == "first":
            await asyncio.to_thread(gate.wait, 20)
        return input

    runner = agent(body)
    running = runner.start("first", run_id="turn-1", thread="turn")
    eventually(lambda: running.status == "running")
    loop = asyncio.new_event_loop()
    task = loop.create_task(runner.arun("second", run_id="turn-2", thread="turn"))
    loop.run_until_complete(asyncio.sleep(0.3))
    loop.close()
    gate.set()
    assert runs.get("turn-2").result(10) == "second"
    assert not task.done()


@here
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_caller_that_is_collected_while_the_database_is_in_use_waits_for_no_lock(agent: Agent) -> None:
    """Coroutines are collected in any thread, so also in one that has the lock that the release of a run wants."""
    gate, store = threading.Event(), engine.current().store

    async def body(input: str) -> str:
        if input == "first":
            await asyncio.to_thread(gate.wait, 20)
        return input

    runner = agent(body)
    running = runner.start("first", run_id="lock-1", thread="lock")
    eventually(lambda: running.status == "running")
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(runner.arun("second", run_id="lock-2", thread="lock"))]
    loop.run_until_complete(asyncio.sleep(0.3))
    loop.close()
    collecting = threading.Thread(
        target=lambda: store.transact(lambda _: (tasks.clear(), gc.collect())), daemon=True
    )
    collecting.start()
    collecting.join(3)
    stuck = collecting.is_alive()
    if stuck:  # let the other tests of this module go on
        store._write_lock.release()  # type: ignore[attr-defined]
        collecting.join(3)
    gate.set()
    assert not stuck
    assert runs.get("lock-2").result(10) == "second"


@here
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_base_exception_releases_the_run_and_reaches_the_caller(
    agent: Agent, error: type[BaseException]
) -> None:
    calls: list[int] = []

    def tool() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return "done"

    runner = agent(lambda _: step("tool", "t", tool))
    with pytest.raises(error):
        runner.run(run_id=error.__name__)
    run = runs.get(error.__name__)
    time.sleep(0.3)  # this process does not claim it again by itself
    assert (run.status, run.steps(), calls) == ("running", [], [1])
    assert runner.run(run_id=error.__name__) == "done"
    assert calls == [1, 1]


@here
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_base_exception_in_a_coroutine_reaches_the_caller(agent: Agent, error: type[BaseException]) -> None:
    first = [True]

    async def body(_: None) -> str:
        if first.pop():
            first.append(False)
            raise error
        first.append(False)
        return "done"

    runner = agent(body)
    with pytest.raises(error):
        asyncio.run(runner.arun(run_id=f"a{error.__name__}"))
    assert runs.get(f"a{error.__name__}").status == "running"
    assert asyncio.run(runner.arun(run_id=f"a{error.__name__}")) == "done"


@here
def test_a_tool_that_exits_does_not_spin(agent: Agent) -> None:
    """Released by one worker and claimed by the same one at once, its effect would repeat as fast as it can."""
    calls: list[int] = []

    def body(_: None) -> None:
        calls.append(1)
        if len(calls) < 500:
            raise SystemExit(3)

    run = agent(body).start(run_id="spins")
    eventually(lambda: calls)
    time.sleep(1.0)
    run.cancel()
    assert calls == [1]


@here
def test_a_tool_that_exits_leaves_the_home_loop_to_others(agent: Agent) -> None:
    calls: list[int] = []

    async def tool() -> None:
        calls.append(1)
        raise SystemExit(3)

    async def bad(_: None) -> None:
        await asyncio.create_task(astep("tool", "t", tool, key="k"))

    async def good(_: None) -> str:
        return "good"

    run = agent(bad).start(run_id="exits")
    eventually(lambda: calls)
    time.sleep(0.3)
    run.cancel()
    assert agent(good).start(run_id="neighbour").result(10) == "good"


def test_ctrl_c_ends_the_process_and_another_worker_finishes_the_run(programs: Programs) -> None:
    import signal

    program = programs.start("agents", "run", "gated", "c")
    eventually(lambda: "held" in programs.ledger.effects(), what=program.output)
    program.process.send_signal(signal.SIGINT)
    assert program.ends(15) != 0
    assert "KeyboardInterrupt" in program.output
    assert programs.ledger.effects() == ["first", "held"]
    (programs.home / "open").touch()
    other = programs.start("agents", "run", "gated", "c")
    assert other.ends() == 0
    assert programs.ledger.effects() == ["first", "held", "held", "last"]


@pytest.mark.parametrize("how", ["ctrl-c", "exit"])
def test_a_body_that_ends_its_process_does_so_once(programs: Programs, how: str) -> None:
    program = programs.start("agents", "run", "interrupted", "i", f'"{how}"')
    assert program.ends(15) != 0
    assert programs.ledger.effects() == ["first", "leave"]
    other = programs.start("agents", "run", "interrupted", "i", f'"{how}"')
    assert other.ends() == 0
    assert programs.ledger.effects() == ["first", "leave", "leave"]


# -- the library's own signals


@here
def test_a_swallowed_stop_still_parks_the_run(agent: Agent) -> None:
    drives: list[int] = []

    def body(_: None) -> str:
        drives.append(1)
        try:
            return str(RUN.get().wait({"q": 1})["q"])  # type: ignore[union-attr]
        except BaseException:
            return "swallowed"

    runner = agent(body)
    with pytest.raises(errors.RunWaiting):
        runner.run(run_id="swallowed")
    assert runs.get("swallowed").status == "waiting"
    time.sleep(0.3)
    assert len(drives) == 1
    runs.get("swallowed").answer("yes")
    assert runs.get("swallowed").result(10) == "yes"


@here
def test_no_new_step_starts_after_a_swallowed_stop(agent: Agent) -> None:
    calls: list[int] = []

    def body(_: None) -> str:
        try:
            return str(RUN.get().wait({"q": 1})["q"])  # type: ignore[union-attr]
        except BaseException:
            step("tool", "t", lambda: calls.append(1))
            raise

    runner = agent(body)
    with pytest.raises(errors.RunWaiting):
        runner.run(run_id="no-new")
    assert calls == []


@here
def test_a_stop_wrapped_by_a_task_group_still_parks_the_run(agent: Agent) -> None:
    async def sibling() -> str:
        await asyncio.sleep(0.05)
        return "done"

    async def body(_: None) -> str:
        async def asks() -> str:
            return str(RUN.get().wait({"q": 1})["q"])  # type: ignore[union-attr]

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(asks())
            group.create_task(astep("tool", "sibling", sibling, key="s"))
        return asked.result()

    runner = agent(body)
    with pytest.raises(errors.RunWaiting):
        asyncio.run(runner.arun(run_id="group"))
    assert runs.get("group").status == "waiting"
    runs.get("group").answer("yes")
    assert runs.get("group").result(10) == "yes"
