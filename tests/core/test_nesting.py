"""A runner called inside a run is a part of it; only `start()` makes a run of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

import durable_agents
from core.harness import crash
from durable_agents import RunWaiting, runs
from durable_agents._core import RUN, engine, step
from durable_agents.errors import ThreadBusy
from plain import Plain

Agent = Callable[..., Plain]


def test_a_nested_call_is_a_scope_of_the_run(agent: Agent, launched: str) -> None:
    done: list[str] = []
    inner = agent(lambda n: step("tool", "pay", lambda: done.append(n) or n))
    outer = agent(lambda _: [inner.run("a"), inner.run("b"), inner.run("c", run_id="order-7")])
    assert outer.run(run_id="r") == ["a", "b", "c"]
    name = f"run:{inner.name}"
    assert [s.path for s in runs.get("r").steps()] == [
        f"{name}/tool:pay", f"{name}#2/tool:pay", f"{name}:order-7/tool:pay",
    ]  # fmt: skip
    assert [run.id for run in runs.list()] == ["r"]
    crash("r")
    assert outer.run(run_id="r") == ["a", "b", "c"]
    assert done == ["a", "b", "c"]


def test_a_nested_call_in_an_event_loop(agent: Agent, launched: str) -> None:
    async def reply(n: str) -> str:
        return step("tool", "pay", lambda: n)

    inner = agent(reply)

    async def body(_: None) -> list[str]:
        return [await inner.arun("a"), await inner.arun("b")]

    outer = agent(body)
    assert asyncio.run(outer.arun(run_id="r")) == ["a", "b"]
    assert [run.id for run in runs.list()] == ["r"]


def test_a_nested_wait_parks_the_whole_run(agent: Agent, launched: str) -> None:
    inner = agent(lambda _: RUN.get().wait({"q": 1})["q"])  # type: ignore[union-attr]
    outer = agent(lambda _: [inner.run(), step("tool", "after", lambda: "sent")])
    with pytest.raises(RunWaiting, match="'r'"):
        outer.run(run_id="r")
    runs.get("r").answer("yes")
    assert runs.get("r").result(timeout=10) == ["yes", "sent"]


def test_its_own_thread_is_an_error(agent: Agent, launched: str) -> None:
    runners: list[Plain] = []
    runners.append(agent(lambda deep: deep or runners[0].run(True, thread="t")))
    with pytest.raises(ThreadBusy, match="'t'"):
        runners[0].run(False, thread="t")


def test_a_started_run_is_a_child_that_is_started_once(agent: Agent, launched: str) -> None:
    child = agent(lambda n: n)
    parent = agent(lambda _: [child.start(1).id, child.start(2).id, child.start(3, run_id="named").id])
    ids = parent.run(run_id="parent")
    assert ids[2] == "named"
    assert len(set(ids)) == 3
    assert [runs.get(i).result(timeout=10) for i in ids] == [1, 2, 3]
    crash("parent", after=1)
    assert parent.run(run_id="parent") == ids
    assert len(runs.list()) == 4
    sql = "SELECT DISTINCT parent_workflow_id FROM workflow_status WHERE name = ?"
    assert engine.current().store.query(sql, (child.name,)) == [("parent",)]


def test_many_are_started_together(agent: Agent, launched: str) -> None:
    runner = agent(lambda n: n)
    many: Any = [runner._request(n, None) for n in range(20)]
    started = runner.submit_all(many, [f"batch/{n}" for n in range(20)])
    assert [run.result(timeout=10) for run in started] == list(range(20))


def test_children_that_parallel_threads_start_are_told_apart_by_their_input(
    agent: Agent, launched: str
) -> None:
    child = agent(lambda n: n * 10)

    def started_in(order: list[int]) -> list[Any]:
        def begin(n: int) -> Any:
            return child.start(n)

        found = []
        for n in order:  # one after the other, each from a thread of its own
            with ThreadPoolExecutor(1) as pool:
                found.append(pool.submit(copy_context().run, begin, n).result())
        return [run.result(timeout=10) for run in found]

    orders = iter([[1, 2, 3], [3, 2, 1]])
    parent = agent(lambda _: sorted(started_in(next(orders))))
    assert parent.run(run_id="r") == [10, 20, 30]
    crash("r")
    assert parent.run(run_id="r") == [10, 20, 30]
    assert len(runs.list()) == 4


def test_parents_that_wait_for_their_children_make_room_for_them(agent: Agent, database_url: str) -> None:
    durable_agents.launch(database_url, poll=0.05, max_runs=2)
    try:
        child = agent(lambda n: n * 10)
        parent = agent(lambda n: child.start(n).result(timeout=20))
        started = [parent.start(n) for n in range(4)]
        assert [run.result(timeout=20) for run in started] == [0, 10, 20, 30]
    finally:
        durable_agents.shutdown()


def test_async_parents_too(agent: Agent, database_url: str) -> None:
    async def tenfold(n: int) -> int:
        return n * 10

    async def wait(n: int) -> Any:
        return await child.start(n).aresult(timeout=20)

    durable_agents.launch(database_url, poll=0.05, max_runs=1)
    try:
        child = agent(tenfold)
        assert agent(wait).start(3).result(timeout=20) == 30
    finally:
        durable_agents.shutdown()
