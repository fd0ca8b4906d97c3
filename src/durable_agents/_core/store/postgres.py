"""The store on PostgreSQL, for any number of machines: a small pool of autocommit connections."""

import math
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
from . import base
from .base import Params, ProcessLock, Statement, Store, T

OWN_SCHEMA = "durable_agents"
POOL_SIZE = 16
_LOCK_SPACE = "durable_agents"
# A worker frozen inside a transaction must not block the takeover of its runs for long, in milliseconds.
_IDLE_IN_TRANSACTION_MS = 10_000
# A network that swallows what is sent must not hold a statement longer, in milliseconds; without it, minutes.
_UNACKNOWLEDGED_MS = 10_000
_AWAY = ("08", "57P", "53300", "55P03")
"""SQLSTATE classes: the connection is lost, the server stops or starts, too many clients, a lock that is taken."""
_READ_ONLY = "25006"
_UNWELL = (*_AWAY, _READ_ONLY, "25P03", "25P04", "40", "53", "57", "58")
"""And: read-only, a transaction that timed out, deadlocks, disk or memory full, a statement cancelled, I/O errors."""


@lru_cache(maxsize=1024)
def _dialect(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _has_state(error: BaseException, states: tuple[str, ...]) -> bool:
    """Whether the error is of these SQLSTATE classes, or of a connection that is lost or refused: that has none."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return error.sqlstate.startswith(states)


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
        self.broken = -math.inf

    def refresh(self) -> None:
        try:
            if self._connection is None:
                self._connection, self._held = self._connect(), False
            if self._held:
                self._connection.execute("SELECT 1")
                return
            # Never wait: the server may not have noticed yet that the connection of before is gone.
            sql = "SELECT pg_try_advisory_lock(hashtext(%s), hashtext(%s))"
            ((self._held,),) = self._connection.execute(sql, (_LOCK_SPACE, self._name)).fetchall()
        except psycopg.Error:
            self._connection = None  # the next heartbeat connects again
        self.broken = time.monotonic()

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
        self._over = ""
        self._room = threading.Semaphore(POOL_SIZE)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            self._conninfo,
            autocommit=True,
            options=f"-c search_path={OWN_SCHEMA},dbos -c lock_timeout={int(base.LOCK_WAIT * 1000)}"
            f" -c idle_in_transaction_session_timeout={_IDLE_IN_TRANSACTION_MS}",
            application_name="durable_agents",
            tcp_user_timeout=_UNACKNOWLEDGED_MS,
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
                if self._over:
                    raise ConfigurationError(self._over) from None
                connection = self._connect()
                self._open.add(connection)
            try:
                yield connection
            except BaseException as error:
                self._open.discard(connection)
                connection.close()
                if _has_state(error, (_READ_ONLY, "08", "57P")):
                    self._drop_idle()  # they are of the same server, which is gone or not the primary any more
                raise
            self._idle.append(connection)

    def _connected(self, work: Callable[[psycopg.Connection[tuple[Any, ...]]], T]) -> T:
        def once() -> T:
            with self._connection() as connection:
                return work(connection)

        return self._patiently(once)

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        return self._connected(lambda connection: connection.execute(_dialect(sql), params).fetchall())

    def execute(self, sql: str, params: Params = ()) -> int:
        return self._connected(lambda connection: connection.execute(_dialect(sql), params).rowcount)

    def beat(self, sql: str, params: Params) -> int:
        return self.execute(sql, params)

    def transact(self, work: Callable[[_Statements], T]) -> T:
        def in_transaction(connection: psycopg.Connection[tuple[Any, ...]]) -> T:
            with connection.pipeline() as pipeline:
                connection.execute("BEGIN")
                result = work(_Statements(connection, pipeline))
                connection.execute("COMMIT")
            return result

        return self._connected(in_transaction)

    def may_heal(self, error: BaseException) -> bool:
        return _has_state(error, _UNWELL)

    def _is_away(self, error: Exception) -> bool:
        return _has_state(error, _AWAY)

    @contextmanager
    def migrating(self) -> Iterator[None]:
        with self._connect() as connection:  # its end frees the lock that keeps other starting processes out
            # Polled: a statement that blocks holds a snapshot, and DBOS's CREATE INDEX CONCURRENTLY waits for those.
            while not self._try_migration_lock(connection):
                time.sleep(0.05)
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {OWN_SCHEMA}")
            yield

    @staticmethod
    def _try_migration_lock(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
        sql = "SELECT pg_try_advisory_lock(hashtext(%s), 0)"
        ((locked,),) = connection.execute(sql, (_LOCK_SPACE,)).fetchall()
        return bool(locked)

    def columns(self) -> dict[str, set[str]]:
        rows = self.query(
            "SELECT c.relname::text, array_agg(a.attname::text)"
            " FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN (?, 'dbos'))"
            " AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped GROUP BY c.oid, c.relname",
            (OWN_SCHEMA,),
        )
        return {table: set(columns) for table, columns in rows}

    def unique_keys(self) -> set[tuple[str, tuple[str, ...]]]:
        rows = self.query(
            "SELECT c.relname::text, array_agg(pg_get_indexdef(i.indexrelid, n, true) ORDER BY n)"
            " FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid, generate_series(1, i.indnkeyatts) n"
            " WHERE c.relnamespace IN (SELECT oid FROM pg_namespace WHERE nspname IN (?, 'dbos'))"
            " AND i.indisunique AND i.indisvalid GROUP BY i.indexrelid, c.relname",
            (OWN_SCHEMA,),
        )
        return {(table, tuple(columns)) for table, columns in rows}

    def engine(self) -> sa.Engine:
        url = sa.make_url(self.url).set(drivername="postgresql+psycopg")
        return sa.create_engine(url, poolclass=sa.NullPool)

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

    def _drop_idle(self) -> None:
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                self._open.discard(connection)
                connection.close()

    def close(self) -> None:
        self._over = "this process has called shutdown()"
        self._drop_idle()

    def abandon(self) -> None:
        for connection in self._open:
            _cut(connection)
        self._idle, self._open = [], set()
        self._over = "this process was forked from one that had launched: it must launch for itself"


def _cut(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """In a forked child: put nothing in the place of the parent's socket, so that the server hears no word of ours."""
    with suppress(psycopg.Error, OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, connection.fileno())
        os.close(nothing)
    _left_to_the_parent.append(connection)


_left_to_the_parent: list[psycopg.Connection[tuple[Any, ...]]] = []
