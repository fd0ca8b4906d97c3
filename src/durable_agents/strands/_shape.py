"""What a durable agent consists of: itself, the agents that are its tools, the nodes of a graph or swarm."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from strands import Agent

from .._core import escape
from .._core.errors import ConfigurationError, NotSupported
from ._private import AgentAsTool, Graph, Swarm

_TOOL, _NODE, _SUMMARY = "tool", "node", "summary"


@dataclass(frozen=True, slots=True)
class Member:
    """An agent of the whole.

    Args:
        key: where it is: "" for the agent itself, `tool:expert`, `node:writer/tool:expert`.
        keeps: whether its conversation is part of the whole's: not that of a tool that begins anew with each call.
    """

    key: str
    agent: Agent
    keeps: bool = True

    @property
    def name(self) -> str:
        """What its steps live under, below the tool call it is, if it is one."""
        parts = self.key.split("/")
        tools = [n for n, part in enumerate(parts) if part.startswith(f"{_TOOL}:")]
        return "/".join(parts[tools[-1] + 1 :] if tools else parts) if self.key else ""


@dataclass(slots=True)
class Shape:
    """All agents, and all graphs and swarms, by their place in the whole."""

    agents: dict[str, Member] = field(default_factory=dict)
    groups: dict[str, Graph | Swarm] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, target: Any) -> "Shape":
        """The shape of an agent, graph or swarm as it is now.

        Raises:
            NotSupported: one of its parts does something that would not be durable; the message says what to do.
        """
        shape = cls()
        shape._add(target, "", True)
        return shape

    def _add(self, target: Any, key: str, keeps: bool) -> None:
        if id(target) in self.seen:
            return
        self.seen.add(id(target))
        if isinstance(target, Graph | Swarm):
            _check_group(target)
            self.groups[key] = target
            for node_id, node in target.nodes.items():
                self._add(node.executor, _below(key, f"{_NODE}:{escape(node_id)}"), keeps)
        elif isinstance(target, Agent):
            check_agent(target)
            self.agents[key] = Member(key, target, keeps)
            for name, tool in sorted(target.tool_registry.registry.items()):
                if isinstance(tool, AgentAsTool):
                    below = _below(key, f"{_TOOL}:{escape(name)}")
                    self._add(tool.agent, below, keeps and tool._preserve_context)
            summary = getattr(target.conversation_manager, "summarization_agent", None)
            if summary is not None:
                self._add(summary, _below(key, _SUMMARY), False)
        else:
            raise NotSupported(
                f"{key or 'this'} is a {type(target).__module__}.{type(target).__qualname__}, whose model and tool "
                f"calls cannot be seen. Supported are strands.Agent, Graph and Swarm; call others in a tool"
            )

    @property
    def nodes(self) -> dict[str, Any]:
        """All nodes of graphs and swarms, by name."""
        return {
            _below(key, node_id): node
            for key, group in self.groups.items()
            for node_id, node in group.nodes.items()
        }

    def handing_off(self) -> set[int]:
        """The ids of the agents that hand off to each other."""
        swarms = (group for group in self.groups.values() if isinstance(group, Swarm))
        return {id(node.executor) for swarm in swarms for node in swarm.nodes.values()}

    def check_at_most_once(self, names: Collection[str]) -> None:
        """Raise `NotSupported` for a tool that is an agent: it is made of steps and is none itself."""
        for member in self.agents.values():
            for name in names:
                tool = member.agent.tool_registry.registry.get(name)
                if isinstance(tool, AgentAsTool) and isinstance(tool.agent, Agent):
                    own = ", ".join(sorted(tool.agent.tool_registry.registry)) or "none"
                    raise NotSupported(
                        f"at_most_once names the agent {name!r}, which goes on where it was after a crash: name those "
                        "of its tools that may not run again "
                        f"(it has {own})"
                    )

    def parts(self) -> Iterator[Any]:
        """Every object that one run at a time may use."""
        yield from (member.agent for member in self.agents.values())
        yield from self.groups.values()

    def structure(self) -> dict[str, Any]:
        """The names of everything, as JSON data that does not depend on any order."""
        agents = {
            key or "agent": {"name": member.agent.name, "tools": sorted(member.agent.tool_registry.registry)}
            for key, member in self.agents.items()
        }
        groups = {key or "graph": _structure(group) for key, group in self.groups.items()}
        return {"agents": agents, "graphs": groups} if groups else {"agents": agents}


def _structure(group: Graph | Swarm) -> dict[str, Any]:
    if isinstance(group, Swarm):
        return {"swarm": list(group.nodes)}
    return {
        "nodes": list(group.nodes),
        "edges": sorted([edge.from_node.node_id, edge.to_node.node_id] for edge in group.edges),
        "entry_points": sorted(node.node_id for node in group.entry_points),
    }


def _below(key: str, part: str) -> str:
    return f"{key}/{part}" if key else part


_UNSUPPORTED = {
    "_session_manager": "a session manager: a recovery would write its history again. A durable agent keeps its "
    "conversations itself; say which with session_id=",
    "_checkpointing": "checkpointing=True: every model and tool call of a durable agent is a checkpoint already",
    "_background_tasks": "background_tasks: start() a durable run for work that goes on beside the conversation",
    "_context_manager": "context_manager=: use a conversation_manager",
    "memory_manager": "a memory manager: read and write memories in tools",
}


def check_agent(agent: Agent) -> None:
    """Raise `NotSupported` for an agent with a part that would not be durable."""
    for attribute, about in _UNSUPPORTED.items():
        if getattr(agent, attribute, None):
            raise NotSupported(f"the agent {agent.name!r} has {about}")


def _check_group(group: Graph | Swarm) -> None:
    if group.session_manager is not None:
        raise NotSupported(f"{type(group).__name__} {group.id!r} has {_UNSUPPORTED['_session_manager']}")


def default_session(target: Any) -> str:
    """The name of the conversation an agent has without a session."""
    return str(target.agent_id if isinstance(target, Agent) else target.id)


def default_label(target: Any) -> str:
    """What an object is called when nobody has named its runner."""
    if isinstance(target, Agent):
        return target.name if target.name != "Strands Agents" else "agent"
    if isinstance(target, Graph | Swarm):
        kind = type(target).__name__.lower()
        return kind if target.id == f"default_{kind}" else target.id
    raise ConfigurationError(
        f"{type(target).__module__}.{type(target).__qualname__} is no agent, graph or swarm of Strands"
    )
