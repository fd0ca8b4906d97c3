"""A caller with a timeout detaches: the tool or node that was under way ends, is recorded, and does not run again."""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.workflow import Workflow

from durable_agents import runs
from durable_agents.adk import DurableRunner

from .kit import EFFECTS, agent, in_turn, run, session_of, texts

pytestmark = pytest.mark.usefixtures("engine")

PATIENCE = 0.6
GIVEN_UP: list[float] = []


def left() -> float:
    """Seconds until the caller has given up, and a bit."""
    return max(GIVEN_UP[0] + 0.2 - time.monotonic(), 0)


async def charge() -> str:
    """Charge."""
    EFFECTS.append("charged")
    await asyncio.sleep(left())
    return "receipt"


def charge_blocking() -> str:
    """Charge."""
    EFFECTS.append("charged")
    time.sleep(left())
    return "receipt"


async def charge_in_a_thread() -> str:
    """Charge."""
    return await asyncio.to_thread(charge_blocking)


def after(node_input: Any = None) -> str:
    EFFECTS.append("after")
    return f"after {node_input}"


def calling(tool: Callable[..., Any]) -> dict[str, Any]:
    return {"agent": agent("cashier", in_turn((tool.__name__, {})), [tool])}


def walking(function: Callable[..., Any]) -> dict[str, Any]:
    return {"node": Workflow(name="flow", edges=[("START", function, after)])}


WAYS: dict[str, tuple[Callable[[Any], dict[str, Any]], Callable[..., Any]]] = {
    "async tool": (calling, charge),
    "tool that blocks": (calling, charge_blocking),
    "tool in a thread": (calling, charge_in_a_thread),
    "async node": (walking, charge),
    "node that blocks": (walking, charge_blocking),
    "node in a thread": (walking, charge_in_a_thread),
}


def made(way: str) -> DurableRunner:
    build, body = WAYS[way]
    name = f"r{uuid.uuid4().hex}"
    return DurableRunner(app_name="shop", name=name, auto_create_session=True, **build(body))


@pytest.mark.parametrize("way", list(WAYS))
async def test_what_was_under_way_happens_once_and_the_run_goes_on(way: str) -> None:
    app = made(way)
    GIVEN_UP[:] = [time.monotonic() + PATIENCE]
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(run(app, run_id="r1"), PATIENCE)
    events = await runs.get("r1").aresult(timeout=20)
    assert EFFECTS.count("charged") == 1
    assert runs.get("r1").status == "succeeded"
    if "tool" in way:
        assert texts(events) == ["done"]
    else:
        assert events[-1].output == "after receipt"
        assert EFFECTS.count("after") == 1
    assert await run(app, run_id="r1") == events
    ids = [event.id for event in (await session_of(app)).events]
    assert len(ids) == len(set(ids))
