"""Strands' objects as JSON: results, metrics, interrupts, the nodes of a graph or swarm."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from strands.agent.agent_result import AgentResult
from strands.experimental.checkpoint import Checkpoint

from .._core import JsonCodec, Usage, failure
from ._private import (
    AgentInvocation,
    EventLoopCycleMetric,
    EventLoopMetrics,
    GraphNode,
    GraphResult,
    Interrupt,
    MultiAgentResult,
    NodeResult,
    SharedContext,
    Status,
    SwarmNode,
    SwarmResult,
    ToolMetrics,
)

_TYPES: tuple[type, ...] = (
    AgentResult, AgentInvocation, Checkpoint, EventLoopCycleMetric, GraphResult, Interrupt, MultiAgentResult,
    SharedContext, Status, SwarmResult, ToolMetrics,
)  # fmt: skip

_NOT_KEPT = ("traces",)
"""Of metrics: they hold every message once more. What ran when is told by the run's steps."""


def strands_codec(types: Iterable[type], nodes: Mapping[str, Any]) -> JsonCodec:
    """The codec of one runner.

    Args:
        types: what the user allowed, and what the agents themselves name for structured output.
        nodes: the nodes of graphs and swarms, by a name that stays; a stored node is that object again.
    """
    names = {id(node): name for name, node in nodes.items()}

    def encode_node(node: Any) -> str:
        return names[id(node)]

    hooks: dict[type, Any] = {
        EventLoopMetrics: (_encode_metrics, _decode_metrics),
        NodeResult: (_encode_node_result, _decode_node_result),
        GraphNode: (encode_node, nodes.__getitem__),
        SwarmNode: (encode_node, nodes.__getitem__),
    }
    return JsonCodec((*_TYPES, *types), hooks)


def _fields(value: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in but}


def _encode_metrics(metrics: EventLoopMetrics) -> dict[str, Any]:
    return _fields(metrics, _NOT_KEPT)


def _decode_metrics(data: dict[str, Any]) -> EventLoopMetrics:
    return EventLoopMetrics(**data)


def _encode_node_result(node: NodeResult) -> dict[str, Any]:
    fields = _fields(node)
    if isinstance(node.result, Exception):
        fields["result"] = {"failure": failure.encode(node.result)}
    return fields


def _decode_node_result(data: dict[str, Any]) -> NodeResult:
    if isinstance(data["result"], dict):
        data["result"] = failure.decode(data["result"]["failure"])
    return NodeResult(**data)


def totals(metrics: EventLoopMetrics) -> EventLoopMetrics:
    """What a conversation keeps of its metrics: sums and counts. The rest would grow with every turn."""
    return EventLoopMetrics(
        cycle_count=metrics.cycle_count,
        tool_metrics=metrics.tool_metrics,
        accumulated_usage=metrics.accumulated_usage,
        accumulated_metrics=metrics.accumulated_metrics,
    )


def usage_of(model: str, reported: Any) -> Usage | None:
    """Tokens of a model call, from the usage its stream reported."""
    if not reported:
        return None
    return Usage(model, int(reported.get("inputTokens", 0)), int(reported.get("outputTokens", 0)))


def model_id(model: Any) -> str:
    """The provider's name of a model, or its class's."""
    try:
        config = model.get_config()
    except Exception:  # natively nobody asks for it
        config = None
    found = config.get("model_id") if isinstance(config, dict) else getattr(config, "model_id", None)
    return str(found or type(model).__name__)
