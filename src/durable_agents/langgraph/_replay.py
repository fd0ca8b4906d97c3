"""Running a run's graph again over its records: nothing is executed, nothing is written, and the outcome is the same.

The graph gets the thread as the run found it, and goes through all its segments. A task that has a record gets the
writes that are stored for it; one that asked, asks again. Checkpoints get the ids that they had: tasks and questions
are named after them. All that the graph writes meanwhile is in memory.

Not the same again: values of `UntrackedValue` channels, which are nowhere stored.
"""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.memory import InMemorySaver

from .._core import Execution, Statement, having
from ._private import CONF, CONFIG_KEY_CHECKPOINT_NS, NULL_TASK_ID, PregelLoop, pregel_loop
from ._saver import DurableSaver

_native_put_checkpoint = PregelLoop._put_checkpoint
_native_create_checkpoint = pregel_loop.create_checkpoint
_NEXT_ID: ContextVar[str | None] = ContextVar("durable_agents_langgraph_next_id", default=None)


def install() -> None:
    """Put the hook in; without a `ReplaySaver` it calls the native code and nothing else."""
    PregelLoop._put_checkpoint = _put_checkpoint  # type: ignore[method-assign]
    pregel_loop.create_checkpoint = _create_checkpoint


def _put_checkpoint(self: Any, metadata: CheckpointMetadata) -> None:
    saver = self.checkpointer
    if not isinstance(saver, ReplaySaver) or metadata is self.checkpoint_metadata:
        _native_put_checkpoint(self, metadata)
        return
    namespace = self.config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, "")
    with having(_NEXT_ID, saver.next_id(namespace, self.step)):
        _native_put_checkpoint(self, metadata)


def _create_checkpoint(*args: Any, id: str | None = None, **keywords: Any) -> Any:
    return _native_create_checkpoint(*args, id=id or _NEXT_ID.get(), **keywords)


class ReplaySaver(DurableSaver):
    """A run's threads as it found them, and in memory what its graph writes again.

    Args:
        saver: that of the runner.
        execution: the replay.
    """

    def __init__(self, saver: DurableSaver, execution: Execution) -> None:
        super().__init__(saver._store, saver._space, lambda: None, saver.serde)
        self._again = InMemorySaver(serde=saver.serde)
        self._ids: defaultdict[tuple[str, int], deque[str]] = defaultdict(deque)
        self._first: dict[str, str] = {}
        rows = self._store().query(
            "SELECT ns, id, metadata FROM langgraph_checkpoint WHERE space = ? AND thread = ?"
            " AND (run = ? OR substr(run, 1, ?) = ?) ORDER BY id",
            (self._space, execution.thread, execution.id, len(execution.id) + 1, f"{execution.id}\n"),
        )
        for ns, id, metadata in rows:
            self._ids[ns, json.loads(metadata).get("step", -1)].append(id)
            self._first.setdefault(ns, id)
        self._began = min(self._first.values(), default=None)
        self._own = {id for ids in self._ids.values() for id in ids}
        self._tasks = {
            record.value().get("task")
            for record in execution.journal.known.values()
            if record.kind in ("node", "task") and not record.status
        }

    def next_id(self, ns: str, step: int) -> str | None:
        """The id of the checkpoint that the run stored next for this superstep; None if it stored none."""
        ids = self._ids[ns, step]
        return ids.popleft() if ids else None

    def writes_of(self, thread: str, ns: str, checkpoint: str, task: str) -> list[tuple[str, Any]]:
        """What a task of the run wrote."""
        reader = self.reader(thread)
        row = reader.checkpoint(ns, checkpoint)
        pending = reader.load(ns, row)[0].pending_writes if row else None
        return [(c, value) for t, c, value in pending or () if t == task and c not in WRITES_IDX_MAP]

    # -- a checkpointer

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        if (again := self._again.get_tuple(config)) is not None:
            return again
        thread, ns = str(config[CONF]["thread_id"]), config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, "")
        id = get_checkpoint_id(config) or self._found(thread, ns)
        reader = self.reader(thread)
        row = reader.checkpoint(ns, id) if id and id not in self._own else None
        if row is None:
            return None
        self._remember(reader.load(ns, row)[0])
        return self._again.get_tuple(config)

    def _found(self, thread: str, ns: str) -> str | None:
        """The latest checkpoint of a namespace when the run began."""
        sql = "SELECT max(id) FROM langgraph_checkpoint WHERE space = ? AND thread = ? AND ns = ?"
        before = self._first.get(ns, self._began)
        limit, more = (" AND id < ?", (before,)) if before else ("", ())
        ((found,),) = self._store().query(sql + limit, (self._space, thread, ns, *more))
        return None if found is None else str(found)

    def _remember(self, found: CheckpointTuple) -> None:
        """Put a checkpoint into memory, without what the run has written to it."""
        place = {**found.config[CONF], "checkpoint_id": None}
        if found.parent_config:
            place["checkpoint_id"] = found.parent_config[CONF]["checkpoint_id"]
        versions = found.checkpoint["channel_versions"]
        self._again.put({CONF: place}, found.checkpoint, found.metadata, versions)
        writes: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in found.pending_writes or ():
            if task not in self._tasks and task != NULL_TASK_ID:
                writes.setdefault(task, []).append((channel, value))
        for number, (task, written) in enumerate(writes.items()):
            self._again.put_writes(found.config, written, task, f"{number:08}")

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._again.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._again.put_writes(config, writes, task_id, task_path)

    def record_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> list[Statement]:
        """None: the loop's own `put_writes` puts them into memory."""
        return []

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return BaseCheckpointSaver.get_delta_channel_history(self, config=config, channels=channels)
