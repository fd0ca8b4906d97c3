"""The smallest integration there is: a runner whose native loop is a Python function. The core is tested with it."""

import asyncio
from collections.abc import Callable
from typing import Any

from durable_agents._core import JSON, RUN, Codec, Execution, Request, Run, Runner


class Steer(Exception):
    """What the framework of these tests steers with: no failure."""


class Plain(Runner):
    """`DurablePlain(fn)`: `fn(input)` runs inside the run, with the steps it calls."""

    framework = "plain"
    signals = (Steer,)
    keeps_events = True

    def __init__(
        self,
        body: Callable[[Any], Any],
        name: str | None = None,
        codec: Codec = JSON,
        structure: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.body, self.structure = body, structure or {}
        self._async = asyncio.iscoroutinefunction(body)
        super().__init__(name or body.__name__, codec, **options)

    def fingerprint(self) -> dict[str, Any]:
        return self.structure

    def is_async(self, execution: Execution) -> bool:
        return self._async

    def drive(self, execution: Execution) -> Any:
        return self.body(self.codec.decode(execution.input))

    async def adrive(self, execution: Execution) -> Any:
        return await self.body(self.codec.decode(execution.input))

    def nested(self, request: Request) -> Any:
        return self.body(self.codec.decode(request.input))

    async def anested(self, request: Request) -> Any:
        return await self.body(self.codec.decode(request.input))

    def _request(self, input: Any, thread: str | None, live: dict[str, Any] | None = None) -> Request:
        return Request(self.codec.encode(input), thread, live, tuple(live or ()))

    def run(
        self,
        input: Any = None,
        *,
        run_id: str | None = None,
        thread: str | None = None,
        live: dict[str, Any] | None = None,
    ) -> Any:
        """`live` are arguments that cannot be recorded; the body finds them with `live()`."""
        return self.call(self._request(input, thread, live), run_id)

    async def arun(self, input: Any = None, *, run_id: str | None = None, thread: str | None = None) -> Any:
        return await self.acall(self._request(input, thread), run_id)

    def start(
        self,
        input: Any = None,
        *,
        run_id: str | None = None,
        thread: str | None = None,
        live: dict[str, Any] | None = None,
    ) -> Run:
        return self.submit(self._request(input, thread, live), run_id)


def live(name: str) -> Any:
    """The live argument of this name, from the caller or from the runner's `restore`."""
    run = RUN.get()
    assert run is not None
    return run.live[name] if run.live else run.restored()[name]
