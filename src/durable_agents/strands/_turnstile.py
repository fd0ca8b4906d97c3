"""One run at a time uses an agent, in the order in which they came, whatever thread or event loop they run in."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from strands import Agent

_LOOK_SECONDS = 0.05
_POLL_SECONDS = 0.01


class Turnstile:
    """Lets one through at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Future[None]] = deque()
        self._taken = False

    def _ask(self) -> "Future[None]":
        future: Future[None] = Future()
        with self._lock:
            if self._taken:
                self._waiting.append(future)
            else:
                self._taken = True
                future.set_result(None)
        return future

    async def enter(self, check: Callable[[], None]) -> None:
        """Wait for one's turn; `check` is asked meanwhile and raises when there is no use in waiting."""
        future = self._ask()
        waiting = asyncio.wrap_future(future)
        try:
            while not future.done():
                await asyncio.wait({waiting}, timeout=_LOOK_SECONDS)
                check()
        except BaseException:
            if not future.cancel():
                self.leave()
            raise

    def leave(self) -> None:
        """Let the next one through."""
        with self._lock:
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
                    return
            self._taken = False


_ALL: "WeakKeyDictionary[Any, Turnstile]" = WeakKeyDictionary()
_ALL_LOCK = threading.Lock()


def _of(part: Any) -> Turnstile:
    with _ALL_LOCK:
        return _ALL.setdefault(part, Turnstile())


@asynccontextmanager
async def alone(parts: Iterable[Any], check: Callable[[], None]) -> AsyncIterator[None]:
    """No other durable run uses these agents and graphs inside, and no other caller is using them at its beginning."""
    entered: list[Turnstile] = []
    try:
        for part in sorted(parts, key=id):  # everybody in one order, so that no two wait for each other
            turnstile = _of(part)
            await turnstile.enter(check)
            entered.append(turnstile)
            if isinstance(part, Agent):
                await _idle(part, check)
        yield
    finally:
        for turnstile in reversed(entered):
            turnstile.leave()


async def _idle(agent: Agent, check: Callable[[], None]) -> None:
    """Wait until nobody talks to the agent without its runner."""
    while not agent._concurrency.try_acquire_lock():
        check()
        await asyncio.sleep(_POLL_SECONDS)
    agent._concurrency.release_lock()
