"""A wall clock that is off, and that the test can move. Python's monotonic clock stays what it is."""

import time
from pathlib import Path

from durable_agents._core.store import sqlite


def shift(file: str) -> None:
    """From now on this process's clock is off by as many seconds as `file` says: Python's and SQLite's."""
    now, now_ns, connect = time.time, time.time_ns, sqlite.connect

    def offset() -> int:
        return int(Path(file).read_text())

    def shifted(*given: object) -> object:
        connection = connect(*given)
        connection.create_function("julianday", 1, lambda _: 2_440_587.5 + time.time() / 86_400)
        return connection

    time.time = lambda: now() + offset()
    time.time_ns = lambda: now_ns() + offset() * 1_000_000_000
    sqlite.connect = shifted
