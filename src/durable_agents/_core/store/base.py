"""What the core asks of a database: statements, short transactions, and a lock that dies with its process."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import sqlalchemy as sa

from . import versions
from .versions import Migrations

T = TypeVar("T")
Params = Sequence[object]

PATIENCE = 30.0
"""How long a statement is tried again while the database is out of reach or locked, in seconds."""
BRIEF = 1.0
"""The same for threads that have a way of their own to try again: enough for a connection that was cut."""
LOCK_WAIT = 2.0
"""How long one try waits for a lock, in seconds. Nothing can wake it, so it is short."""


class _Briefly(threading.local):
    """Whether the current thread is inside `Store.briefly`; entered once per record, so it is no generator."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


_briefly = _Briefly()


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement and the parameter rows it runs with; `?` is the placeholder on every database."""

    sql: str
    rows: tuple[tuple[object, ...], ...]


class Transaction(Protocol):
    """Statements of one transaction."""

    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]: ...

    def execute(self, sql: str, params: Params = ()) -> int:
        """Run a statement; the number of rows it changed."""
        ...

    def write(self, statements: Sequence[Statement]) -> None: ...


class ProcessLock(Protocol):
    """A lock that is free as soon as its process is gone, however it went.

    `broken` is when it was last found lost, or not yet taken again, on the monotonic clock: what freed it may have
    freed the locks of other living processes too.
    """

    broken: float

    def refresh(self) -> None:
        """Take the lock again if the connection that held it was lost."""
        ...

    def release(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: drop our copy, so that the child does not keep the parent's lock alive."""
        ...


class Store(ABC):
    """One database, reached through its driver: SQLAlchemy would cost two to three times as much per step.

    Every function given to `transact` may run twice when a connection is lost; all of them are compare-and-set or
    compare what they find.
    """

    dialect: Literal["sqlite", "postgresql"]
    url: str
    now: str
    """SQL expression for milliseconds since 1970."""
    latest: int = 0
    """The time of the newest run that this process has inserted, in milliseconds since 1970."""
    lock_row: str
    """Suffix of a SELECT that keeps the row from changing until the transaction ends."""
    skip_locked: str
    types: ClassVar[dict[str, str]]
    """Placeholders of table definitions: `{blob}`, `{without_rowid}`."""

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return sa.make_url(self.url).render_as_string(hide_password=True)

    # -- statements

    @abstractmethod
    def query(self, sql: str, params: Params = ()) -> list[tuple[Any, ...]]:
        """Rows of a read."""

    @abstractmethod
    def execute(self, sql: str, params: Params = ()) -> int:
        """Run one statement in a transaction of its own; the number of rows it changed."""

    @abstractmethod
    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in one transaction; it is rolled back when `work` raises."""

    @abstractmethod
    def beat(self, sql: str, params: Params) -> int:
        """`execute` for the heartbeat, which need not survive a power cut."""

    def write(self, statements: Sequence[Statement]) -> None:
        """Run statements in one transaction."""
        self.transact(lambda tx: tx.write(statements))

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop the parent's connections without talking to the server."""

    # -- trouble

    @abstractmethod
    def may_heal(self, error: BaseException) -> bool:
        """Whether the same statement may work later: the database is away, locked, full or read-only.

        False for what the statement itself is to blame for, such as a constraint.
        """

    @abstractmethod
    def _is_away(self, error: Exception) -> bool:
        """Whether the database is out of reach or locked: of what may heal, what usually does within seconds."""

    def briefly(self) -> AbstractContextManager[None]:
        """Inside, this thread hears of a database that is away after `BRIEF`: it tries again by itself, or ends."""
        return _briefly

    def _patiently(self, work: Callable[[], T]) -> T:
        """Run `work`, again and again while the database is away and this thread has patience."""
        begun, pause = time.monotonic(), 0.02
        while True:
            try:
                return work()
            except Exception as error:
                patience = BRIEF if _briefly.depth else PATIENCE
                if not self._is_away(error) or time.monotonic() - begun > patience:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 0.5)

    # -- tables

    def migrate_tables(self, component: str, migrations: Migrations) -> None:
        """Bring the tables of an integration to the newest version that it knows.

        Args:
            component: whose tables they are; each has a version of its own.
            migrations: the steps from nothing to the newest version, see `versions`.

        Raises:
            ConfigurationError: the tables are of a newer version; nothing was written.
        """
        if versions.check(self, component, migrations) < len(migrations):
            versions.migrate(self, component, migrations)

    @abstractmethod
    def migrating(self) -> AbstractContextManager[object]:
        """Keeps other processes that start from migrating at the same time, where transactions alone do not."""

    @abstractmethod
    def columns(self) -> dict[str, set[str]]:
        """Table → columns, of DBOS's tables and ours."""

    @abstractmethod
    def unique_keys(self) -> set[tuple[str, tuple[str, ...]]]:
        """(table, columns) of every primary key and unique index."""

    @abstractmethod
    def engine(self) -> sa.Engine:
        """For DBOS's migrations."""

    # -- liveness

    @abstractmethod
    def hold(self, name: str) -> ProcessLock:
        """Take the process lock of this name."""

    @abstractmethod
    def lock_is_free(self, name: str) -> bool: ...

    @abstractmethod
    def forget_lock(self, name: str) -> None:
        """Remove what is left of a dead worker's lock."""
