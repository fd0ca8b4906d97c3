"""LangGraph's checkpoints on the engine's database, where state that grows is stored as what changed.

A superstep adds its new messages and little more than a kilobyte, however long the thread is. Inside a run nothing is
written at once: rows are staged, and commit together with the run's next record, so that state and records cannot
disagree. `_tables` says what is stored, `_deltas` how lists are, `_serde` which types are, and `_reader` reads it all.

Not durable: values of `UntrackedValue` channels, which LangGraph gives to no saver.
"""

import asyncio
import json
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

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
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR, _DeltaSnapshot  # langgraph-checkpoint 4.3.2

from .._core import SCOPE, Scope, Statement, Store
from .._core.errors import EncodingError
from ._deltas import Item, KnownLists, Place, StoredList, encode_elements, encode_list
from ._private import NS_END
from ._reader import ELEMENTS, LIST, SNAPSHOT, Head, Reader, config_of
from ._serde import strict_serde
from ._tables import (
    COPY_THREAD,
    DELETE_THREAD,
    PUT_CHANNEL,
    PUT_CHECKPOINT,
    PUT_ITEM,
    PUT_WRITE,
    REPLACE_WRITE,
)

__all__ = ["DurableSaver", "Head", "Staging", "strict_serde"]

_TASKS_RECORDED = 4096
_SHORT_TEXT = 32

TaskKey = tuple[str, str, str, str]
"""Thread id, namespace, checkpoint id and task id."""
Statements = list[Statement]
Items = list[Item]
Rows = list[tuple[object, ...]]
"""`DurableSaver.list` hides the builtin in its class."""
T = TypeVar("T")


class Staging(Protocol):
    """Where a run collects rows until its next record is written; one object per claim of a run.

    It is compared by identity and must allow weak references.
    """

    @property
    def run_id(self) -> str | None:
        """The run that the rows are of, if they are of one."""
        ...

    def stage(self, statements: Sequence[Statement]) -> None:
        """Commit these with the next record, after all that was staged before, or never."""
        ...

    def flush(self) -> None:
        """Commit now what is staged."""
        ...


