"""One engine in this process, and other processes, on a database of the test's own."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import durable_agents
from core.harness import Ledger, Programs
from durable_agents._core import engine
from durable_agents._core.store import Store
from plain import Plain


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


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """This process as a worker on one SQLite file for all tests of a module."""
    url = f"sqlite:///{tmp_path_factory.mktemp('database') / 'shared.sqlite'}"
    durable_agents.launch(url, poll=0.05)
    yield url
    durable_agents.shutdown()
    engine.RUNNERS.clear()


_numbers = itertools.count(1)


@pytest.fixture
def agent() -> Callable[..., Plain]:
    """Makes a runner of a function, with a name of its own."""

    def make(body: Callable[[Any], Any], **options: Any) -> Plain:
        return Plain(body, f"agent-{next(_numbers)}", **options)

    return make


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
