"""A runner called inside a run is a part of it; only `start()` makes a run of its own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

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
