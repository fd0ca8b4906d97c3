"""Databases for thousands of attempts: each begins with an empty one that has our tables.

SQLite: a copy of a migrated file. PostgreSQL: one database per place, made from a migrated template and emptied before
each attempt: deleting a dozen rows takes a millisecond, a new copy half a second.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .forks import Attempt, fork, run_one

NAMES = ("sqlite", "postgresql")
_MIGRATE_SECONDS = 60.0
_QUIET_SECONDS = 5.0
_SETTLE_SECONDS = 0.005


class Database(Protocol):
    """Where attempts get their databases from."""

    @property
    def name(self) -> str: ...

    def prepare(self, folder: Path, place: int) -> str:
        """In the harness: the URL of the database for an attempt with this folder, at this place."""
        ...

    def clear(self, url: str) -> None:
        """In the child, before anything: make the database empty."""
        ...

    def cpu(self) -> float:
        """Seconds of CPU the server has used so far."""
        ...


@dataclass(frozen=True)
class Sqlite:
    template: Path
    name: str = "sqlite"

    def prepare(self, folder: Path, place: int) -> str:
        return f"sqlite:///{shutil.copy(self.template, folder / 'database')}"

    def clear(self, url: str) -> None:
        """It is a new file."""

    def cpu(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Postgres:
    urls: tuple[str, ...]
    pid: int
    name: str = "postgresql"

    def prepare(self, folder: Path, place: int) -> str:
        return self.urls[place]

    def clear(self, url: str) -> None:
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            _await_quiet(connection)
            tables = connection.execute(
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
                " WHERE schemaname IN ('dbos', 'durable_agents') AND tablename NOT LIKE '%migrations'"
            ).fetchall()
            # `replica`: in whatever order the tables refer to each other.
            connection.execute(
                ";".join(
                    [
                        "SET session_replication_role = replica",
                        *(f"DELETE FROM {table}" for (table,) in tables),
                    ]
                )
            )

    def cpu(self) -> float:
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # not Linux
            return 0.0
        ticks = sum(map(int, fields[11:15]))  # its own, and those of the sessions that have ended
        return ticks / os.sysconf("SC_CLK_TCK")


def _await_quiet(connection: Any) -> None:
    """A server finishes the statement of a client that is gone."""
    deadline = time.monotonic() + _QUIET_SECONDS
    while connection.execute(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend' LIMIT 1"
    ).fetchall():
        if time.monotonic() > deadline:
            raise TimeoutError("sessions of a process that is gone are still at work")
        time.sleep(_SETTLE_SECONDS)


@contextmanager
def running(names: Sequence[str], folder: Path, jobs: int) -> Iterator[list[Database]]:
    """The databases of these names, for as many attempts at a time as `jobs`."""
    with ExitStack() as stack:
        found: list[Database] = []
        if "sqlite" in names:
            template = folder / "template.sqlite"
            _migrated(f"sqlite:///{template}", folder)
            found.append(Sqlite(template))
        if "postgresql" in names:
            import postgres

            server = stack.enter_context(postgres.running())
            _migrated(server.create_database("template"), folder)
            urls = tuple(
                server.create_database(f"place_{place}", template="template") for place in range(jobs)
            )
            pid = int((server.home / "data" / "postmaster.pid").read_text().split()[0])
            found.append(Postgres(urls, pid))
        yield found


def _migrated(url: str, folder: Path) -> None:
    """Migrate in a child: this process must stay free of connections and of what they leave behind."""

    def migrate() -> None:
        from durable_agents._core.store import open_store

        open_store(url).close()

    def attempt() -> Attempt[None]:
        end = yield fork(migrate, folder / "migrate.log", _MIGRATE_SECONDS).look
        if end.code != 0:
            raise RuntimeError(f"the database could not be made:\n{end.output}")

    run_one(attempt())
