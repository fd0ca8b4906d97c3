"""Durable LangGraph: `DurableGraph(compiled)`. Importing it puts the cuts into LangGraph; see `_tasks` and `_calls`."""

from . import _calls, _lending, _loops, _replay, _tasks
from ._durable import DurableGraph

_loops.install()
_tasks.install()
_calls.install()
_lending.install()
_replay.install()

__all__ = ["DurableGraph"]
