"""One engine in this process, and other processes, on a database of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import durable_agents
from core.harness import Ledger, Programs
from durable_agents._core import engine
from durable_agents._core.store import Store


@pytest.fixture
def launched(database_url: str) -> Iterator[str]:
    """This process as a worker on the database."""
    durable_agents.launch(database_url, poll=0.05)
    yield database_url
    durable_agents.shutdown()
    engine.RUNNERS.clear()


@pytest.fixture
def idle(database_url: str) -> Iterator[str]:
    """This process on the database, looking for queued runs and dead workers only once an hour."""
    durable_agents.launch(database_url, poll=3600, heartbeat=3600, grace=3600, lease=3600)
    yield database_url
    durable_agents.shutdown()
    engine.RUNNERS.clear()


@pytest.fixture
def store(launched: str) -> Store:
    """The database as this process's engine reaches it."""
    return engine.current().store


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def programs(database_url: str, ledger: Ledger, tmp_path: Path) -> Iterator[Programs]:
    started = Programs(database_url, tmp_path, ledger)
    yield started
    started.end()
