"""`durable(obj)`: the runner of an object's own framework. Only that framework is imported."""

from typing import Any

from ._core.errors import NotSupported

_SUPPORTED = {"langgraph": "a compiled StateGraph, an @entrypoint, a create_agent agent"}


def durable(obj: Any, name: str | None = None, **options: Any) -> Any:
    """Wrap an agent in the durable runner of its framework.

    Args:
        obj: what the framework runs. LangGraph: a compiled graph.
        name: the runner's name; default: the module's or script's stem and the object's own name.
        options: the runner's own, such as `types=[…]`.

    Returns:
        The runner; for LangGraph a `DurableGraph`.

    Raises:
        NotSupported: an object of no supported framework; the message lists what is.
    """
    frameworks = {cls.__module__.split(".")[0] for cls in type(obj).__mro__}
    if "langgraph" in frameworks:
        from .langgraph import DurableGraph

        return DurableGraph(obj, name, **options)
    listed = "; ".join(f"{framework}: {what}" for framework, what in _SUPPORTED.items())
    raise NotSupported(
        f"{type(obj).__module__}.{type(obj).__qualname__} has no durable runner. Supported are {listed}"
    )
