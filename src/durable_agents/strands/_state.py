"""Agents, graphs and swarms set to what a conversation knows, read out afterwards, and put back as they were.

Strands' own snapshots do it for agents. Its serialised state of graphs leaves out parts of results: that is read here
field by field.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strands import Agent
from strands.handlers.callback_handler import null_callback_handler

from .._core import Codec
from ._private import (
    SNAPSHOT_SCHEMA_VERSION,
    EventLoopMetrics,
    Graph,
    GraphState,
    InterruptState,
    SharedContext,
    Snapshot,
    Status,
    Swarm,
    SwarmState,
)
from ._sessions import Conversation
from ._shape import Shape
from ._values import totals

_MESSAGES, _METRICS = "messages", "metrics"
_AGENT = (
    "messages", "state", "_interrupt_state", "_model_state", "_system_prompt_content", "event_loop_metrics",
    "callback_handler",
)  # fmt: skip
_GROUP = ("state", "_interrupt_state", "shared_context", "edges", "entry_points")
_NODE = ("execution_status", "result", "execution_time")


def read(shape: Shape, codec: Codec, paused: bool = False) -> Conversation:
    """What is known now.

    Args:
        paused: whether a graph or swarm has stopped to wait, and goes on from where it stands.
    """
    known = Conversation()
    for key, member in shape.agents.items():
        if member.keeps:
            data = dict(member.agent.take_snapshot(preset="session").data)
            known.messages[key] = codec.encode(data.pop(_MESSAGES))
            data[_METRICS] = totals(member.agent.event_loop_metrics)
            known.rest[key] = codec.encode(data)
    for key, group in shape.groups.items():
        known.groups[key] = codec.encode(_read_group(group, paused))
    return known


def _read_group(group: Graph | Swarm, paused: bool) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if isinstance(group, Swarm):
        data["shared"] = group.shared_context.context
    if paused:
        data["state"] = dict(vars(group.state))
        data["interrupts"] = group._interrupt_state.to_dict()
        data["nodes"] = {
            node_id: {name: getattr(node, name) for name in _NODE if hasattr(node, name)}
            for node_id, node in group.nodes.items()
        }
    return data


def write(shape: Shape, codec: Codec, known: Conversation) -> None:
    """Set everything to what is known."""
    for key, member in shape.agents.items():
        if key in known.rest:
            _write_agent(member.agent, codec.decode({**known.rest[key], _MESSAGES: known.messages[key]}))
    for key, group in shape.groups.items():
        _write_group(group, codec.decode(known.groups.get(key, {})))


def _write_agent(agent: Agent, data: dict[str, Any]) -> None:
    agent.event_loop_metrics = data.pop(_METRICS)
    agent.load_snapshot(Snapshot("agent", SNAPSHOT_SCHEMA_VERSION, data, {}))


def _write_group(group: Graph | Swarm, data: dict[str, Any]) -> None:
    group._interrupt_state = (
        InterruptState.from_dict(data["interrupts"]) if "interrupts" in data else InterruptState()
    )
    for node_id, values in data.get("nodes", {}).items():
        for name, value in values.items():
            setattr(group.nodes[node_id], name, value)
    if isinstance(group, Swarm):
        group.state = SwarmState(**data["state"]) if "state" in data else SwarmState(None, "", Status.PENDING)
        group.shared_context = group.state.shared_context if "state" in data else SharedContext()
        group.shared_context.context = data.get("shared", {})
    else:
        group.state = GraphState(**data["state"]) if "state" in data else GraphState()
        # Natively sets, whose order is that of hashes and differs between processes; they are only gone through.
        rank = {node_id: number for number, node_id in enumerate(group.nodes)}
        group.edges = sorted(  # type: ignore[assignment]
            group.edges, key=lambda edge: (rank[edge.from_node.node_id], rank[edge.to_node.node_id])
        )
        group.entry_points = sorted(  # type: ignore[assignment]
            group.entry_points, key=lambda node: rank[node.node_id]
        )


@contextmanager
def borrowed(shape: Shape, muted: bool = False) -> Iterator[None]:
    """Everything is put back afterwards as it was before: a run leaves no trace on the user's objects.

    Args:
        muted: whether no callback may be called.
    """
    objects: list[tuple[Any, tuple[str, ...]]] = [(member.agent, _AGENT) for member in shape.agents.values()]
    for group in shape.groups.values():
        objects.append((group, _GROUP))
        objects += [(node, _NODE) for node in group.nodes.values()]
    held = [(each, {n: getattr(each, n) for n in names if hasattr(each, n)}) for each, names in objects]
    managers = [(member.agent, _manager_state(member.agent)) for member in shape.agents.values()]
    try:
        for member in shape.agents.values():
            member.agent.event_loop_metrics = EventLoopMetrics()
            if muted:
                member.agent.callback_handler = null_callback_handler
        yield
    finally:
        for agent, state in managers:
            agent.conversation_manager.restore_from_session(state)
        for each, values in held:
            for name, value in values.items():
                setattr(each, name, value)


def _manager_state(agent: Agent) -> dict[str, Any]:
    return copy.deepcopy(agent.conversation_manager.get_state())
