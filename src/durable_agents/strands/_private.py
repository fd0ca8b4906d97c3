"""Every private name of Strands that this package touches, in one place, checked at import.

Read from strands-agents 1.62.0. A version in which one of them is gone or has other parameters fails here, at import,
and not in the middle of somebody's refund.
"""

import inspect
from collections.abc import Callable
from typing import Any

from strands import Agent
from strands._async import run_async
from strands.agent import agent as _agent_module
from strands.agent._agent_as_tool import _AgentAsTool as AgentAsTool
from strands.agent._concurrency import _ConcurrencyController as ConcurrencyController
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.agent.conversation_manager import summarizing_conversation_manager as summarizing
from strands.event_loop import _retry
from strands.interrupt import Interrupt, InterruptException
from strands.interrupt import _InterruptState as InterruptState
from strands.multiagent.base import MultiAgentResult, NodeResult, Status
from strands.multiagent.graph import Graph, GraphNode, GraphResult, GraphState
from strands.multiagent.swarm import SharedContext, Swarm, SwarmNode, SwarmResult, SwarmState
from strands.telemetry.metrics import AgentInvocation, EventLoopCycleMetric, EventLoopMetrics, ToolMetrics
from strands.types import content
from strands.types._events import ModelStopReason, ToolInterruptEvent, ToolResultEvent, ToolStreamEvent
from strands.types._snapshot import SNAPSHOT_SCHEMA_VERSION, Snapshot
from strands.types.json_dict import JSONSerializableDict

from .._core.errors import ConfigurationError

retry: Any = _retry
"""The module whose `asyncio.sleep` waits between two tries of a model."""

generate_summary: Any = vars(summarizing)["generate_summary"]
"""Asks a model for a summary, with whatever stands in for the model."""

__all__ = [
    "SNAPSHOT_SCHEMA_VERSION",
    "AgentAsTool",
    "AgentInvocation",
    "ConcurrencyController",
    "EventLoopCycleMetric",
    "EventLoopMetrics",
    "Graph",
    "GraphNode",
    "GraphResult",
    "GraphState",
    "Interrupt",
    "InterruptException",
    "InterruptState",
    "JSONSerializableDict",
    "ModelStopReason",
    "MultiAgentResult",
    "NodeResult",
    "SharedContext",
    "Snapshot",
    "Status",
    "SummarizingConversationManager",
    "Swarm",
    "SwarmNode",
    "SwarmResult",
    "SwarmState",
    "ToolInterruptEvent",
    "ToolMetrics",
    "ToolResultEvent",
    "ToolStreamEvent",
    "content",
    "generate_summary",
    "retry",
    "run_async",
    "summarizing",
]

_PARAMETERS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "strands._async.run_async": (run_async, ("async_func",)),
    "Agent.stream_async": (Agent.stream_async, (
        "self", "prompt", "invocation_state", "structured_output_model", "structured_output_prompt",
        "idempotency_token", "limits", "cancel_signal", "kwargs")),
    "_AgentAsTool.stream": (AgentAsTool.stream, ("self", "tool_use", "invocation_state", "kwargs")),
    "_AgentAsTool.agent": (vars(AgentAsTool)["agent"].fget, ("self",)),
    "_ConcurrencyController.try_acquire_lock": (ConcurrencyController.try_acquire_lock, ("self",)),
    "_ConcurrencyController.release_lock": (ConcurrencyController.release_lock, ("self",)),
    "_InterruptState.from_dict": (InterruptState.from_dict, ("data",)),
    "_InterruptState.to_dict": (InterruptState.to_dict, ("self",)),
    "Graph._find_newly_ready_nodes": (Graph._find_newly_ready_nodes, ("self", "completed_batch")),
    "Graph.stream_async": (Graph.stream_async, ("self", "task", "invocation_state", "kwargs")),
    "Swarm.stream_async": (Swarm.stream_async, ("self", "task", "invocation_state", "kwargs")),
    "SummarizingConversationManager._generate_summary_with_model": (
        SummarizingConversationManager._generate_summary_with_model, ("self", "messages", "agent")),
    "generate_summary": (
        vars(summarizing)["generate_summary"], ("messages_to_summarize", "model", "system_prompt")),
    "JSONSerializableDict.set": (JSONSerializableDict.set, ("self", "key", "value")),
    "JSONSerializableDict.delete": (JSONSerializableDict.delete, ("self", "key")),
    "content._generate_tracking_id": (content._generate_tracking_id, ()),
}  # fmt: skip

_ATTRIBUTES = (
    "_interrupt_state", "_model_state", "_concurrency", "_deferred_cancel", "_cancel_message", "_session_manager",
    "_checkpointing", "_background_tasks", "_context_manager", "_default_structured_output_model",
    "_system_prompt_content",
)  # fmt: skip
"""Attributes of an agent, which it makes in `__init__`."""


def check() -> None:
    """Raise `ConfigurationError` when a private name is another than in the version this was read from."""
    advice = "install the version that durable-runners[strands] asks for"
    for name, (function, expected) in _PARAMETERS.items():
        found = tuple(inspect.signature(function).parameters)
        if found[: len(expected)] != expected:
            raise ConfigurationError(
                f"{name}{found} is not the one of strands-agents 1.62.0 that this was written for; {advice}"
            )
    source = inspect.getsource(_agent_module)
    if missing := [name for name in _ATTRIBUTES if f"self.{name}" not in source]:
        raise ConfigurationError(
            f"an agent has no {', '.join(missing)}, as it has in strands-agents 1.62.0; {advice}"
        )
    if not hasattr(retry, "asyncio"):
        raise ConfigurationError(
            f"strands.event_loop._retry has no asyncio, as in strands-agents 1.62.0; {advice}"
        )


check()
