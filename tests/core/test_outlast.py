"""A caller that is cancelled detaches: what it was in the middle of comes to its end, and is not run again."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from core.harness import eventually
from durable_agents import runs
from durable_agents._core import aparts, astep, begin
from durable_agents._core.context import lend
from plain import Plain

Agent = Callable[..., Plain]
pytestmark = pytest.mark.usefixtures("sqlite")


class Tools:
    """Tools that take a while, and what they have done."""

    def __init__(self) -> None:
        self.did: list[str] = []

    async def in_thread(self) -> str:
        def charge() -> str:
            time.sleep(0.3)
            self.did.append("charged")
            return "receipt"

        return await asyncio.to_thread(charge)

    async def in_loop(self) -> str:
        self.did.append("charged")
        await asyncio.sleep(0.3)
        return "receipt"

    async def in_parts(self) -> AsyncGenerator[str, None]:
        yield "receipt"
        self.did.append("charged")
        await asyncio.sleep(0.3)
        yield "receipt 2"

    async def parts(self) -> list[str]:
        call = begin("tool", "charge", ordered=True)
        assert call is not None
        if (record := call.recorded()) is not None:
            served: list[str] = call.value_of(record)
            return served
        taken: list[str] = []

        def take(part: str) -> bool:
            taken.append(part)
            return False

        return [part async for part in aparts(call, self.in_parts(), take, lambda: taken)]


WAYS: dict[str, Callable[[Tools], Any]] = {
    "in a thread": lambda tools: astep("tool", "charge", tools.in_thread),
    "on the loop": lambda tools: astep("tool", "charge", tools.in_loop),
    "part by part": lambda tools: tools.parts(),
}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> Callable[[Tools], Any]:
    return WAYS[request.param]


async def given_up(work: Any, after: float = 0.1) -> float:
    """A caller with a timeout; how long it took."""
    began = time.monotonic()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(work, after)
    return time.monotonic() - began


def ends(run_id: str) -> Any:
    return runs.get(run_id).result(10)


def test_a_tool_is_not_run_again_when_its_caller_gives_up(agent: Agent, way: Callable[[Tools], Any]) -> None:
    tools = Tools()

    async def body(_: None) -> Any:
        return [await way(tools), await astep("tool", "after", lambda: asyncio.sleep(0, "after"))]

    runner = agent(body)

    async def main() -> None:
        assert await given_up(runner.arun(run_id=runner.name)) < 2
        assert tools.did == ["charged"]
        assert len(runs.get(runner.name).steps()) == 1
        await asyncio.sleep(1)

    asyncio.run(main())
    assert ends(runner.name)[1] == "after"
    assert tools.did == ["charged"]


def test_tools_in_tasks_of_the_framework_go_on_as_well(agent: Agent, way: Callable[[Tools], Any]) -> None:
    tools = [Tools(), Tools()]

    async def outer(number: int) -> Any:
        return await astep("tool", "outer", lambda: way(tools[number]), key=str(number))

    async def body(_: None) -> Any:
        return await asyncio.gather(*(asyncio.create_task(outer(number)) for number in (0, 1)))

    runner = agent(body)

    async def main() -> None:
        await given_up(runner.arun(run_id=runner.name))
        await asyncio.sleep(1)

    asyncio.run(main())
    ends(runner.name)
    assert [each.did for each in tools] == [["charged"], ["charged"]]


def test_who_gives_up_does_not_wait_for_long(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable_agents._core.execution._LEAVING_SECONDS", 0.1)
    tools = Tools()

    async def slow() -> str:
        await asyncio.sleep(1)
        return await tools.in_loop()

    async def body(_: None) -> str:
        return await astep("tool", "slow", slow)

    runner = agent(body)

    async def main() -> None:
        assert await given_up(runner.arun(run_id=runner.name)) < 0.8
        assert runs.get(runner.name).status == "running"
        assert tools.did == []
        assert await asyncio.to_thread(ends, runner.name) == "receipt"

    asyncio.run(main())
    assert tools.did == ["charged"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_timeout_inside_of_the_run_ends_the_tool_as_natively(agent: Agent, is_stream: bool) -> None:
    tools = Tools()
    ended: list[str] = []

    async def watched() -> AsyncGenerator[str, None]:
        try:
            yield await tools.in_loop()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def charged() -> str:
        if not is_stream:
            return await astep("tool", "charge", lambda: anext(watched()))
        call = begin("tool", "charge", ordered=True)
        assert call is not None
        return "".join([part async for part in aparts(call, watched(), lambda _: False, lambda: "never")])

    async def hurried() -> str:
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(0.05):
                await charged()
        return "late"

    async def body(_: None) -> str:
        return await asyncio.create_task(lend(hurried()))

    runner = agent(body)
    assert asyncio.run(runner.arun(run_id=runner.name)) == "late"
    assert ended == ["cancelled"]
    time.sleep(0.4)
    assert runs.get(runner.name).steps() == []


def test_a_tool_that_outlives_its_event_loop_is_cut_off_and_runs_again(agent: Agent) -> None:
    """As when the process ends; but the run is not lost."""
    began: list[int] = []

    async def slow() -> str:
        began.append(1)
        await asyncio.sleep(0.3 if len(began) > 1 else 3600)
        return "done"

    async def body(_: None) -> str:
        return await astep("tool", "slow", slow)

    runner = agent(body)

    async def main() -> None:
        task = asyncio.create_task(runner.arun(run_id=runner.name))
        while not began:
            await asyncio.sleep(0.01)
        task.cancel()  # and the loop ends

    asyncio.run(main())
    assert ends(runner.name) == "done"
    assert len(began) == 2


VALUE: ContextVar[str] = ContextVar("value", default="")


def test_what_a_caller_has_set_is_seen_by_its_tools(agent: Agent) -> None:
    async def tool() -> str:
        return VALUE.get()

    async def body(_: None) -> str:
        VALUE.set("mine")
        return await astep("tool", "tool", tool)

    runner = agent(body)
    assert asyncio.run(runner.arun(run_id=runner.name)) == "mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_reaches_the_caller_first(agent: Agent, error: type[BaseException]) -> None:
    calls: list[int] = []

    async def tool() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return "done"

    async def body(_: None) -> str:
        return await astep("tool", "tool", tool)

    runner = agent(body)
    with pytest.raises(error):
        asyncio.run(runner.arun(run_id=runner.name))
    assert asyncio.run(runner.arun(run_id=runner.name)) == "done"
    eventually(lambda: runs.get(runner.name).status == "succeeded")


def test_a_body_that_cancels_itself_says_so_in_its_own_words(agent: Agent) -> None:
    async def tool() -> None:
        raise asyncio.CancelledError("saving was cancelled")

    told: list[str] = []

    async def body(_: None) -> str:
        try:
            await astep("tool", "tool", tool)
        except asyncio.CancelledError as cancelled:
            told.append(str(cancelled))
        return "went on"

    runner = agent(body)
    assert asyncio.run(runner.arun(run_id=runner.name)) == "went on"
    assert told == ["saving was cancelled"]


def test_a_model_that_nobody_waits_for_is_cancelled_as_natively(agent: Agent) -> None:
    calls: list[str] = []

    async def model() -> str:
        calls.append("called")
        try:
            await asyncio.sleep(3600 if len(calls) == 1 else 0)
        except asyncio.CancelledError:
            calls.append("cancelled")
            raise
        return "answer"

    async def body(_: None) -> str:
        return await astep("model", "m", model)

    runner = agent(body)

    async def main() -> None:
        assert await given_up(runner.arun(run_id=runner.name)) < 2

    asyncio.run(main())
    assert ends(runner.name) == "answer"
    assert calls == ["called", "cancelled", "called"]
