"""DBOS itself, to be measured beside us: on tables of its own, with its SQLite as durable as ours (WAL, FULL)."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, SetWorkflowID
from variant import Setting, Variant

from durable_agents._core.store import sqlite


@contextmanager
def launched(url: str) -> Iterator[None]:
    """DBOS runs inside the block."""
    engine = None
    config: dict[str, object] = {"name": "bench", "log_level": "CRITICAL", "system_database_url": url}
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///") + ".dbos"
        config["system_database_url"] = f"sqlite:///{path}"

        def connect() -> object:
            connection = sqlite.connect(path)
            connection.isolation_level = "IMMEDIATE"
            return connection

        # As DBOS makes its own; SQLAlchemy's choice for this URL would close connections that are in use.
        engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool, pool_size=5)
        config["system_database_engine"] = engine
    else:
        config["dbos_system_schema"] = "plain_dbos"
    DBOS(config=config)  # type: ignore[arg-type]
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()  # which leaves an engine that it was given to whoever gave it
        if engine is not None:
            engine.dispose()


def as_step(charge: Callable[[int], str]) -> Callable[[int], str]:
    """The tool as these integrations ask for it: they record model calls, a tool that is to be a step is decorated."""
    return DBOS.step()(charge)


def variants(setting: Setting, name: str, turn: Callable[[str, str], Awaitable[Any]]) -> list[Variant]:
    """An integration of DBOS on each database.

    Args:
        name: of the variant.
        turn: runs the agent on a text, in a session of this name; called inside a workflow.
    """

    @DBOS.workflow(name=f"{name} {uuid.uuid4().hex}")
    async def workflow(text: str, session: str) -> None:
        await turn(text, session)

    async def named(text: str, run: str) -> None:
        with SetWorkflowID(run):
            await workflow(text, run)

    def steps(run: str) -> int:
        return len(DBOS.list_workflow_steps(run))

    async def get_executor() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    @contextmanager
    def around(url: str) -> Iterator[None]:
        with launched(url):
            yield
        setting.awaited(get_executor())  # DBOS has put its own into the loop, and shut it down

    return [
        Variant(
            f"{name}, {database}",
            lambda text, run: setting.awaited(named(text, run)),
            partial(around, url),
            steps,
        )
        for database, url in setting.urls.items()
    ]