class DurableSaver(BaseCheckpointSaver[str]):
    """A checkpointer for the graphs of one runner; see the module.

    Args:
        store: the database; called at the first use, so that an engine can be launched late.
        space: the runner's name; threads of other spaces are neither seen nor touched.
        staging: where the calling code's run collects rows, None outside of a run.
        serde: default `strict_serde()`.

    Every method raises `EncodingError`, which names channel and type, when a value's type is not one that is stored.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        space: str,
        staging: Callable[[], Staging | None] = lambda: None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde or strict_serde())
        self._store, self._space, self._staging = store, space, staging
        self._lists = KnownLists()
        self._recorded: OrderedDict[TaskKey, Sequence[tuple[str, Any]]] = OrderedDict()
        self._recorded_lock = threading.Lock()

    def with_staging(self, staging: Staging) -> "DurableSaver":
        """A saver of the same threads that leaves all its rows to `staging`."""
        return DurableSaver(self._store, self._space, lambda: staging, self.serde)

    # -- writing

    def write(self, statements: Sequence[Statement]) -> None:
        """Commit rows that another saver of the same threads has left to its staging."""
        self._write(None, statements)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and the values of its channels that have a new version.

        A version that is stored already keeps its value; a checkpoint that is stored already is replaced.
        """
        thread, ns = place = _place(config)
        staging = self._staging()
        lists = dict(self._lists.get(staging, place))
        values = checkpoint["channel_values"]
        short = {channel: value for channel, value in values.items() if _is_short(value)}
        items: Items = []
        rows: Rows = []
        for channel, version in new_versions.items():
            if channel in values and channel not in short:
                stored = self._encode(channel, values[channel], lists, items)
                rows.append((self._space, thread, ns, channel, str(version), *stored))
        body = {**checkpoint, "channel_values": short}
        del body["id"]
        type_, packed = self._dump("checkpoint", body)
        described = _dump_metadata(get_checkpoint_metadata(config, metadata))
        key = (self._space, thread, ns, checkpoint["id"], get_checkpoint_id(config))
        run = staging.run_id if staging is not None else None
        if run is not None and is_lasting(ns) and (scope := SCOPE.get()) is not None:
            run = maker(run, scope)
        statements = [
            self._item_rows(thread, items),
            Statement(PUT_CHANNEL, tuple(rows)),
            Statement(PUT_CHECKPOINT, ((*key, run, type_, zlib.compress(packed, 1), described),)),
        ]
        self._write(staging, statements)
        self._lists.replace(staging, place, lists)
        return config_of(thread, ns, checkpoint["id"])

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes to a checkpoint, unless `record_writes` has just given them to somebody else."""
        if not self._was_recorded(config, writes, task_id):
            self._write(self._staging(), self._write_rows(config, writes, task_id, task_path))

    def record_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> Statements:
        """What `put_writes` would write, for the caller to commit with the task's record.

        The loop's own `put_writes` of the same objects for this task does nothing then, once.
        """
        statements = self._write_rows(config, writes, task_id, task_path)
        with self._recorded_lock:
            self._recorded[_task(config, task_id)] = tuple(writes)
            while len(self._recorded) > _TASKS_RECORDED:
                self._recorded.popitem(last=False)
        return statements

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread. A run on it must have ended: what it writes afterwards may build upon what is gone."""
        self._write(
            self._staging(), [Statement(sql, ((self._space, str(thread_id)),)) for sql in DELETE_THREAD]
        )
        self.forget(thread_id)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its whole history to one that does not exist yet."""
        row = (str(target_thread_id), self._space, str(source_thread_id))
        self._write(self._staging(), [Statement(sql, (row,)) for sql in COPY_THREAD])

    def forget(self, thread_id: str) -> None:
        """Build upon nothing in memory for this thread: what was staged for it may be lost."""
        self._lists.forget(str(thread_id))
        with self._recorded_lock:
            for task in [task for task in self._recorded if task[0] == str(thread_id)]:
                del self._recorded[task]

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version after `current`; one that no other branch, process or seeded random generator makes.

        Shorter than LangGraph's own (16 + 13 characters instead of 51) and greater than any of them: its counter is
        padded to 16 digits instead of 32.
        """
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:016}.{os.urandom(6).hex()}"

    # -- reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the thread's latest; None if there is none."""
        place = _place(config)
        staging = self._flushed()
        reader = self.reader(place[0])
        row = reader.checkpoint(place[1], get_checkpoint_id(config))
        if row is None:
            self._lists.replace(staging, place, {})
            return None
        loaded, stored = reader.load(place[1], row)
        self._lists.replace(staging, place, reader.stored_lists(loaded, stored))
        return loaded

    def head(self, thread: str) -> Head | None:
        """What is known of a thread's latest checkpoint without reading its state."""
        self._flushed()
        return self.reader(thread).head()

    def maker(self, thread: str, ns: str) -> str | None:
        """Who stored the latest checkpoint of a namespace."""
        self._flushed()
        sql = "SELECT run FROM langgraph_checkpoint WHERE space = ? AND thread = ? AND ns = ? ORDER BY id DESC LIMIT 1"
        return next((run for (run,) in self._store().query(sql, (self._space, thread, ns))), None)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the newest first, each read when it is asked for.

        Args:
            config: a thread, a namespace of it or one checkpoint; None for all threads of the space.
            filter: metadata that a checkpoint must have.
            before: a checkpoint; only those with smaller ids are listed.
            limit: how many at most.
        """
        self._flushed()
        conditions, params = ["space = ?"], [self._space]
        configurable = config["configurable"] if config else {}
        for column, key in (("thread", "thread_id"), ("ns", "checkpoint_ns"), ("id", "checkpoint_id")):
            if (value := configurable.get(key)) is not None:
                conditions.append(f"{column} = ?")
                params.append(str(value))
        if before and (id_ := get_checkpoint_id(before)):
            conditions.append("id < ?")
            params.append(id_)
        where = " AND ".join(conditions)
        sql = f"SELECT thread, ns, id, metadata FROM langgraph_checkpoint WHERE {where} ORDER BY id DESC"
        keys = self._store().query(sql, params)
        if filter:
            keys = [key for key in keys if _has(json.loads(key[3]), filter)]
        reader: Reader | None = None
        for thread, ns, id_, _ in keys[:limit]:
            if reader is None or reader.thread != thread:
                reader = self.reader(thread)
            if row := reader.checkpoint(ns, id_):
                yield reader.load(ns, row)[0]

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What `DeltaChannel`s are rebuilt from: their last snapshot above the checkpoint and the writes since then."""
        thread, ns = _place(config)
        self._flushed()
        return self.reader(thread).history(ns, get_checkpoint_id(config), channels)

    # -- async: database work in a thread; inside a run writing only stages, which needs none

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._awrite(partial(self.put, config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._awrite(partial(self.put_writes, config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._awrite(partial(self.delete_thread, thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._awrite(partial(self.copy_thread, source_thread_id, target_thread_id))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint := await asyncio.to_thread(next, found, None)) is not None:
            yield checkpoint

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)

    async def _awrite(self, work: Callable[[], T]) -> T:
        return work() if self._staging() is not None else await asyncio.to_thread(work)

    # -- helpers

    def _write(self, staging: Staging | None, statements: Sequence[Statement]) -> None:
        statements = [statement for statement in statements if statement.rows]
        if staging is not None:
            staging.stage(statements)
        elif statements:
            self._store().write(statements)

    def _flushed(self) -> Staging | None:
        """The calling code's run, with all its rows in the database."""
        staging = self._staging()
        if staging is not None:
            staging.flush()
        return staging

    def reader(self, thread: str) -> Reader:
        return Reader(self._store(), self.serde, self._space, thread)

    def _dump(self, channel: str, value: object) -> tuple[str, bytes]:
        try:
            return self.serde.dumps_typed(value)
        except TypeError as error:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise EncodingError(f"channel {channel!r}: a {kind} cannot be stored: {error}") from error

    def _encode(
        self, channel: str, value: object, lists: dict[str, StoredList], items: Items
    ) -> tuple[str, bytes]:
        """Type and body of a channel's value; `lists` learns what is stored by then, `items` what must be."""
        elements = value.value if isinstance(value, _DeltaSnapshot) else value
        dump = partial(self._dump, channel)
        if type(elements) is not list or not elements:
            return dump(value)
        lists[channel], new = encode_list(elements, lists.get(channel), dump)
        items += new
        return (LIST if elements is value else SNAPSHOT), lists[channel].root

    def _item_rows(self, thread: str, items: Sequence[Item]) -> Statement:
        return Statement(
            PUT_ITEM, tuple((self._space, thread, i.digest, i.base, i.type, i.body) for i in items)
        )

    def _write_rows(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Statements:
        """Special writes replace the one before; others are the task's only ones, and a second time is ignored."""
        thread, ns = _place(config)
        key = (self._space, thread, ns, get_checkpoint_id(config), task_id)
        items: Items = []
        regular: Rows = []
        special: Rows = []
        for idx, (channel, value) in enumerate(writes):
            if channel == ERROR and isinstance(value, BaseException):
                value = repr(value)  # what LangGraph's serializer writes for it, whatever else it looks like
            dump = partial(self._dump, channel)
            if type(value) is list and value:
                body, new = encode_elements(value, dump)
                items += new
                stored = (ELEMENTS, body)
            else:
                stored = dump(value)
            row = (*key, WRITES_IDX_MAP.get(channel, idx), task_path, channel, *stored)
            (special if channel in WRITES_IDX_MAP else regular).append(row)
        return [
            statement
            for statement in (
                self._item_rows(thread, items),
                Statement(PUT_WRITE, tuple(regular)),
                Statement(REPLACE_WRITE, tuple(special)),
            )
            if statement.rows
        ]

    def _was_recorded(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str) -> bool:
        with self._recorded_lock:
            recorded = self._recorded.pop(_task(config, task_id), None)
        return (
            recorded is not None
            and len(recorded) == len(writes)
            and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(recorded, writes, strict=True))
        )


def is_lasting(ns: str) -> bool:
    """Whether a namespace is that of a nested graph with a memory of its own, which no task's id tells apart."""
    return bool(ns) and NS_END not in ns


def maker(run_id: str, scope: Scope) -> str:
    """The call of such a graph that a checkpoint is of."""
    return f"{run_id}\n{scope.path}"


def _place(config: RunnableConfig) -> Place:
    configurable = config["configurable"]
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")


def _task(config: RunnableConfig, task_id: str) -> TaskKey:
    return (*_place(config), str(get_checkpoint_id(config)), task_id)


def _has(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())


def _is_short(value: object) -> bool:
    """Whether a value takes less room in every checkpoint than in a row of its own whenever it changes."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return value is None or type(value) in (bool, float) or (type(value) is str and len(value) <= _SHORT_TEXT)


def _dump_metadata(metadata: CheckpointMetadata) -> str:
    try:
        return json.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise EncodingError(f"checkpoint metadata must be JSON: {error}") from error
