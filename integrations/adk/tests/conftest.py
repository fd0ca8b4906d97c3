"""An engine on a database of the test's own."""

from collections.abc import Iterator

import pytest

import durable_agents

from .kit import EFFECTS


@pytest.fixture
def engine(database_url: str) -> Iterator[None]:
    EFFECTS.clear()
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()
