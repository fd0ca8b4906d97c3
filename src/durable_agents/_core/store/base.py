"""What the core asks of a database: statements, short transactions, and a lock that dies with its process."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import sqlalchemy as sa

T = TypeVar("T")
Params = Sequence[object]


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
    """A lock that is free as soon as its process is gone, however it went."""

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
    lock_row: str
    """Suffix of a SELECT that keeps the row from changing until the transaction ends."""
    skip_locked: str
    types: ClassVar[dict[str, str]]
    """Placeholders of table definitions: `{blob}`, `{without_rowid}`."""

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return sa.make_url(self.url).render_as_string(hide_password=True)

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
    def migrate(self) -> None:
        """Create or migrate DBOS's tables and ours."""

    @abstractmethod
    def hold(self, name: str) -> ProcessLock:
        """Take the process lock of this name."""

    @abstractmethod
    def lock_is_free(self, name: str) -> bool: ...

    @abstractmethod
    def forget_lock(self, name: str) -> None:
        """Remove what is left of a dead worker's lock."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop the parent's connections without talking to the server."""

    @abstractmethod
    def beat(self, sql: str, params: Params) -> int:
        """`execute` for the heartbeat, which need not survive a power cut."""

    def write(self, statements: Sequence[Statement]) -> None:
        """Run statements in one transaction."""
        self.transact(lambda tx: tx.write(statements))

    def create_tables(self, tables: Sequence[str]) -> None:
        """Create an integration's own tables where they are missing."""
        with _creating:
            for table in tables:
                self.execute(table.format(**self.types))


_creating = threading.Lock()
