"""The floor: what one INSERT and its commit cost through the driver, on each database, in autocommit."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import psycopg

from durable_agents._core.store import sqlite

_TABLE = "CREATE TABLE IF NOT EXISTS floor (run TEXT, seq INTEGER, output TEXT, PRIMARY KEY (run, seq))"


def inserter(url: str, size: int, stack: ExitStack) -> Callable[[str, int], None]:
    """A function that inserts a number of rows of `size` bytes under a name, with a commit after each.

    SQLite's file stands beside the one of the URL, and is as durable as ours (WAL, FULL).
    """
    connection: Any
    if url.startswith("sqlite"):
        connection = stack.enter_context(closing(sqlite.connect(url.removeprefix("sqlite:///") + ".floor")))
        sql = "INSERT INTO floor VALUES (?, ?, ?)"
    else:
        connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        sql = "INSERT INTO floor VALUES (%s, %s, %s)"
    connection.execute(_TABLE)
    payload = "x" * size

    def insert(run: str, rows: int) -> None:
        for seq in range(rows):
            connection.execute(sql, (run, seq, payload))

    return insert
