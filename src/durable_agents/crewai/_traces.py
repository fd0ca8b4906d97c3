"""CrewAI's execution: the id that its traces go by, and their beginning.

The outermost kickoff begins one, and with it a trace, unless a host has bound an id of its own before. In a run it
begins under the run's id, so that every pass over it, in whatever process, is one execution.
"""

import contextvars
import uuid
from collections.abc import Callable
from typing import Any

from .._core import RUN, cut
from ._private import agent_module, crew_module, flow_module


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    for module in (agent_module, crew_module, flow_module):
        cut(module, "begin_execution", _begin_execution)


def execution_id(run_id: str) -> str:
    """The run's id; of one that is no UUID, as traces ask for, a UUID that is always the same."""
    try:
        uuid.UUID(run_id)
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"durable-agents:{run_id}"))
    return run_id


def _begin_execution(
    native: Callable[..., Any], execution_uuid: str | None = None, *, tracing: bool | None = None, **more: Any
) -> contextvars.Token[str | None] | None:
    run = RUN.get()
    assert run is not None
    tracing = False if run.muted else tracing
    token: contextvars.Token[str | None] | None
    token = native(execution_uuid or execution_id(run.id), tracing=tracing, **more)
    return token
