"""Durable CrewAI: `DurableFlow(MyFlow)` and `DurableCrew(crew)`. Importing it puts the cuts into CrewAI.

They do something only inside a durable run; see `_calls`, `_scopes`, `_flow`, `_persistence`, `_waits` and `_traces`.
"""

import os

# CrewAI's telemetry and its offer to share traces wait for the network and for a keyboard, for up to half a minute at
# the end of a process. A worker has neither; who wants them sets these variables.
os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from . import _calls, _flow, _persistence, _scopes, _traces, _waits
from ._crew import DurableCrew
from ._durable import DurableFlow

_calls.install()
_scopes.install()
_flow.install()
_persistence.install()
_waits.install()
_traces.install()

__all__ = ["DurableCrew", "DurableFlow"]
