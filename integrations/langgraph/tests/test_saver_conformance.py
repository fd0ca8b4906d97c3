"""LangGraph's own contract for savers, on both databases, outside and inside of a run."""

from collections.abc import AsyncGenerator, Sequence
from itertools import count

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from durable_agents._core.store import Statement, Store, open_store
from durable_agents.langgraph._saver import DurableSaver
from durable_agents.langgraph._tables import MIGRATIONS


class OneRun:
    """A run that never ends and never fails."""

    run_id = "run"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._staged: list[Statement] = []

    def stage(self, statements: Sequence[Statement]) -> None:
        self._staged += statements

    def flush(self) -> None:
        self._store.write(self._staged)
        self._staged.clear()


@pytest.mark.parametrize("inside_a_run", [False, True])
async def test_the_saver_keeps_langgraphs_contract(database_url: str, inside_a_run: bool) -> None:
    store = open_store(database_url)
    store.migrate_tables("langgraph", MIGRATIONS)
    spaces = count()

    @checkpointer_test(name="DurableSaver")
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        run = OneRun(store) if inside_a_run else None
        yield DurableSaver(lambda: store, f"space {next(spaces)}", lambda: run)

    report = await validate(saver)
    store.close()
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert not failures
    assert report.passed_all_base()
