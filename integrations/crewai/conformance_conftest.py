"""The `conftest.py` of CrewAI's workspace, which its source distribution does not have: put beside its `tests`.

Its tests answer HTTP from recorded cassettes. What is here lets a cassette be found and matched, gives the clients keys
to send, and keeps one test from seeing what another has left.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent / "tests"
CASSETTES = TESTS / "cassettes"
AZURE = "fake-azure-endpoint.openai.azure.com"

KEYS = {
    "OPENAI_API_KEY": "fake-key",
    "ANTHROPIC_API_KEY": "fake-key",
    "GEMINI_API_KEY": "fake-key",
    "GOOGLE_API_KEY": "fake-key",
    "OPENROUTER_API_KEY": "fake-key",
    "AZURE_API_KEY": "fake-key",
    "AZURE_ENDPOINT": f"https://{AZURE}",
    "AWS_ACCESS_KEY_ID": "fake-key",
    "AWS_SECRET_ACCESS_KEY": "fake-key",
    "AWS_DEFAULT_REGION": "us-west-2",
    "EXA_API_KEY": "fake-key",
    "SERPER_API_KEY": "fake-key",
    "CREWAI_USER_PAT": "fake-key",
    "CREWAI_TESTING": "true",
}
os.environ.update(KEYS)

_AZURE_HOST = re.compile(
    r"https://[^/]+\.(openai\.azure\.com|services\.ai\.azure\.com|cognitiveservices\.azure\.com)"
)


def _recorded_as(request: Any) -> Any:
    """The request as the cassettes name it."""
    request.uri = _AZURE_HOST.sub(f"https://{AZURE}", request.uri)
    return request


@pytest.fixture(scope="module")
def vcr_config() -> dict[str, Any]:
    return {
        "record_mode": "none",
        "match_on": ["method", "scheme", "host", "port", "path"],
        "before_record_request": _recorded_as,
        "filter_query_parameters": ["key"],
    }


@pytest.fixture(scope="module")
def vcr_cassette_dir(request: pytest.FixtureRequest) -> str:
    """One folder per folder of tests."""
    return str(CASSETTES / request.path.parent.relative_to(TESTS))


@pytest.fixture(autouse=True)
def _on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a storage of its own, event counters that begin at one, and no handlers that others have left."""
    from crewai.events import event_context
    from crewai.events.base_events import reset_emission_counter
    from crewai.events.event_bus import crewai_event_bus

    monkeypatch.setenv("CREWAI_STORAGE_DIR", str(tmp_path / "storage"))
    reset_emission_counter()
    event_context.reset_last_event_id()
    event_context.restore_event_scope(())
    event_context._event_context_config.set(None)
    yield
    crewai_event_bus.flush(timeout=30.0)
    for handlers in (crewai_event_bus._sync_handlers, crewai_event_bus._async_handlers):
        handlers.clear()
    crewai_event_bus._execution_plan_cache.clear()
    crewai_event_bus.reset_runtime_state()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model providers' clients try again at once."""
    from openai import _base_client

    monkeypatch.setattr(_base_client, "INITIAL_RETRY_DELAY", 0)
    monkeypatch.setattr(_base_client, "MAX_RETRY_DELAY", 0)
