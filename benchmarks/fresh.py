"""Databases to measure on."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import postgres


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    """A fresh database of each kind: name → URL."""
    with tempfile.TemporaryDirectory() as folder, postgres.running() as server:
        server.create_database("bench")
        yield {"sqlite": f"sqlite:///{folder}/bench.sqlite", "postgresql": server.url("bench")}
