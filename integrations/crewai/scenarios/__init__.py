"""CrewAI crews and flows for the crash matrix (`python -m crashmatrix --framework crewai`).

Ordinary crews and flows, as an application has them. Their models decide from the messages they get; their methods and
tools act on the `World`.
"""

import os

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")

from . import crews, flows, waits

__all__ = ["crews", "flows", "waits"]
