"""A sync verb over a native loop that is a coroutine: it runs on the home loop, as a recovered run does."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import durable_agents
from core.harness import crash, eventually
from durable_agents import runs
from durable_agents._core import astep
from durable_agents.errors import ConfigurationError, RunReleased
from plain import Plain

Agent = Callable[..., Plain]


def run_home(app: Plain, input: Any = None, run_id: str | None = None) -> Any:
    return app.call_home(app._request(input, None), run_id)


def test_it_runs_there_and_is_attached_to(agent: Agent, launched: str) -> None:
    threads: list[str] = []

    async def tool() -> str:
        threads.append(threading.current_thread().name)
        return "paid"

    async def body(n: Any) -> Any:
        return await astep("tool", "pay", tool), n

    app = agent(body)
    assert run_home(app, 1, "r") == ("paid", 1)
    crash("r")
    assert run_home(app, 1, "r") == ("paid", 1)
    assert threads == ["durable-agents-loop"]


def test_inside_a_run_it_is_a_part_of_that(agent: Agent, launched: str) -> None:
    async def tool() -> str:
        return "paid"

    async def inner_body(_: Any) -> Any:
        return await astep("tool", "pay", tool)

    inner = agent(inner_body)
    outer = agent(lambda _: run_home(inner))
    assert outer.run(run_id="r") == "paid"
    assert [step.path for step in runs.get("r").steps()] == [f"run:{inner.name}/tool:pay"]


def test_on_an_event_loop_it_says_so(agent: Agent, launched: str) -> None:
    async def body(_: Any) -> None: ...

    async def inside() -> None:
        run_home(agent(body))

    with pytest.raises(ConfigurationError, match="event loop"):
        asyncio.run(inside())


def test_a_shutdown_ends_the_wait(agent: Agent, launched: str) -> None:
    begun, told = threading.Event(), []

    async def body(_: Any) -> None:
        begun.set()
        await asyncio.sleep(30)

    app = agent(body)

    def call() -> None:
        try:
            run_home(app, run_id="r")
        except RunReleased as error:
            told.append(str(error))

    caller = threading.Thread(target=call)
    caller.start()
    assert begun.wait(10)
    durable_agents.shutdown()
    eventually(lambda: told)
    caller.join(10)
