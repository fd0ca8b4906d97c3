"""What an app consists of, by name: agents, their kinds, tools and sub-agents, a workflow's nodes and edges."""

from collections.abc import Iterable
from typing import Any

from google.adk.agents.base_agent import BaseAgent

from .._core.errors import NotSupported
from ._private import AgentTool, NodeTool, ToolNode, Workflow


def structure_of(root: Any) -> dict[str, Any]:
    """The fingerprint: the same for code in which only functions, prompts and models have changed."""
    found: dict[str, Any] = {}
    _add(root, found, set())
    return found


def _add(node: Any, found: dict[str, Any], seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    parts: dict[str, Any] = {"type": type(node).__name__}
    inner: list[Any] = []
    if tools := getattr(node, "tools", None):
        parts["tools"] = sorted(tool_name(tool) for tool in tools)
        inner += [tool.agent for tool in tools if isinstance(tool, AgentTool)]
        inner += [tool.node for tool in tools if isinstance(tool, NodeTool)]
    if isinstance(node, BaseAgent) and node.sub_agents:
        parts["sub_agents"] = [agent.name for agent in node.sub_agents]
        inner += node.sub_agents
    if isinstance(node, Workflow) and node.graph is not None:
        parts["edges"] = sorted(
            f"{edge.from_node.name} -> {edge.to_node.name}"
            + (f" ({edge.route!r})" if edge.route is not None else "")
            for edge in node.graph.edges
        )
        inner += node.graph.nodes
    if isinstance(node, ToolNode):
        parts["tool"] = tool_name(node.tool)
    found[node.name] = parts
    for each in inner:
        _add(each, found, seen)


_REFUSED = {
    "RemoteA2aAgent": "what a remote agent does cannot be recorded step by step: call it in a tool, which is one step",
    "LangGraphAgent": "its graph runs as one piece: call a DurableGraph in a tool",
    "ManagedAgent": "what a managed agent does cannot be recorded step by step: call it in a tool, which is one step",
}


def refuse(root: Any) -> None:
    """Raise `NotSupported` for agents whose work nobody here could see."""
    for agent in agents_of(root):
        for cls in type(agent).__mro__:
            if why := _REFUSED.get(cls.__name__):
                raise NotSupported(f"agent {agent.name!r} is a {cls.__name__}: {why}")


def agents_of(root: Any) -> Iterable[Any]:
    """Every agent and node that can be seen from the root, once."""
    seen: set[int] = set()
    left = [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        tools = getattr(node, "tools", None) or ()
        left += [tool.agent for tool in tools if isinstance(tool, AgentTool)]
        left += [tool.node for tool in tools if isinstance(tool, NodeTool)]
        left += getattr(node, "sub_agents", None) or ()
        if isinstance(node, Workflow) and node.graph is not None:
            left += node.graph.nodes


def tool_name(tool: Any) -> str:
    name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
    return name if isinstance(name, str) else type(tool).__name__
