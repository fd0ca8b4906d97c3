"""A caller that gives up only detaches: the tools it has called come to their end, and are not called again."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from agents import Agent, SQLiteSession, function_tool

from durable_agents import runs

from .kit import durable, then_done

pytestmark = pytest.mark.usefixtures("engine")
SLOW = 0.5


def charging(did: list[str], begun: asyncio.Event) -> dict[str, Any]:
    """A tool that the SDK runs in a thread, and one on the event loop; their effect comes first or last."""
    loop = asyncio.get_running_loop()

    @function_tool
    def in_thread(n: int) -> str:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(SLOW)
        did.append(f"charge {n}")
        return f"receipt {n}"

    @function_tool
    async def in_loop(n: int) -> str:
        did.append(f"charge {n}")
        begun.set()
        await asyncio.sleep(SLOW)
        return f"receipt {n}"

    return {"in_thread": in_thread, "in_loop": in_loop}


def one(name: str, tools: dict[str, Any]) -> Agent[Any]:
    return Agent(name="clerk", model=then_done((name, {"n": 1})), tools=[*tools.values()])


def two(name: str, tools: dict[str, Any]) -> Agent[Any]:
    other = "in_loop" if name == "in_thread" else "in_thread"
    model = then_done((name, {"n": 1}), (name, {"n": 2}), (other, {"n": 3}))
    return Agent(name="clerk", model=model, tools=[*tools.values()])


def nested(name: str, tools: dict[str, Any]) -> Agent[Any]:
    """The tools are called by an agent that is a tool, twice at once."""
    model = then_done(("ask", {"input": "a"}), ("ask", {"input": "b"}))
    return Agent(name="boss", model=model, tools=[one(name, tools).as_tool("ask", "")])


Made = Callable[[str, dict[str, Any]], Agent[Any]]
AGENTS: dict[Made, list[str]] = {
    one: ["charge 1"],
    two: ["charge 1", "charge 2", "charge 3"],
    nested: ["charge 1", "charge 1"],
}


@pytest.mark.parametrize("name", ["in_thread", "in_loop"])
@pytest.mark.parametrize("made", AGENTS, ids=lambda made: made.__name__)
@pytest.mark.parametrize("verb", ["run", "run_streamed"])
@pytest.mark.parametrize("once", [False, True], ids=["", "at_most_once"])
async def test_what_was_called_is_called_once(made: Made, name: str, verb: str, once: bool) -> None:
    did: list[str] = []
    begun = asyncio.Event()
    app = durable(
        made(name, charging(did, begun)), at_most_once={"in_thread", "in_loop"} if once else frozenset()
    )

    async def ask() -> None:
        if verb == "run":
            await app.run("hi", run_id="r1")
            return
        async for _ in app.run_streamed("hi", run_id="r1").stream_events():
            pass

    asking = asyncio.create_task(ask())
    await begun.wait()
    began = time.monotonic()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asking, 0.1)
    assert time.monotonic() - began < 5
    await runs.get("r1").aresult(timeout=20)
    assert runs.get("r1").status == "succeeded"
    assert sorted(did) == AGENTS[made]


async def test_who_leaves_a_stream_while_its_last_words_are_kept_loses_nothing() -> None:
    """The SDK swallows that behind a handler of its turns' end, and its loop returns without a final output."""
    begun = asyncio.Event()

    class Slow(SQLiteSession):
        async def add_items(self, items: list[Any]) -> None:
            await super().add_items(items)
            if items[-1].get("role") == "assistant":
                begun.set()
                await asyncio.sleep(SLOW)

    live: dict[str, Any] = {"session": Slow("s"), "error_handlers": {"max_turns": lambda data: "gave up"}}
    app = durable(one("in_loop", charging([], asyncio.Event())), restore=lambda run: live)
    result = app.run_streamed("hi", run_id="r1", max_turns=1, **live)
    await begun.wait()
    assert result.run_loop_task is not None
    result.run_loop_task.cancel()
    assert (await runs.get("r1").aresult(timeout=20)).final_output == "gave up"
    said = [item.get("role") for item in await live["session"].get_items()]
    assert (said.count("user"), said.count("assistant")) == (1, 1)


async def test_cancel_on_a_stream_stops_the_tools_under_way() -> None:
    """That is no caller that gives up, but the native stop."""
    began: list[str] = []
    begun = asyncio.Event()

    @function_tool
    async def wait_for_ever() -> str:
        began.append("began")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            began.append("cleaned up")
        return "unreachable"

    app = durable(Agent(name="clerk", model=then_done(("wait_for_ever", {})), tools=[wait_for_ever]))
    result = app.run_streamed("hi", run_id="r1")
    await begun.wait()
    result.cancel()
    async for _ in result.stream_events():
        pass
    while runs.get("r1").status == "running":
        await asyncio.sleep(0.01)
    assert runs.get("r1").status == "cancelled"
    assert began == ["began", "cleaned up"]
