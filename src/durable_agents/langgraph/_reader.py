"""Reading what `_saver` stored: checkpoints, the values of their channels, and their pending writes."""

import json
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointTuple,
    DeltaChannelHistory,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # langgraph-checkpoint 4.3.2

from .._core import Store
from .._core.errors import DurableError, EncodingError
from ._deltas import StoredList, digest_in, inline_in, loaded_list, parse_parts, resolve

LIST, SNAPSHOT, ELEMENTS = "list", "snapshot", "elements"
"""Types of values that are no serialised object: a list's node, the same in a `_DeltaSnapshot`, a list's tokens."""

Row = tuple[str, str, bytes]
"""Channel, type and body of a stored value."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_CHECKPOINT = (
    "SELECT id, parent, type, body, metadata FROM langgraph_checkpoint"
    " WHERE space = ? AND thread = ? AND ns = ?"
)
_HEAD = (
    "SELECT c.id, c.run, EXISTS (SELECT 1 FROM langgraph_write AS w WHERE w.space = c.space AND w.thread = c.thread"
    " AND w.ns = c.ns AND w.checkpoint = c.id AND w.task = ?) FROM langgraph_checkpoint AS c"
    " WHERE c.space = ? AND c.thread = ? AND c.ns = '' ORDER BY c.id DESC LIMIT 1"
)
_LAST_RUN = (
    "WITH RECURSIVE line (parent, run, distance) AS (SELECT parent, run, 0 FROM langgraph_checkpoint"
    " WHERE space = ? AND thread = ? AND ns = '' AND id = ?"
    " UNION ALL SELECT older.parent, older.run, line.distance + 1 FROM line JOIN langgraph_checkpoint AS older"
    " ON older.space = ? AND older.thread = ? AND older.ns = '' AND older.id = line.parent WHERE line.run IS NULL)"
    " SELECT run FROM line WHERE run IS NOT NULL"
)
_CHANNELS = (  # CROSS JOIN: SQLite then looks up one row per pair instead of reading every version of the thread
    "WITH wanted (channel, version) AS (VALUES {}) SELECT c.channel, c.version, c.type, c.body"
    " FROM wanted CROSS JOIN langgraph_channel AS c WHERE c.space = ? AND c.thread = ? AND c.ns = ?"
    " AND c.channel = wanted.channel AND c.version = wanted.version"
)
_WRITES = (
    "SELECT checkpoint, path, task, idx, channel, type, body FROM langgraph_write"
    " WHERE space = ? AND thread = ? AND ns = ? AND checkpoint IN ({})"
)
_ITEMS = "SELECT digest, type, body FROM langgraph_item WHERE space = ? AND thread = ? AND digest IN ({})"
_NODES = (
    "WITH RECURSIVE chain (digest, base, body) AS ("
    "SELECT digest, base, body FROM langgraph_item WHERE space = ? AND thread = ? AND digest IN ({})"
    " UNION SELECT item.digest, item.base, item.body FROM chain JOIN langgraph_item AS item"
    " ON item.space = ? AND item.thread = ? AND item.digest = chain.base) SELECT digest, base, body FROM chain"
)
_ANCESTORS = (
    "WITH RECURSIVE line (id, parent, type, body, metadata, distance) AS ("
    "SELECT id, parent, type, body, metadata, 1 FROM langgraph_checkpoint"
    " WHERE space = ? AND thread = ? AND ns = ? AND id = ?"
    " UNION ALL SELECT older.id, older.parent, older.type, older.body, older.metadata, line.distance + 1"
    " FROM line JOIN langgraph_checkpoint AS older"
    " ON older.space = ? AND older.thread = ? AND older.ns = ? AND older.id = line.parent WHERE line.distance < ?)"
    " SELECT id, parent, type, body, metadata FROM line ORDER BY distance"
)
_NO_TASK = "00000000-0000-0000-0000-000000000000"  # NULL_TASK_ID of langgraph 1.2.24
_ANCESTORS_AT_ONCE = 128
_VALUES_AT_ONCE = 1024


class Head(NamedTuple):
    """A thread's latest checkpoint.

    Args:
        id: the checkpoint's id.
        run: the run that stored it, None when it was stored outside of a run.
        has_input_writes: whether an input that no task made, such as an answer, is pending on it.
    """

    id: str
    run: str | None
    has_input_writes: bool


class CheckpointRow(NamedTuple):
    id: str
    parent: str | None
    type: str
    body: bytes
    metadata: str


class WriteRow(NamedTuple):
    checkpoint: str
    path: str
    task: str
    idx: int
    channel: str
    type: str
    body: bytes


class Reader:
    """One reading of one thread; what it has fetched serves the later checkpoints of the same reading.

    Its methods raise `DurableError` when rows are missing, and `EncodingError` when a stored type is not allowed.
    """

    def __init__(self, store: Store, serde: SerializerProtocol, space: str, thread: str) -> None:
        self._store, self._serde, self.thread = store, serde, thread
        self._scope = (space, thread)
        self._nodes: dict[bytes, tuple[bytes | None, list[Any]]] = {}
        self._items: dict[bytes, tuple[str, bytes]] = {}
        self._lists: dict[bytes, tuple[list[bytes], int]] = {}

    def head(self) -> Head | None:
        """The thread's latest checkpoint, outside of subgraphs."""
        rows = self._store.query(_HEAD, (_NO_TASK, *self._scope))
        return Head(rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None

    def last_run(self, head: Head) -> str | None:
        """The run that brought the thread where it is, whatever was edited since outside of runs."""
        rows = self._store.query(_LAST_RUN, (*self._scope, head.id, *self._scope))
        return str(rows[0][0]) if rows else None

    def has_of(self, run: str) -> bool:
        """Whether a run has stored a checkpoint of the thread."""
        sql = "SELECT 1 FROM langgraph_checkpoint WHERE space = ? AND thread = ? AND ns = '' AND run = ? LIMIT 1"
        return bool(self._store.query(sql, (*self._scope, run)))

    def checkpoint(self, ns: str, id: str | None) -> CheckpointRow | None:
        """The checkpoint of this id, or the latest."""
        which, params = ("AND id = ?", (id,)) if id else ("ORDER BY id DESC LIMIT 1", ())
        rows = self._store.query(f"{_CHECKPOINT} {which}", (*self._scope, ns, *params))
        return CheckpointRow(*rows[0]) if rows else None

    def load(self, ns: str, row: CheckpointRow) -> tuple[CheckpointTuple, dict[str, Row]]:
        """A checkpoint as LangGraph wants it, and its channels' rows."""
        checkpoint = self._body(row)
        versions = {channel: str(version) for channel, version in checkpoint["channel_versions"].items()}
        stored = {row[0]: row for row in self._channels(ns, versions.items()).values()}
        writes = self._writes(ns, [row.id])[row.id]
        values = self._decode({**stored, **{i: write[4:] for i, write in enumerate(writes)}})
        checkpoint["channel_values"].update((channel, values[channel]) for channel in stored)
        pending = [(write.task, write.channel, values[i]) for i, write in enumerate(writes)]
        parent = config_of(self.thread, ns, row.parent) if row.parent else None
        return CheckpointTuple(
            config_of(self.thread, ns, row.id), checkpoint, json.loads(row.metadata), parent, pending
        ), stored

    def stored_lists(self, loaded: CheckpointTuple, stored: Mapping[str, Row]) -> dict[str, StoredList]:
        """Those of a loaded checkpoint's channels that new lists can be deltas of."""
        lists = {}
        for channel, type, body in stored.values():
            if type in (LIST, SNAPSHOT):
                value = loaded.checkpoint["channel_values"][channel]
                elements = value.value if type == SNAPSHOT else value
                lists[channel] = loaded_list(body, *self._lists[body], elements)
        return lists

    def history(self, ns: str, id: str | None, channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
        """Per channel: the value stored at its nearest ancestor that has one, and the writes from there on."""
        target = self.checkpoint(ns, id)
        above = target.parent if target else None
        trails: dict[str, list[str]] = {channel: [] for channel in channels}
        rows: dict[str, Row] = {}
        seeds: dict[str, Any] = {}
        while above and len(seeds) < len(trails):
            line = self._ancestors(ns, above)
            bodies = [self._body(row) for row in line]
            unseeded = trails.keys() - seeds.keys()
            wanted = {
                (c, str(v)) for body in bodies for c, v in body["channel_versions"].items() if c in unseeded
            }
            stored = self._channels(ns, wanted)
            for row, body in zip(line, bodies, strict=True):
                for channel in trails.keys() - seeds.keys():
                    trails[channel].append(row.id)
                    if found := stored.get((channel, str(body["channel_versions"].get(channel)))):
                        rows[channel] = found
                        seeds[channel] = None
                    elif channel in body["channel_values"]:
                        seeds[channel] = body["channel_values"][channel]
            above = line[-1].parent if line else None
        writes = self._writes(ns, {id for trail in trails.values() for id in trail})
        path = {
            channel: [write for id in reversed(trail) for write in writes[id] if write.channel == channel]
            for channel, trail in trails.items()
        }
        values = self._decode({**rows, **{w[:4]: w[4:] for on_path in path.values() for w in on_path}})
        seeds.update((channel, values[channel]) for channel in rows)
        histories: dict[str, DeltaChannelHistory] = {}
        for channel, on_path in path.items():
            histories[channel] = {"writes": [(write.task, channel, values[write[:4]]) for write in on_path]}
            if channel in seeds:
                histories[channel]["seed"] = seeds[channel]
        return histories

    def _body(self, row: CheckpointRow) -> Checkpoint:
        checkpoint: Checkpoint = self._value("checkpoint", row.type, zlib.decompress(row.body))
        checkpoint["id"] = row.id
        return checkpoint

    def _ancestors(self, ns: str, id: str) -> list[CheckpointRow]:
        place = (*self._scope, ns)
        rows = self._store.query(_ANCESTORS, (*place, id, *place, _ANCESTORS_AT_ONCE))
        return [CheckpointRow(*row) for row in rows]

    def _channels(self, ns: str, versions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Row]:
        found = {}
        for batch in _batches(versions):
            sql = _CHANNELS.format(", ".join(["(?, ?)"] * len(batch)))
            params = [text for pair in batch for text in pair]
            for channel, version, type, body in self._store.query(sql, (*params, *self._scope, ns)):
                found[channel, version] = (channel, type, body)
        return found

    def _writes(self, ns: str, checkpoints: Iterable[str]) -> dict[str, list[WriteRow]]:
        found = defaultdict(list)
        for batch in _batches(checkpoints):
            for row in self._store.query(_WRITES.format(_marks(batch)), (*self._scope, ns, *batch)):
                found[row[0]].append(WriteRow(*row))
        for rows in found.values():  # not by the database: its collation is not Python's
            rows.sort(key=lambda write: writes_sort_key(write.path, write.task, write.idx))
        return found

    def _decode(self, rows: Mapping[K, Row]) -> dict[K, Any]:
        """The values of rows; the elements of all lists come with a few queries."""
        roots = {body for _, type, body in rows.values() if type in (LIST, SNAPSHOT)}
        self._fetch_nodes(roots)
        self._lists = {root: self._resolve(root) for root in roots}
        tokens: dict[K, list[bytes]] = {}
        for key, (_, type, body) in rows.items():
            if type in (LIST, SNAPSHOT):
                tokens[key] = self._lists[body][0]
            elif type == ELEMENTS:
                tokens[key] = parse_parts(body)
        self._fetch_items(
            {digest for row in tokens.values() for token in row if (digest := digest_in(token))}
        )
        values: dict[K, Any] = {}
        for key, (channel, type, body) in rows.items():
            if key in tokens:
                elements = [self._element(channel, token) for token in tokens[key]]
                values[key] = _DeltaSnapshot(elements) if type == SNAPSHOT else elements
            else:
                values[key] = self._value(channel, type, body)
        return values

    def _fetch_nodes(self, roots: set[bytes]) -> None:
        for batch in _batches(roots - self._nodes.keys()):
            for digest, base, body in self._store.query(
                _NODES.format(_marks(batch)), (*self._scope, *batch, *self._scope)
            ):
                self._nodes[digest] = (base, parse_parts(body))

    def _fetch_items(self, digests: set[bytes]) -> None:
        for batch in _batches(digests - self._items.keys()):
            for digest, type, body in self._store.query(_ITEMS.format(_marks(batch)), (*self._scope, *batch)):
                self._items[digest] = (type, body)

    def _resolve(self, root: bytes) -> tuple[list[bytes], int]:
        try:
            return resolve(root, self._nodes)
        except KeyError:
            raise self._incomplete() from None

    def _element(self, channel: str, token: bytes) -> Any:
        digest = digest_in(token)
        if digest is None:
            return self._value(channel, *inline_in(token))
        if digest not in self._items:
            raise self._incomplete()
        return self._value(channel, *self._items[digest])

    def _value(self, channel: str, type: str, body: bytes) -> Any:
        try:
            return self._serde.loads_typed((type, body))
        except EncodingError as error:
            raise EncodingError(f"thread {self.thread!r}, channel {channel!r}: {error}") from error

    def _incomplete(self) -> DurableError:
        return DurableError(
            f"thread {self.thread!r}: a part of its state is missing, because the thread was deleted while a run was"
            " writing to it; delete it again and start anew"
        )


def config_of(thread: str, ns: str, id: str | None) -> RunnableConfig:
    """The config that names a checkpoint."""
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def _batches(values: Iterable[V]) -> Iterator[list[V]]:
    """Lists whose lengths are powers of two, filled up with the last value, so that few statements are prepared."""
    rest = list(values)
    for start in range(0, len(rest), _VALUES_AT_ONCE):
        batch = rest[start : start + _VALUES_AT_ONCE]
        yield batch + batch[-1:] * ((1 << (len(batch) - 1).bit_length()) - len(batch))


def _marks(batch: Sequence[object]) -> str:
    return ", ".join("?" * len(batch))
