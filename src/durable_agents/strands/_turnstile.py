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

from .._core import RUN, Execution
from ._private import ConcurrencyController

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
async def alone(run: Execution, parts: Iterable[Any], check: Callable[[], None]) -> AsyncIterator[None]:
    """Inside, these agents and graphs are used by nobody but this run, which waits for those who came before.

    Agents are locked for others as Strands does it: a call that is none of the run's raises `ConcurrencyException`.
    """
    entered: list[Turnstile] = []
    locked: list[tuple[Agent, Any]] = []
    try:
        for part in sorted(parts, key=id):  # everybody in one order, so that no two wait for each other
            turnstile = _of(part)
            await turnstile.enter(check)
            entered.append(turnstile)
            if isinstance(part, Agent):
                native = part._concurrency
                while not native.try_acquire_lock():
                    check()
                    await asyncio.sleep(_POLL_SECONDS)
                part._concurrency = _Lock(native, run)  # type: ignore[assignment]
                locked.append((part, native))
        yield
    finally:
        for agent, native in locked:
            agent._concurrency = native
            native.release_lock()
        for turnstile in reversed(entered):
            turnstile.leave()


class _Lock:
    """An agent's lock while a run holds it: the run's own calls have one among themselves."""

    def __init__(self, native: Any, run: Execution) -> None:
        self._native, self._run = native, run
        self._inner = ConcurrencyController(native.mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner if RUN.get() is self._run else self._native, name)
