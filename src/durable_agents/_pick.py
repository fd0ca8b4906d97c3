"""`durable(obj)`: the runner of an object's own framework. Only that framework's integration is imported."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ._core.errors import NotSupported


def _langgraph(package: Any, obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    return package.DurableGraph(obj, name, **options)


def _openai_agents(package: Any, obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    return package.DurableRunner(obj, name, **options)


def _adk(package: Any, obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    if any(cls.__name__ == "App" for cls in type(obj).__mro__):
        return package.DurableRunner(app=obj, name=name, **options)
    return package.DurableRunner(agent=obj, **{"app_name": obj.name, **options}, name=name)


def _strands(package: Any, obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    is_agent = any(cls.__name__ == "Agent" for cls in type(obj).__mro__)
    return (package.DurableAgent if is_agent else package.DurableMultiAgent)(obj, name, **options)


def _crewai(package: Any, obj: Any, name: str | None, options: dict[str, Any]) -> Any:
    return (package.DurableFlow if isinstance(obj, type) else package.DurableCrew)(obj, name, **options)


_Make = Callable[[Any, Any, str | None, dict[str, Any]], Any]
_FRAMEWORKS: dict[str, tuple[str, str, _Make]] = {
    "langgraph": ("langgraph", "a compiled StateGraph, an @entrypoint, a create_agent agent", _langgraph),
    "agents": ("openai_agents", "an Agent of the OpenAI Agents SDK", _openai_agents),
    "google.adk": ("adk", "an agent, a Workflow or an App of Google ADK", _adk),
    "strands": ("strands", "an Agent, a Graph or a Swarm of Strands", _strands),
    "crewai": ("crewai", "a Crew or a Flow class of CrewAI", _crewai),
}
"""Where a framework's classes come from → our package, what it wraps, and how."""


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
    for origin, (package, _, make) in _FRAMEWORKS.items():
        if any(module.startswith(f"{origin}.") for module in modules):
            return make(import_module(f".{package}", __package__), obj, name, options)
    listed = "; ".join(f"{package}: {what}" for package, what, _ in _FRAMEWORKS.values())
    raise NotSupported(
        f"{type(obj).__module__}.{type(obj).__qualname__} has no durable runner. Supported are {listed}"
    )
