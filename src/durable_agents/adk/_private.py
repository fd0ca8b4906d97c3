"""Every private name of Google ADK that this package touches, in one place, checked at import.

Read from google-adk 2.13.0. A version in which one of them is gone or has other parameters fails here, at import, and
not in the middle of somebody's refund.
"""

import inspect
from collections.abc import Callable
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.flows.llm_flows.base_llm_flow import BaseLlmFlow
from google.adk.flows.llm_flows.extensions import _code_execution
from google.adk.flows.llm_flows.tools import _batch_executor, _caller
from google.adk.platform import uuid as _platform_uuid
from google.adk.runners import Runner
from google.adk.sessions._session_util import extract_state_delta
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.tools._node_tool import NodeTool
from google.adk.tools.agent_tool import AgentTool
from google.adk.utils._schema_utils import schema_to_json_schema
from google.adk.utils._sync_runner import _invoke_callable as invoke_callable
from google.adk.workflow._function_node import FunctionNode
from google.adk.workflow._node_runner import NodeRunner
from google.adk.workflow._tool_node import _ToolNode as ToolNode
from google.adk.workflow._workflow import Workflow

from .._core.errors import ConfigurationError

__all__ = [
    "AgentTool",
    "BaseAgent",
    "BaseLlmFlow",
    "FunctionNode",
    "LlmEventSummarizer",
    "NodeRunner",
    "NodeTool",
    "ToolNode",
    "Workflow",
    "batch_executor",
    "caller",
    "code_execution",
    "extract_state_delta",
    "id_provider",
    "invoke_callable",
    "schema_to_json_schema",
]

caller: Any = _caller
"""The module whose `_call_tool_async` runs a tool: behind the before-callbacks and the confirmation gate."""

batch_executor: Any = _batch_executor
"""The module whose `_execute_single_prepared_call_async` runs one of a model's tool calls, in a task of its own."""

code_execution: Any = _code_execution
"""The module whose `asyncio.to_thread` runs a code executor, and nothing else."""

id_provider: Any = _platform_uuid._id_provider_context_var
"""The context variable with the function that makes ids. The public setter cannot put back what was there before."""

_PARAMETERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "BaseAgent.run_async": (BaseAgent.run_async, ("self", "parent_context")),
    "NodeRunner.run": (NodeRunner.run, ("self", "node_input", "resume_inputs")),
    "FunctionNode._run_impl": (FunctionNode._run_impl, ("self", "ctx", "node_input")),
    "_ToolNode._run_tool_with_plugin_callbacks": (
        ToolNode._run_tool_with_plugin_callbacks, ("self", "ctx", "args")),
    "BaseLlmFlow._get_llm": (BaseLlmFlow._get_llm, ("self", "invocation_context")),
    "LlmEventSummarizer.maybe_summarize_events": (LlmEventSummarizer.maybe_summarize_events, ("self", "events")),
    "tools._caller._call_tool_async": (caller._call_tool_async, ("tool", "args", "tool_context")),
    "tools._batch_executor._execute_single_prepared_call_async": (
        batch_executor._execute_single_prepared_call_async, ("invocation_context", "prepared_call", "agent")),
    "_sync_runner._invoke_callable": (invoke_callable, ("target", "kwargs", "unwrapped")),
    "InvocationContext._enqueue_event": (InvocationContext._enqueue_event, ("self", "event")),
    "BaseSessionService._apply_temp_state": (BaseSessionService._apply_temp_state, ("self", "session", "event")),
    "BaseSessionService._trim_temp_delta_state": (BaseSessionService._trim_temp_delta_state, ("self", "event")),
    "_schema_utils.schema_to_json_schema": (schema_to_json_schema, ("schema",)),
    "_session_util.extract_state_delta": (extract_state_delta, ("state",)),
    "Runner.run_async": (
        Runner.run_async,
        ("self", "user_id", "session_id", "invocation_id", "new_message", "state_delta", "run_config",
         "yield_user_message", "abort_signal")),
    "Runner.run": (Runner.run, ("self", "user_id", "session_id", "new_message", "state_delta", "run_config")),
}  # fmt: skip

_ATTRIBUTES: dict[str, tuple[type, tuple[str, ...]]] = {
    "LlmEventSummarizer": (LlmEventSummarizer, ("maybe_summarize_events",)),
    "FunctionNode": (FunctionNode, ("_func", "_context_param_name", "_type_hints")),
}


if getattr(code_execution, "asyncio", None) is None:
    raise ConfigurationError("_code_execution has no asyncio: it is not the one of google-adk 2.13.0")


def check() -> None:
    """Raise `ConfigurationError` when a private name has other parameters than the version this was read from."""
    for name, (function, expected) in _PARAMETERS.items():
        found = tuple(inspect.signature(function).parameters)
        if found[: len(expected)] != expected:
            raise _other(f"{name}{found}")
    for name, (cls, attributes) in _ATTRIBUTES.items():
        known = {*dir(cls), *getattr(cls, "__private_attributes__", {})}
        if missing := [attribute for attribute in attributes if attribute not in known]:
            raise _other(f"{name} without {', '.join(missing)}")


def _other(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is not the one of google-adk 2.13.0 that this was written for; "
        f"install the version that durable-runners[adk] asks for"
    )


check()
