"""The smallest integration there is: a runner whose native loop is a Python function. The core is tested with it."""

import asyncio
from collections.abc import Callable
from typing import Any

from durable_agents._core import JSON, Codec, Execution, Request, Run, Runner


class Steer(Exception):
    """What the framework of these tests steers with: no failure."""


class Plain(Runner):
    """`DurablePlain(fn)`: `fn(input)` runs inside the run, with the steps it calls."""

    framework = "plain"
    signals = (Steer,)

    def __init__(self, body: Callable[[Any], Any], name: str | None = None, codec: Codec = JSON) -> None:
        self.body = body
        self._async = asyncio.iscoroutinefunction(body)
        super().__init__(name or body.__name__, codec)

    def is_async(self, execution: Execution) -> bool:
        return self._async

    def drive(self, execution: Execution) -> Any:
        return self.body(self.codec.decode(execution.input))

    async def adrive(self, execution: Execution) -> Any:
        return await self.body(self.codec.decode(execution.input))

    def _request(self, input: Any, thread: str | None) -> Request:
        return Request(self.codec.encode(input), thread)

    def run(self, input: Any = None, *, run_id: str | None = None, thread: str | None = None) -> Any:
        return self.call(self._request(input, thread), run_id)

    async def arun(self, input: Any = None, *, run_id: str | None = None, thread: str | None = None) -> Any:
        return await self.acall(self._request(input, thread), run_id)

    def start(self, input: Any = None, *, run_id: str | None = None, thread: str | None = None) -> Run:
        return self.submit(self._request(input, thread), run_id)
