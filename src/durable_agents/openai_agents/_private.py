"""Every private name of the OpenAI Agents SDK that this package touches, in one place, checked at import.

Read from openai-agents 0.24.0. A version in which one of them is gone or has other parameters fails here, at import,
and not in the middle of somebody's refund.
"""

import inspect
from collections.abc import Callable
from typing import Any

from agents import run as _run
from agents import tool as _tool
from agents.result import RunResult, RunResultStreaming
from agents.run import AgentRunner
from agents.run_context import RunContextWrapper
from agents.run_internal import guardrails as _guardrails
from agents.run_internal import run_loop as _run_loop
from agents.run_internal import session_persistence as _session_persistence
from agents.run_internal import tool_execution as _tool_execution
from agents.run_internal import turn_resolution as _turn_resolution
from agents.run_internal.run_steps import QueueCompleteSentinel
from agents.run_state import RunState
from agents.tool import FunctionTool, maybe_invoke_function_tool_failure_error_function

from .._core.errors import ConfigurationError

__all__ = [
    "AgentRunner",
    "QueueCompleteSentinel",
    "ToolOutcome",
    "guardrails",
    "handled_failure",
    "run",
    "run_loop",
    "session_modules",
    "session_persistence",
    "tool",
    "tool_execution",
    "turn_resolution",
]

tool: Any = _tool
"""The module whose `asyncio.to_thread` runs the function of a sync tool."""

run: Any = _run
"""The module whose `start_streaming` drives a streamed run."""

run_loop: Any = _run_loop
"""The module that asks the model: `get_model`, `maybe_filter_model_input`, `get_response_with_retry`,
`stream_response_with_retry`, `get_handoffs`, `get_all_tools`."""

turn_resolution: Any = _turn_resolution
"""The module that executes handoffs; it asks `get_handoffs` again when a run goes on after an approval."""

tool_execution: Any = _tool_execution
"""The module that calls `_invoke_function_tool_with_metadata`: a tool with its timeout and failure handling."""

guardrails: Any = _guardrails
"""The module that calls `run_single_input_guardrail` and `run_single_output_guardrail`."""

session_persistence: Any = _session_persistence
"""The module all of whose reads and writes of sessions go through `_session_get_items`, `_session_add_items` and
`_session_pop_item`."""

session_modules: tuple[Any, ...] = (_session_persistence, _run, _run_loop)
"""The modules that call `_session_get_items`."""

ToolOutcome: Any = _tool._FunctionToolInvocationResult
"""What `_invoke_function_tool_with_metadata` returns: `output`, and whether the SDK itself made it, as an error."""

handled_failure = maybe_invoke_function_tool_failure_error_function
"""A tool's own failure handling: what the model gets to hear of an error, or None when it is raised."""

_PARAMETERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "agents.run.start_streaming": (run.start_streaming, (
        "starting_input", "streamed_result", "starting_agent", "max_turns", "hooks", "context_wrapper")),
    "agents.run.AgentRunner.run": (AgentRunner.run, ("self", "starting_agent", "input", "kwargs")),
    "agents.run.AgentRunner.run_streamed": (
        AgentRunner.run_streamed, ("self", "starting_agent", "input", "kwargs")),
    "run_loop.get_model": (run_loop.get_model, ("agent", "run_config")),
    "run_loop.maybe_filter_model_input": (run_loop.maybe_filter_model_input, (
        "agent", "run_config", "context_wrapper", "input_items", "system_instructions")),
    "run_loop.get_all_tools": (run_loop.get_all_tools, ("agent", "context_wrapper")),
    "run_loop.get_handoffs": (run_loop.get_handoffs, ("agent", "context_wrapper")),
    "turn_resolution.get_handoffs": (turn_resolution.get_handoffs, ("agent", "context_wrapper")),
    "run_loop.get_response_with_retry": (
        run_loop.get_response_with_retry, ("get_response", "rewind", "retry_settings", "get_retry_advice")),
    "run_loop.stream_response_with_retry": (
        run_loop.stream_response_with_retry, (
            "get_stream", "rewind", "retry_settings", "get_retry_advice", "previous_response_id", "conversation_id",
            "timeout", "failed_retry_attempts_out")),
    "tool_execution._invoke_function_tool_with_metadata": (
        tool_execution._invoke_function_tool_with_metadata, ("function_tool", "context", "arguments")),
    "tool.maybe_invoke_function_tool_failure_error_function": (
        handled_failure, ("function_tool", "context", "error")),
    "tool._FunctionToolInvocationResult": (ToolOutcome, ("output", "is_sdk_generated_error")),
    "guardrails.run_single_input_guardrail": (
        guardrails.run_single_input_guardrail, ("agent", "guardrail", "input", "context")),
    "guardrails.run_single_output_guardrail": (
        guardrails.run_single_output_guardrail, ("guardrail", "agent", "agent_output", "context")),
    "session_persistence._session_get_items": (
        session_persistence._session_get_items, ("session", "limit", "wrapper", "capture_compaction_generation")),
    "session_persistence._session_add_items": (
        session_persistence._session_add_items, ("session", "items", "wrapper")),
    "session_persistence._session_pop_item": (session_persistence._session_pop_item, ("session", "wrapper")),
    "RunState.from_json": (RunState.from_json, (
        "initial_agent", "state_json", "context_override", "context_deserializer", "strict_context")),
    "RunState.to_json": (RunState.to_json, ("self", "context_serializer")),
    "RunState._find_nested_approval_state": (
        RunState._find_nested_approval_state, ("self", "approval_item")),
    "RunResultStreaming.cancel": (RunResultStreaming.cancel, ("self", "mode")),
    "RunContextWrapper.get_approval_status": (
        RunContextWrapper.get_approval_status, ("self", "tool_name", "call_id")),
}  # fmt: skip

_FIELDS: dict[type, tuple[str, ...]] = {
    RunResult: (
        "_last_agent", "_last_processed_response", "_tool_use_tracker_snapshot", "_current_turn_persisted_item_count",
        "_current_turn", "_model_input_items", "_original_input", "_conversation_id", "_previous_response_id",
        "_auto_previous_response_id", "_replay_from_model_input_items", "_starting_agent_for_state",
        "_current_step_for_state", "_reasoning_item_id_policy", "_generated_prompt_cache_key",
        "_nested_history_owned_session_item_refs"),
    RunState: (
        "_current_agent", "_context", "_starting_agent", "_original_input", "_generated_items", "_session_items",
        "_model_responses", "_last_processed_response", "_current_turn", "_current_turn_persisted_item_count",
        "_max_turns", "_current_step", "_input_guardrail_results", "_output_guardrail_results",
        "_tool_input_guardrail_results", "_tool_output_guardrail_results"),
    RunResultStreaming: ("_cancel_mode", "_event_queue", "_stored_exception", "is_complete"),
    FunctionTool: ("_is_agent_tool", "_agent_instance", "output_json_schema"),
}  # fmt: skip

_VERSION = "openai-agents 0.24.0"


def check() -> None:
    """Raise `ConfigurationError` when a private name is not as in the version this was read from."""
    for name, (function, expected) in _PARAMETERS.items():
        found = tuple(inspect.signature(function).parameters)
        if found[: len(expected)] != expected:
            raise ConfigurationError(_unknown(f"{name}{found}"))
    for cls, names in _FIELDS.items():
        known: set[str] = set(getattr(cls, "__dataclass_fields__", ()))
        if gone := [name for name in names if name not in known]:
            raise ConfigurationError(_unknown(f"{cls.__qualname__} has no {', '.join(gone)}: it"))


def _unknown(what: str) -> str:
    return (
        f"{what} is not the one of {_VERSION} that this was written for; "
        f"install the version that durable-runners[openai-agents] asks for"
    )


if getattr(tool, "asyncio", None) is None:
    raise ConfigurationError(_unknown("agents.tool has no asyncio: it"))

check()
