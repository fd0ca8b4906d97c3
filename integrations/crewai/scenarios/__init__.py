"""CrewAI crews and flows for the crash matrix (`python -m crashmatrix --framework crewai`).

Ordinary crews and flows, as an application has them. Their models decide from the messages they get; their methods and
tools act on the `World`.
"""

import os
import threading
from collections import defaultdict
from contextlib import AbstractContextManager

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")

from crewai_core.lock_store import set_lock_backend

from . import crews, flows, waits

_LOCKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def _lock(name: str, *, timeout: float) -> AbstractContextManager[object]:
    """Natively the lock is a file's, and a process that is frozen while it has it holds up every other one."""
    return _LOCKS[name]


set_lock_backend(_lock)  # type: ignore[arg-type]

__all__ = ["crews", "flows", "waits"]
