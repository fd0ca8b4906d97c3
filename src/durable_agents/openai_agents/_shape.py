"""How an agent is built: the agents it can reach, their structure, the types in its signatures, what is not durable."""

import dataclasses
import enum
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pydantic
from agents import (
    Agent,
    AgentOutputSchema,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ShellTool,
)
from agents.sandbox import SandboxAgent

from .._core.errors import NotSupported

_ACTING = {
    ComputerTool: "a ComputerTool",
    LocalShellTool: "a LocalShellTool",
    ShellTool: "a ShellTool that runs here",
    ApplyPatchTool: "an ApplyPatchTool",
    CustomTool: "a CustomTool",
}


def agents_of(agent: Agent[Any]) -> list[Agent[Any]]:
    """The agent and all it can reach: by handoffs and as tools, each once, in the order they are named."""
    found: dict[int, Agent[Any]] = {}
    left = [agent]
    while left:
        each = left.pop(0)
        if id(each) in found:
            continue
        found[id(each)] = each
        left += [target for handoff in each.handoffs if (target := target_of(handoff)) is not None]
        left += [inner for tool in each.tools if (inner := agent_in(tool)) is not None]
    return list(found.values())


def target_of(handoff: Any) -> Agent[Any] | None:
    """The agent a handoff leads to, when it says so."""
    if isinstance(handoff, Agent):
        return handoff
    target = handoff._agent_ref() if handoff._agent_ref is not None else None
    return target if isinstance(target, Agent) else None


def agent_in(tool: Any) -> Agent[Any] | None:
    """The agent that `Agent.as_tool` made a tool of."""
    inner = getattr(tool, "_agent_instance", None)
    return inner if isinstance(inner, Agent) else None


def structure_of(agent: Agent[Any]) -> dict[str, Any]:
    """Names of agents, and of each its tools and handoffs: what a run in flight depends on."""
    return {
        "agents": [
            {
                "name": each.name,
                "tools": sorted(str(tool.name) for tool in each.tools),
                "handoffs": sorted(_handoff_name(handoff) for handoff in each.handoffs),
            }
            for each in agents_of(agent)
        ]
    }


def _handoff_name(handoff: Any) -> str:
    return str(handoff.tool_name if isinstance(handoff, Handoff) else handoff.name)


def check_agent(agent: Agent[Any]) -> None:
    """Raise `NotSupported` when an agent has what is not durable here."""
    for each in agents_of(agent):
        if isinstance(each, SandboxAgent):
            raise NotSupported(
                f"agent {each.name!r} is a SandboxAgent, whose sandbox is not durable here; use an Agent with function "
                f"tools"
            )
        check_tools(each.name, each.tools)


def check_tools(name: str, tools: Iterable[Any]) -> None:
    """Raise `NotSupported` for tools that act on this machine without being function tools."""
    for tool in tools:
        what = next((text for cls, text in _ACTING.items() if isinstance(tool, cls)), None)
        if what is None or (isinstance(tool, ShellTool) and tool.executor is None):
            continue
        raise NotSupported(
            f"agent {name!r} has {what} ({tool.name}), whose actions are no durable steps yet; make it a function tool"
        )


# -- types


def types_of(agent: Agent[Any]) -> list[type]:
    """The types that the agents' own signatures name: outputs, contexts, what tools return."""
    found: dict[type, None] = {}
    for each in agents_of(agent):
        for hint in _hints_of(each):
            _collect(hint, found)
    return list(found)


def _hints_of(agent: Agent[Any]) -> Iterator[Any]:
    yield from typing.get_args(getattr(agent, "__orig_class__", None))
    output = agent.output_type
    yield output.output_type if isinstance(output, AgentOutputSchema) else output
    if callable(agent.instructions):
        yield from _annotations(agent.instructions)
    guardrails: list[Any] = [*agent.input_guardrails, *agent.output_guardrails]
    for guardrail in guardrails:
        yield from _annotations(guardrail.guardrail_function)
    for tool in agent.tools:
        if isinstance(tool, FunctionTool):
            yield from _annotations(getattr(tool, "__wrapped__", None))
    for handoff in agent.handoffs:
        if isinstance(handoff, Handoff):
            yield from _annotations(handoff.is_enabled)


def _annotations(function: Any) -> Iterator[Any]:
    if not callable(function):
        return
    target: Callable[..., Any] = (
        function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
    )
    try:
        yield from typing.get_type_hints(target, include_extras=True).values()
    except Exception:
        return  # names that exist for type checkers only


def _collect(hint: Any, found: dict[type, None]) -> None:
    for part in typing.get_args(hint):
        _collect(part, found)
    cls = typing.get_origin(hint) or hint
    if not isinstance(cls, type) or cls in found or not _is_own(cls):
        return
    found[cls] = None
    if issubclass(cls, enum.Enum):
        return
    try:
        inner = typing.get_type_hints(cls, include_extras=True)
    except Exception:
        return
    for part in inner.values():
        _collect(part, found)


def _is_own(cls: type) -> bool:
    """Whether it is a class of data, and not of the SDK, which has its codec already."""
    if cls.__module__.partition(".")[0] in ("agents", "openai", "builtins", "typing"):
        return False
    if issubclass(cls, enum.Enum):
        return cls is not enum.Enum
    return (
        issubclass(cls, pydantic.BaseModel) and cls is not pydantic.BaseModel
    ) or dataclasses.is_dataclass(cls)
