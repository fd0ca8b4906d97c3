"""A launched engine for each test, on each database."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import durable_agents

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def engine(database_url: str) -> Iterator[str]:
    """The URL of a database with a worker of this process."""
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield database_url
    durable_agents.shutdown()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A runner's name that no other test has."""
    return f"runner-{abs(hash(request.node.nodeid))}"
