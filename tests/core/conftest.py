"""One engine in this process, and other processes, on a database of the test's own."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import durable_agents
import postgres
from core.harness import SOURCES, Ledger, Programs
from core.nursery import Nursery
from durable_agents._core import engine
from durable_agents._core.store import Store, open_store
from plain import Plain


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that has our tables: copying it takes no time."""
    path = tmp_path_factory.mktemp("template") / "template.sqlite"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def postgres_database(postgres_server: postgres.Server, postgres_template: str) -> str:
    """The PostgreSQL database that the core's tests use one after the other, each of them empty."""
    return postgres_server.create_database("core", template=postgres_template)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database, once a SQLite file and once on PostgreSQL."""
    if request.param == "sqlite":
        path = tmp_path / "durable_agents.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    url: str = request.getfixturevalue("postgres_database")
    yield url
    _empty(url)


def _empty(url: str) -> None:
    """Cut what is still connected to the database, and delete what is in it: a new one would take ten times as long."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname IN ('dbos', 'durable_agents')"
        ).fetchall()
        for schema, table in tables:
            if table == "durable_agents_migrations":
                connection.execute(
                    "DELETE FROM durable_agents.durable_agents_migrations WHERE component <> 'core'"
                )
            elif table.startswith("durable_agents_") or (schema == "dbos" and table != "dbos_migrations"):
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, table)))
            elif schema == "durable_agents":
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(schema, table)))


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
def sqlite(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[str]:
    """This process as a worker on one SQLite file for all tests of a module."""
    url = f"sqlite:///{shutil.copy(sqlite_template, tmp_path_factory.mktemp('database') / 'shared.sqlite')}"
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


_figures: list[tuple[str, str]] = []


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Notes what was measured, for the end of pytest's output: bounds are wider than what one wants to know."""
    database = request.node.callspec.params["database_url"]

    def note(what: str, value: str) -> None:
        _figures.append((f"{what} ({database})", value))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for what, value in _figures:
            terminalreporter.write_line(f"{what}: {value}")


@pytest.fixture
def store(launched: str) -> Store:
    """The database as this process's engine reaches it."""
    return engine.current().store


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where the programs of this session come from that have to start fast."""
    ours = Nursery(SOURCES)
    yield ours
    ours.close()


@pytest.fixture
def programs(
    database_url: str, ledger: Ledger, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Programs]:
    started = Programs(database_url, tmp_path, ledger, lambda: request.getfixturevalue("nursery"))
    yield started
    started.end()
