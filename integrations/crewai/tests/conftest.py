"""CrewAI asks nobody and calls nobody in tests; set before it is imported."""

import os

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", CREWAI_TRACING_ENABLED="false", OTEL_SDK_DISABLED="true")
