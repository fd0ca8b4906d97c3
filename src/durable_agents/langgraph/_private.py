"""Every private name of LangGraph and LangChain that this package touches, in one place, checked at import.

Read from langgraph 1.2.24, langgraph-checkpoint 4.3.2 and langchain-core 1.8.3. A version in which one of them is gone
or has other parameters fails here, at import, and not in the middle of somebody's refund.
"""

import inspect
from collections.abc import Callable
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.runnables import base as _runnables_base
from langchain_core.runnables import config as _runnables_config
from langchain_core.runnables import fallbacks as _runnables_fallbacks
from langchain_core.tools import BaseTool
from langchain_core.tools import base as _tools_base
from langgraph._internal import _runnable as _langgraph_runnable
from langgraph._internal._config import ensure_config, patch_configurable
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_STRICT_RESUME,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    INTERRUPT,
    NO_WRITES,
    NS_END,
    NULL_TASK_ID,
    PUSH,
    RETURN,
    TASKS,
)
from langgraph._internal._serde import _collect_from_type as collect_from_type
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.pregel import Pregel, _loop, _runner
from langgraph.pregel._algo import sanitize_untracked_values_in_send, task_path_str
from langgraph.pregel._checkpoint import channels_from_checkpoint
from langgraph.pregel._io import read_channels
from langgraph.pregel._loop import PregelLoop
from langgraph.pregel._messages import ensure_message_ids
from langgraph.pregel._task_status import CONTROL_WRITES
from langgraph.pregel._utils import is_xxh3_128_hexdigest
from langgraph.types import _interrupt_id as interrupt_id

from .._core.errors import ConfigurationError

__all__ = [
    "CONF",
    "CONFIG_KEY_CALL",
    "CONFIG_KEY_CHECKPOINT_ID",
    "CONFIG_KEY_CHECKPOINT_MAP",
    "CONFIG_KEY_CHECKPOINT_NS",
    "CONFIG_KEY_DURABILITY",
    "CONFIG_KEY_RESUMING",
    "CONFIG_KEY_RUNTIME",
    "CONFIG_KEY_SCRATCHPAD",
    "CONFIG_KEY_STRICT_RESUME",
    "CONFIG_KEY_TASK_ID",
    "CONFIG_KEY_THREAD_ID",
    "CONTROL_WRITES",
    "GRAPH_ATTRIBUTES",
    "INTERRUPT",
    "NO_WRITES",
    "NS_END",
    "NULL_TASK_ID",
    "PUSH",
    "RETURN",
    "TASKS",
    "BaseChatModel",
    "BaseTool",
    "PregelLoop",
    "UntrackedValue",
    "channels_from_checkpoint",
    "collect_from_type",
    "ensure_config",
    "ensure_message_ids",
    "interrupt_id",
    "is_xxh3_128_hexdigest",
    "langchain_config",
    "langchain_modules",
    "langgraph_runnable",
    "patch_configurable",
    "pregel_loop",
    "pregel_runner",
    "read_channels",
    "sanitize_untracked_values_in_send",
    "task_path_str",
]

pregel_loop: Any = _loop
"""The module whose `create_checkpoint` makes every checkpoint of a loop."""

pregel_runner: Any = _runner
"""The module whose `run_with_retry` and `arun_with_retry` Pregel calls for every task."""

langgraph_runnable: Any = _langgraph_runnable
"""The module whose `asyncio.create_task` runs a node's coroutine in a task of its own, and awaits it at once."""

langchain_config: Any = _runnables_config
"""The module whose `run_in_executor` gives a sync body to a thread, and awaits it at once."""

langchain_modules: tuple[Any, ...] = (_runnables_base, _runnables_fallbacks, _tools_base)
"""The modules that call `coro_with_context`, which does the same."""

_PARAMETERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "langgraph.pregel._runner.run_with_retry": (
        pregel_runner.run_with_retry, ("task", "retry_policy", "configurable")),
    "langgraph.pregel._runner.arun_with_retry": (
        pregel_runner.arun_with_retry, ("task", "retry_policy", "stream", "configurable")),
    "PregelLoop.__init__": (PregelLoop.__init__, ("self", "input", "stream", "config")),
    "PregelLoop.put_writes": (PregelLoop.put_writes, ("self", "task_id", "writes")),
    "PregelLoop._put_checkpoint": (PregelLoop._put_checkpoint, ("self", "metadata")),
    "langgraph.pregel._loop.create_checkpoint": (
        pregel_loop.create_checkpoint, ("checkpoint", "channels", "step", "id")),
    "BaseChatModel._generate_with_cache": (
        BaseChatModel._generate_with_cache, ("self", "messages", "stop", "run_manager", "kwargs")),
    "BaseChatModel._agenerate_with_cache": (
        BaseChatModel._agenerate_with_cache, ("self", "messages", "stop", "run_manager", "kwargs")),
    "BaseChatModel.agenerate": (BaseChatModel.agenerate, ("self", "messages")),
    "BaseChatModel._iter_v2_events": (
        BaseChatModel._iter_v2_events, ("self", "messages", "run_manager", "stream", "stop", "kwargs")),
    "BaseChatModel._aiter_v2_events": (
        BaseChatModel._aiter_v2_events, ("self", "messages", "run_manager", "stream", "stop", "kwargs")),
    "BaseChatModel._replay_v2_events_for_cache_hit": (
        BaseChatModel._replay_v2_events_for_cache_hit, ("self", "generations", "run_manager", "kwargs")),
    "BaseChatModel._areplay_v2_events_for_cache_hit": (
        BaseChatModel._areplay_v2_events_for_cache_hit, ("self", "generations", "run_manager", "kwargs")),
    "BaseTool._filter_injected_args": (BaseTool._filter_injected_args, ("self", "tool_input")),
    "langgraph._internal._serde._collect_from_type": (collect_from_type, ("typ", "allowlist", "seen", "seen_ids")),
    **{
        f"{module.__name__}.coro_with_context": (module.coro_with_context, ("coro", "context", "create_task"))
        for module in langchain_modules
    },
    "langchain_core.runnables.config.run_in_executor": (
        _runnables_config.run_in_executor, ("executor_or_config", "func", "args", "kwargs")),
    "langgraph.types._interrupt_id": (interrupt_id, ("ns", "answered")),
    "langgraph.pregel._io.read_channels": (read_channels, ("channels", "select")),
    "langgraph.pregel._checkpoint.channels_from_checkpoint": (channels_from_checkpoint, ("specs", "checkpoint")),
}  # fmt: skip


if getattr(langgraph_runnable, "asyncio", None) is None:
    raise ConfigurationError(
        "langgraph._internal._runnable has no asyncio: it is not the one of langgraph 1.2.24"
    )


GRAPH_ATTRIBUTES = ("_output_mapper", "_state_mapper")
"""What `Pregel.copy` leaves behind: how `version="v2"` gives states of a class."""

if missing := [name for name in GRAPH_ATTRIBUTES if not hasattr(Pregel, name)]:
    raise ConfigurationError(
        f"langgraph.pregel.Pregel has no {', '.join(missing)}: it is not the one of langgraph 1.2.24"
    )


def check() -> None:
    """Raise `ConfigurationError` when a private name has other parameters than the version this was read from."""
    for name, (function, expected) in _PARAMETERS.items():
        found = tuple(inspect.signature(function).parameters)
        if found[: len(expected)] != expected:
            raise ConfigurationError(
                f"{name}{found} is not the one of langgraph 1.2.24 and langchain-core 1.8.3 that this was written for; "
                f"install the versions that durable-runners[langgraph] asks for"
            )


check()
