"""`durable(obj)`: the runner of an object's own framework. Only that framework's integration is imported."""

from collections.abc import Callable
from typing import Any

from ._core.errors import NotSupported


def _langgraph(obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    from .langgraph import DurableGraph

    return DurableGraph(obj, name, **options)


def _openai_agents(obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    from .openai_agents import DurableRunner

    return DurableRunner(obj, name, **options)


def _adk(obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    from .adk import DurableRunner

    if any(cls.__name__ == "App" for cls in type(obj).__mro__):
        return DurableRunner(app=obj, name=name, **options)
    return DurableRunner(agent=obj, **{"app_name": obj.name, **options}, name=name)


def _strands(obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    from .strands import DurableAgent, DurableMultiAgent

    is_agent = any(cls.__name__ == "Agent" for cls in type(obj).__mro__)
    return (DurableAgent if is_agent else DurableMultiAgent)(obj, name, **options)


def _crewai(obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    from .crewai import DurableCrew, DurableFlow

    return (DurableFlow if isinstance(obj, type) else DurableCrew)(obj, name, **options)


_FRAMEWORKS: dict[str, tuple[str, Callable[[Any, str | None, dict[str, Any]], Any]]] = {
    "langgraph": ("LangGraph: a compiled StateGraph, an @entrypoint, a create_agent agent", _langgraph),
    "agents": ("OpenAI Agents SDK: an Agent", _openai_agents),
    "google.adk": ("Google ADK: an agent, a Workflow or an App", _adk),
    "strands": ("Strands: an Agent, a Graph or a Swarm", _strands),
    "crewai": ("CrewAI: a Crew or a Flow class", _crewai),
}
"""Where a framework's classes come from → what is wrapped, and how."""


def durable(obj: Any, name: str | None = None, **options: Any) -> Any:
    """Wrap an agent in the durable runner of its framework.

    Args:
        obj: what the framework runs: a compiled graph (LangGraph), an agent (OpenAI Agents SDK), an agent, a workflow
            or an app (Google ADK), an agent, a graph or a swarm (Strands), a crew or a flow class (CrewAI).
        name: the runner's name; default: the module's or script's stem and the object's own name.
        options: the runner's own, such as `types=[…]`.

    Returns:
        The runner, such as a `DurableGraph`; see the integration's README.

    Raises:
        NotSupported: an object of no supported framework; the message lists what is.
    """
    classes = obj.__mro__ if isinstance(obj, type) else type(obj).__mro__
    modules = [f"{cls.__module__}." for cls in classes]
    for origin, (_, make) in _FRAMEWORKS.items():
        if any(module.startswith(f"{origin}.") for module in modules):
            return make(obj, name, options)
    listed = "; ".join(what for what, _ in _FRAMEWORKS.values())
    raise NotSupported(
        f"{type(obj).__module__}.{type(obj).__qualname__} has no durable runner. Supported are {listed}"
    )
