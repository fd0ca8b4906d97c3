"""The store on PostgreSQL, for any number of machines: a small pool of autocommit connections."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa

from ..errors import ConfigurationError
from .base import Params, ProcessLock, Statement, Store, T
from .schema import OWN_SCHEMA, OWN_TABLES, migrate_dbos

POOL_SIZE = 16
# How long a statement is tried again while the server is away, in seconds.
PATIENCE = 30.0
_LOCK_SPACE = "durable_agents"
# A worker frozen inside a transaction must not block the takeover of its runs for long, in milliseconds.
_IDLE_IN_TRANSACTION_MS = 10_000
_SESSION = (
    f"-c search_path={OWN_SCHEMA},dbos -c idle_in_transaction_session_timeout={_IDLE_IN_TRANSACTION_MS}"
)


@lru_cache(maxsize=1024)
def _dialect(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _may_heal(error: psycopg.Error) -> bool:
    """Whether the connection was lost or refused, not the statement: SQLSTATE classes 08 and 57P, too many clients."""
    state = error.sqlstate
    return state is None or state.startswith(("08", "57P")) or state == "53300"


class _Statements:
    """Statements in libpq's pipeline mode: one round trip per answer that is looked at, not per statement."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], pipeline: psycopg.Pipeline) -> None:
        self._connection, self._pipeline = connection, pipeline

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(_dialect(sql), params).fetchall()

    def execute(self, sql: str, params: Params = ()) -> int:
        cursor = self._connection.execute(_dialect(sql), params)
        self._pipeline.sync()
        return cursor.rowcount

    def write(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if len(statement.rows) == 1:
                self._connection.execute(_dialect(statement.sql), statement.rows[0])
            elif statement.rows:
                with self._connection.cursor() as cursor:
                    cursor.executemany(_dialect(statement.sql), statement.rows)


class _SessionLock:
    """A session advisory lock on a connection of its own; the server frees it when the connection ends."""

    def __init__(self, connect: Callable[[], psycopg.Connection[tuple[Any, ...]]], name: str) -> None:
        self._connect, self._name = connect, name
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._held = False
        self.refresh()

    def refresh(self) -> None:
        try:
            if self._connection is None:
                self._connection, self._held = self._connect(), False
            if self._held:
                self._connection.execute("SELECT 1")
            else:  # never wait: the server may not have noticed yet that the connection of before is gone
                sql = "SELECT pg_try_advisory_lock(hashtext(%s), hashtext(%s))"
                ((self._held,),) = self._connection.execute(sql, (_LOCK_SPACE, self._name)).fetchall()
        except psycopg.Error:
            self._connection = None  # the next heartbeat connects again

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abandon(self) -> None:
        if self._connection is not None:
            _cut(self._connection)
            self._connection = None


class PostgresStore(Store):
    """See the module. Needs connections that are not pooled per transaction: the liveness lock is a session's."""

    dialect = "postgresql"
    now = "(extract(epoch from clock_timestamp()) * 1000)::bigint"
    lock_row = " FOR NO KEY UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    types: ClassVar = {"blob": "BYTEA", "without_rowid": ""}

    def __init__(self, url: str) -> None:
        self.url = url
        self._conninfo = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        try:
            self._connect().close()
        except psycopg.Error as error:
            shown = sa.make_url(url).render_as_string(hide_password=True)
            raise ConfigurationError(f"cannot connect to {shown}: {error}") from error
        self._idle: list[psycopg.Connection[tuple[Any, ...]]] = []
        self._open: set[psycopg.Connection[tuple[Any, ...]]] = set()
        self._abandoned = False
        self._room = threading.Semaphore(POOL_SIZE)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            self._conninfo,
            autocommit=True,
            options=_SESSION,
            application_name="durable_agents",
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            connect_timeout=10,
        )

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection of the pool; one that failed is thrown away."""
        with self._room:
            try:
                connection = self._idle.pop()
            except IndexError:
                if self._abandoned:
                    raise ConfigurationError(
                        "this process was forked from one that had launched: it must launch for itself"
                    ) from None
                connection = self._connect()
                self._open.add(connection)
            try:
                yield connection
            except BaseException:
                self._open.discard(connection)
                connection.close()
                raise
            self._idle.append(connection)

    def _patiently(self, work: Callable[[psycopg.Connection[tuple[Any, ...]]], T]) -> T:
        """Run `work`, again and again while the server cannot be reached."""
        deadline, pause = time.monotonic() + PATIENCE, 0.02
        while True:
            try:
                with self._connection() as connection:
                    return work(connection)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if not _may_heal(error) or time.monotonic() > deadline:
                    raise
                time.sleep(pause)
                pause = min(pause * 2, 0.5)

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        return self._patiently(lambda connection: connection.execute(_dialect(sql), params).fetchall())

    def execute(self, sql: str, params: Params = ()) -> int:
        return self._patiently(lambda connection: connection.execute(_dialect(sql), params).rowcount)

    def beat(self, sql: str, params: Params) -> int:
        return self.execute(sql, params)

    def transact(self, work: Callable[[_Statements], T]) -> T:
        def in_transaction(connection: psycopg.Connection[tuple[Any, ...]]) -> T:
            with connection.pipeline() as pipeline:
                connection.execute("BEGIN")
                result = work(_Statements(connection, pipeline))
                connection.execute("COMMIT")
            return result

        return self._patiently(in_transaction)

    def migrate(self) -> None:
        with self._connect() as connection:  # its end frees the lock that keeps other starting processes out
            # Polled: a statement that blocks holds a snapshot, and DBOS's CREATE INDEX CONCURRENTLY waits for those.
            while not self._try_migration_lock(connection):
                time.sleep(0.05)
            engine = sa.create_engine(
                sa.make_url(self.url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool
            )
            try:
                migrate_dbos(engine)
            finally:
                engine.dispose()
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {OWN_SCHEMA}")
            self.create_tables(OWN_TABLES)

    @staticmethod
    def _try_migration_lock(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
        sql = "SELECT pg_try_advisory_lock(hashtext(%s), 0)"
        ((locked,),) = connection.execute(sql, (_LOCK_SPACE,)).fetchall()
        return bool(locked)

    def hold(self, name: str) -> ProcessLock:
        return _SessionLock(self._connect, name)

    def lock_is_free(self, name: str) -> bool:
        return not self.query(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND classid = (hashtext(?)::bigint & 4294967295)::oid"
            " AND objid = (hashtext(?)::bigint & 4294967295)::oid",
            (_LOCK_SPACE, name),
        )

    def forget_lock(self, name: str) -> None:
        """Nothing is left of a session lock."""

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def abandon(self) -> None:
        for connection in self._open:
            _cut(connection)
        self._idle, self._open = [], set()
        self._abandoned = True


def _cut(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """In a forked child: put nothing in the place of the parent's socket, so that the server hears no word of ours."""
    with suppress(psycopg.Error, OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, connection.fileno())
        os.close(nothing)
    _left_to_the_parent.append(connection)


_left_to_the_parent: list[psycopg.Connection[tuple[Any, ...]]] = []
