"""Durable LangGraph: `DurableGraph(compiled)`. Importing it puts the cuts into LangGraph; see `_tasks` and `_calls`."""

from . import _calls, _lending, _replay, _tasks
from ._durable import DurableGraph

_tasks.install()
_calls.install()
_lending.install()
_replay.install()

__all__ = ["DurableGraph"]
