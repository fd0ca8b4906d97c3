"""The store on one SQLite file (WAL, synchronous=FULL): one writing connection, one reading, one for the heartbeat."""

import fcntl
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Literal

import sqlalchemy as sa

from ..errors import ConfigurationError
from . import base
from .base import Params, ProcessLock, Statement, Store, T

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_UNWELL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}


def connect(path: str, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> sqlite3.Connection:
    """A connection in autocommit mode. `unixepoch` is provided where the linked SQLite is older than 3.42.

    DBOS 3.4's statements call it with 'subsec', which SQLite 3.40 of Debian 12 answers with NULL.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=base.PATIENCE)
    _use_wal(connection)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA foreign_keys=ON")
    if sqlite3.sqlite_version_info < (3, 42):
        connection.create_function("unixepoch", -1, lambda *args: time.time() if args else int(time.time()))
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for others who switch a new file to the log at the same time."""
    deadline = time.monotonic() + base.PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


class _Statements:
    """Statements on one connection whose lock the caller holds."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, params).fetchall()

    def execute(self, sql: str, params: Params = ()) -> int:
        return self._connection.execute(sql, params).rowcount

    def write(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self._connection.executemany(statement.sql, statement.rows)


class _FileLock:
    """`flock` on a file beside the database; the kernel frees it when the process ends."""

    broken = -math.inf

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(exist_ok=True)
        self._fd: int | None = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def refresh(self) -> None:
        """A file lock is not lost while its process lives."""

    def release(self) -> None:
        self.abandon()
        self._path.unlink(missing_ok=True)

    def abandon(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class SqliteStore(Store):
    """See the module. `url` is `sqlite:///relative/path` or `sqlite:////absolute/path`."""

    dialect = "sqlite"
    now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
    lock_row = ""
    skip_locked = ""
    types: ClassVar = {"blob": "BLOB", "without_rowid": " WITHOUT ROWID"}

    def __init__(self, url: str) -> None:
        database = sa.make_url(url).database
        if not database or database == ":memory:":
            raise ConfigurationError(
                f"{url!r}: a run must outlive its process, so SQLite needs a file, not memory"
            )
        self.url, self.path = url, Path(database).absolute()
        if self._file() in _forked:
            raise ConfigurationError(
                f"this process was forked from one that had {self.path} open, and SQLite's locks do not survive that: "
                f"start it with spawn or forkserver, fork before launch(), or use PostgreSQL"
            )
        try:
            self._writer, self._reader = connect(str(self.path)), connect(str(self.path))
            self._pulse = connect(str(self.path), "NORMAL")
            for connection in (self._writer, self._reader, self._pulse):
                connection.execute(f"PRAGMA busy_timeout={int(base.LOCK_WAIT * 1000)}")
        except sqlite3.Error as error:
            raise ConfigurationError(f"cannot open the SQLite database {self.path}: {error}") from error
        self._write_lock, self._read_lock, self._pulse_lock = (
            threading.Lock(),
            threading.Lock(),
            threading.Lock(),
        )

    def _file(self) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            found = self.path.stat()
            return found.st_dev, found.st_ino
        return None

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        def once() -> list[tuple[Any, ...]]:
            with self._read_lock:
                return self._reader.execute(sql, params).fetchall()

        return self._patiently(once)

    def execute(self, sql: str, params: Params = ()) -> int:
        def once() -> int:
            with self._write_lock:
                return self._writer.execute(sql, params).rowcount

        return self._patiently(once)

    def beat(self, sql: str, params: Params) -> int:
        def once() -> int:
            with self._pulse_lock:
                return self._pulse.execute(sql, params).rowcount

        return self._patiently(once)

    def transact(self, work: Callable[[_Statements], T]) -> T:
        def once() -> T:
            with self._write_lock:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    result = work(_Statements(self._writer))
                    self._writer.execute("COMMIT")
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
                return result

        return self._patiently(once)

    def may_heal(self, error: BaseException) -> bool:
        return _code(error) in _BUSY | _UNWELL

    def _is_away(self, error: Exception) -> bool:
        return _code(error) in _BUSY

    def migrating(self) -> AbstractContextManager[object]:
        return nullcontext()  # a transaction is the only one that writes

    def columns(self) -> dict[str, set[str]]:
        sql = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
        found: dict[str, set[str]] = {}
        for table, column in self.query(sql):
            found.setdefault(table, set()).add(column)
        return found

    def unique_keys(self) -> set[tuple[str, tuple[str, ...]]]:
        rows = self.query(
            "SELECT t.name, i.name, c.name"
            " FROM sqlite_master t, pragma_index_list(t.name) i, pragma_index_info(i.name) c"
            " WHERE t.type = 'table' AND i.\"unique\" ORDER BY t.name, i.name, c.seqno"
        )
        return {
            (table, tuple(column for _, _, column in index))
            for (table, _), index in groupby(rows, key=lambda row: row[:2])
        }

    def engine(self) -> sa.Engine:
        return sa.create_engine("sqlite://", creator=lambda: connect(str(self.path)), poolclass=sa.NullPool)

    def _lock_path(self, name: str) -> Path:
        return self.path.with_name(self.path.name + ".workers") / name

    def hold(self, name: str) -> ProcessLock:
        return _FileLock(self._lock_path(name))

    def lock_is_free(self, name: str) -> bool:
        try:
            fd = os.open(self._lock_path(name), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def forget_lock(self, name: str) -> None:
        self._lock_path(name).unlink(missing_ok=True)

    def close(self) -> None:
        with self._write_lock, self._read_lock, self._pulse_lock:
            for connection in (self._writer, self._reader, self._pulse):
                connection.close()

    def abandon(self) -> None:
        """SQLite forbids even closing a connection in a forked child: it would drop the parent's file locks."""
        if (file := self._file()) is not None:
            _forked.add(file)
        _left_to_the_parent.extend([self._writer, self._reader, self._pulse])
        gone: Any = _Gone()
        self._writer = self._reader = self._pulse = gone


def _code(error: BaseException) -> int | None:
    """SQLite's primary result code."""
    extended = getattr(error, "sqlite_errorcode", None)
    return None if extended is None else extended & 0xFF


class _Gone:
    """What a forked child has instead of its parent's connections."""

    def __getattr__(self, name: str) -> Any:
        raise ConfigurationError(
            "this process was forked from one that had launched: it must launch for itself"
        )


_forked: set[tuple[int, int]] = set()
_left_to_the_parent: list[sqlite3.Connection] = []
