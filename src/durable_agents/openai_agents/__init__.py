"""Durable OpenAI Agents SDK: `DurableRunner(agent)`. Importing it puts the cuts into the SDK; see `_calls`."""

from . import _calls, _context, _runner, _sessions
from ._durable import DurableRunner

_calls.install()
_context.install()
_sessions.install()
_runner.install()

__all__ = ["DurableRunner"]
