"""Tasks and threads that LangGraph and LangChain start only to wait for them at once.

A scope tells its own calls, whose order repeats, from those of other tasks and threads. For one that is its maker's
only occupation the distinction is wrong: its calls are the maker's. Read from langgraph 1.2.24
(`_internal/_runnable.py`) and langchain-core 1.8.3 (`coro_with_context` in `runnables/utils.py`, `run_in_executor` in
`runnables/config.py`).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from .._core import lend, lend_call
from ._private import langchain_config, langchain_modules, langgraph_runnable


def install() -> None:
    """Put the lending in; outside a durable run it changes nothing."""
    names = {name: getattr(asyncio, name) for name in dir(asyncio) if not name.startswith("__")}
    langgraph_runnable.asyncio = SimpleNamespace(**{**names, "create_task": _create_task})
    langchain_config.asyncio = SimpleNamespace(**{**names, "get_running_loop": _LendingLoop})
    for module in langchain_modules:
        module.coro_with_context = _coro_with_context


def _create_task(work: Any, *, name: str | None = None, context: Any = None) -> Any:
    return asyncio.create_task(lend(work), name=name, context=context)


def _coro_with_context(coro: Any, context: Any, *, create_task: bool = False) -> Any:
    return asyncio.create_task(lend(coro), context=context)


class _LendingLoop:
    """The running loop as `run_in_executor` of LangChain sees it: it awaits what it gives to a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        return self._loop.run_in_executor(executor, lend_call(partial(function, *args)))
