"""Durable runners for the agent frameworks you already use.

Wrap an agent in one line (`durable_agents.langgraph.DurableGraph(graph)`, or `durable_agents.durable(obj)`), give a run
an id, and it finishes, however often its process dies.
"""

from . import errors
from ._core import engine as _engine
from ._core import run as runs
from ._core.errors import DurableError, RunWaiting
from ._core.record import Usage
from ._core.run import Run, Step
from ._core.step import idempotency_key, is_replaying
from ._pick import durable

launch = _engine.launch
shutdown = _engine.shutdown

__all__ = [
    "DurableError",
    "Run",
    "RunWaiting",
    "Step",
    "Usage",
    "durable",
    "errors",
    "idempotency_key",
    "is_replaying",
    "launch",
    "runs",
    "shutdown",
]
