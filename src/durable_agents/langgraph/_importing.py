"""Taking a thread over from a checkpointer of LangGraph's: all its checkpoints, with ids, history and open interrupts.

What is read is written in one transaction: after a crash the thread is there as a whole or not at all. The other
checkpointer is only read.
"""

from collections.abc import Iterable, Sequence

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from .._core import Statement
from .._core.errors import ConfigurationError
from ._reader import config_of
from ._saver import DurableSaver


def import_thread(target: DurableSaver, source: BaseCheckpointSaver[str], thread: str) -> int:
    """Read the thread from `source` and write it to `target`; how many checkpoints there were."""
    listed = list(source.list(_whole(thread)))  # before the next call: SqliteSaver is locked meanwhile
    return _write(target, thread, [source.get_tuple(each.config) for each in listed])


async def aimport_thread(target: DurableSaver, source: BaseCheckpointSaver[str], thread: str) -> int:
    """`import_thread` from a checkpointer that is async only."""
    listed = [each async for each in source.alist(_whole(thread))]
    return _write(target, thread, [await source.aget_tuple(each.config) for each in listed])


class _Collected:
    """Rows that belong to no run, until all are there."""

    run_id: str | None = None

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    def stage(self, statements: Sequence[Statement]) -> None:
        self.statements += statements

    def flush(self) -> None:
        """Nothing that is read depends on them."""


def _whole(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def _write(target: DurableSaver, thread: str, found: Iterable[CheckpointTuple | None]) -> int:
    checkpoints = sorted((each for each in found if each is not None), key=lambda each: each.checkpoint["id"])
    if not checkpoints:
        raise ConfigurationError(f"the checkpointer has no checkpoint of thread {thread!r}")
    if target.head(thread) is not None:
        raise ConfigurationError(
            f"thread {thread!r} has state here already; delete it first, or call the graph with another thread_id"
        )
    collected = _Collected()
    collecting, known = target.with_staging(collected), set[tuple[str, str, str]]()
    for each in checkpoints:
        _put(collecting, thread, each, known)
    target.write(collected.statements)
    return len(checkpoints)


def _put(target: DurableSaver, thread: str, each: CheckpointTuple, known: set[tuple[str, str, str]]) -> None:
    ns = each.config["configurable"].get("checkpoint_ns", "")
    parent = each.parent_config["configurable"]["checkpoint_id"] if each.parent_config else None
    versions = each.checkpoint["channel_versions"]
    new = {c: v for c, v in versions.items() if (ns, c, str(v)) not in known}
    known.update((ns, channel, str(version)) for channel, version in new.items())
    target.put(config_of(thread, ns, parent), each.checkpoint, each.metadata, new)
    writes: dict[str, list[tuple[str, object]]] = {}
    for task, channel, value in each.pending_writes or ():
        writes.setdefault(task, []).append((channel, value))
    for place, (task, written) in enumerate(writes.items()):
        # In the place of the path, which no checkpointer tells: it only says in which order they are read.
        target.put_writes(config_of(thread, ns, each.checkpoint["id"]), written, task, f"{place:08}")
