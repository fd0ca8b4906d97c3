"""A stream verb of a run that is over: its events again where the result consists of them, else an error that tells."""

from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest

from durable_agents._core import Execution, step
from durable_agents.errors import NotSupported
from plain import Plain


class Streaming(Plain):
    """Yields what its body returns, one by one."""

    streams_results = True

    def events(self, execution: Execution) -> Generator[Any, None, Any]:
        result = self.drive(execution)
        yield from result
        return result

    async def aevents(self, execution: Execution) -> AsyncGenerator[Any, None]:
        execution.memory["result"] = self.drive(execution)
        for event in execution.memory["result"]:
            yield event

    def stream(self, run_id: str) -> list[Any]:
        return list(self.stream_call(self._request(None, None), run_id, self.events))

    async def astream(self, run_id: str) -> list[Any]:
        events = self.astream_call(
            self._request(None, None), run_id, self.aevents, lambda run: run.memory["result"]
        )
        return [event async for event in events]


class Once(Streaming):
    """Its results are not what it yields."""

    streams_results = False


def acting(done: list[int]) -> Any:
    def body(_: None) -> list[int]:
        return [step("tool", "act", lambda: done.append(1) or len(done)), 7]

    return body


def test_a_run_that_is_over_yields_its_events_again(launched: str) -> None:
    done: list[int] = []
    app = Streaming(acting(done), "again")
    assert app.stream("r") == app.stream("r") == [1, 7]
    assert done == [1]


async def test_in_an_event_loop(launched: str) -> None:
    done: list[int] = []
    app = Streaming(acting(done), "again_async")
    assert await app.astream("r") == await app.astream("r") == [1, 7]
    assert done == [1]


def test_where_the_result_is_something_else_it_is_said_what_to_use(launched: str) -> None:
    app = Once(acting([]), "once")
    app.stream("r")
    with pytest.raises(NotSupported, match="result"):
        app.stream("r")


def test_pauses_of_a_run_that_does_not_exist(launched: str) -> None:
    assert Streaming(acting([]), "unknown").pauses_of("nobody") == []
