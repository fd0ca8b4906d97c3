"""Durable Google ADK: `DurableRunner(agent=…, app_name=…)`. Importing it puts the cuts in; see `_places`, `_calls`."""

from . import _calls, _places
from ._durable import DurableRunner
from ._sessions import DurableSessionService

_places.install()
_calls.install()

__all__ = ["DurableRunner", "DurableSessionService"]
