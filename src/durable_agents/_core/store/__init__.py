"""The database: every statement against DBOS's tables and ours stands in this package."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa

from ..errors import ConfigurationError
from .base import ProcessLock, Statement, Store, Transaction
from .schema import migrate

__all__ = ["ProcessLock", "Statement", "Store", "Transaction", "open_store", "opening"]


def open_store(url: str) -> Store:
    """The store at a database URL, migrated to what this version needs.

    Args:
        url: `sqlite:///file`, `postgresql://user@host:port/name` or `postgresql+psycopg://…`.

    Raises:
        ConfigurationError: another kind of database, one that cannot be reached, or tables of another version.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise ConfigurationError(f"not a database URL: {error}") from error
    backend = parsed.get_backend_name()
    store: Store
    if backend == "sqlite":
        from .sqlite import SqliteStore

        store = SqliteStore(url)
    elif backend in ("postgresql", "postgres"):
        from .postgres import PostgresStore

        store = PostgresStore(url)
    else:
        raise ConfigurationError(f"{backend} is not supported: use a SQLite file or PostgreSQL")
    with opening(store):
        migrate(store)
    return store


@contextmanager
def opening(store: Store) -> Iterator[None]:
    """What is done inside must work, or the store is closed: trouble of the database is a `ConfigurationError` here."""
    try:
        yield
    except (sqlite3.Error, psycopg.Error, sa.exc.SQLAlchemyError) as error:
        store.close()
        raise ConfigurationError(f"cannot use the database {store.shown}: {error}") from error
    except BaseException:
        store.close()
        raise
