"""The saver: what it stores of a state that grows, and that it never builds upon what may not be there."""

import asyncio
import gc
import operator
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import NULL_TASK_ID
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    CheckpointMetadata,
    CheckpointTuple,
    empty_checkpoint,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from durable_agents._core.errors import DurableError, EncodingError
from durable_agents._core.store import Statement, Store, open_store
from durable_agents.langgraph._deltas import StoredList, encode_list
from durable_agents.langgraph._saver import DurableSaver, Head, Staging, strict_serde
from durable_agents.langgraph._tables import MIGRATIONS


class Run:
    """One claim of a run: rows wait for its next record, and are gone when the run is lost."""

    def __init__(self, store: Store, id: str = "run") -> None:
        self.run_id = id
        self._store = store
        self._lock = threading.Lock()
        self.staged: list[Statement] = []

    def stage(self, statements: Sequence[Statement]) -> None:
        with self._lock:
            self.staged += statements

    def flush(self) -> None:
        with self._lock:
            self._store.write(self.staged)
            self.staged.clear()

    def lose(self) -> None:
        self.staged.clear()


@dataclass
class Process:
    """A saver with nothing in memory, and the run that its calls come from."""

    store: Store
    run: Run | None = None
    space: str = "graphs"
    allowed: tuple[type, ...] = ()
    saver: DurableSaver = field(init=False)

    def __post_init__(self) -> None:
        self.saver = DurableSaver(lambda: self.store, self.space, self.current, strict_serde(self.allowed))

    def current(self) -> Staging | None:
        return self.run

    def thread(self, id: str = "thread") -> "Thread":
        return Thread(self.saver, id)


class Thread:
    """Puts checkpoints one after the other, as a loop does."""

    def __init__(self, saver: BaseCheckpointSaver[str], id: str) -> None:
        self.saver = saver
        self.config: RunnableConfig = {"configurable": {"thread_id": id, "checkpoint_ns": ""}}
        self.versions: dict[str, Any] = {}
        self.values: dict[str, Any] = {}

    def resume(self) -> CheckpointTuple:
        """Go on from the head, with the objects that were read."""
        head = self.saver.get_tuple({"configurable": {**self.config["configurable"], "checkpoint_id": None}})
        assert head is not None
        self.config, self.versions = head.config, dict(head.checkpoint["channel_versions"])
        self.values = dict(head.checkpoint["channel_values"])
        return head

    def put(self, **changed: Any) -> RunnableConfig:
        new: ChannelVersions = {
            channel: self.saver.get_next_version(self.versions.get(channel), None) for channel in changed
        }
        self.versions = {**self.versions, **new}
        self.values = {**self.values, **changed}
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = dict(self.values), self.versions
        metadata: CheckpointMetadata = {"source": "loop", "step": 0, "parents": {}}
        self.config = self.saver.put(self.config, checkpoint, metadata, new)
        return self.config


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('saver') / 'sqlite'}"
    else:
        template = request.getfixturevalue("postgres_template")
        url = request.getfixturevalue("postgres_server").create_database("saver", template)
    store = open_store(url)
    store.migrate_tables("langgraph", MIGRATIONS)
    yield store
    store.close()


@pytest.fixture
def store(database: Store) -> Store:
    for table in ("checkpoint", "channel", "item", "write"):
        database.execute(f"DELETE FROM langgraph_{table}")
    return database


def in_a_run(store: Store) -> tuple[Process, Run]:
    run = Run(store)
    return Process(store, run), run


def read(store: Store, config: RunnableConfig, allowed: tuple[type, ...] = ()) -> dict[str, Any]:
    """What a process that starts now finds in a checkpoint."""
    found = Process(store, allowed=allowed).saver.get_tuple(config)
    assert found is not None
    return found.checkpoint["channel_values"]


def human(id: str, text: str = "x" * 300) -> HumanMessage:
    return HumanMessage(text, id=id)


def payload(store: Store) -> int:
    """Bytes of everything that the saver's tables hold."""
    columns = {
        "checkpoint": "space thread ns id parent run type body metadata",
        "channel": "space thread ns channel version type body",
        "item": "space thread digest base type body",
        "write": "space thread ns checkpoint task path channel type body",
    }
    total = 0
    for table, names in columns.items():
        length = " + ".join(f"coalesce(length({name}), 0)" for name in names.split())
        total += int(store.query(f"SELECT coalesce(sum({length}), 0) FROM langgraph_{table}")[0][0])
    return total


def count(store: Store, table: str) -> int:
    return int(store.query(f"SELECT count(*) FROM langgraph_{table}")[0][0])


# -- lists as what changed

M = [human(f"m{i}") for i in range(8)]
CHANGES: dict[str, list[list[Any]]] = {
    "append": [M[:2], M[:3], M[:5]],
    "replace": [M[:4], [M[0], human("m1", "other"), *M[2:4]], [M[0], human("m1", "other"), *M[2:4], M[4]]],
    "remove": [M[:5], [M[0], *M[2:5]], M[2:5], [M[2], M[4]]],
    "reorder": [M[:5], M[4::-1], [M[1], M[0], *M[2:5]]],
    "shorten": [M[:6], M[:2], M[:1]],
    "empty": [M[:3], [], M[:4], []],
    "slide": [M[i : i + 3] for i in range(5)],
    "repeat": [[M[0], M[0]], [M[0]] * 3, [M[1], M[0], M[0], M[1]]],
    "nothing new": [M[:3], list(M[:3]), M[:3]],
    "everything new": [M[:3], M[3:6], M[:3]],
    "small things": [[1, "a"], [1, "a", None, 2.5], [True, "a", b"b"], [["nested"], {"k": [1]}, ["nested"]]],
    "mixed": [[M[0], {"role": "user"}, "text"], [{"role": "user"}, M[0], "text", "y" * 500]],
    "long text": [["a" * 100], ["a" * 100, "b" * 100], ["b" * 100, "a" * 100]],
}


@pytest.mark.parametrize("fresh_objects", [False, True], ids=["same objects", "equal objects"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_version_of_a_list_is_read_as_it_was_put(
    store: Store, change: str, fresh_objects: bool
) -> None:
    thread = Process(store, Run(store)).thread()
    put = []
    for value in CHANGES[change]:
        if fresh_objects:
            value = [v.model_copy() if isinstance(v, HumanMessage) else v for v in value]
        put.append((thread.put(messages=value), value))
    thread.saver.get_tuple(thread.config)
    for config, value in put:
        found = read(store, config)["messages"]
        assert found == value
        assert [type(element) for element in found] == [type(element) for element in value]


def test_random_changes(store: Store) -> None:
    chance = random.Random(7)
    process, run = in_a_run(store)
    thread, value, put = process.thread(), list[Any](), []
    for step in range(300):
        at = chance.randrange(len(value) + 1)
        action = chance.randrange(6)
        if action == 0 and value:
            value = value[:at] + value[at + chance.randrange(3) :]
        elif action == 1 and value:
            value = chance.sample(value, len(value))
        elif action == 2 and value:
            value[at - 1].content = f"changed in place {step}"
        elif action == 3:
            thread.resume()
            value = thread.values.get("messages", [])
        else:
            value = [*value[:at], human(f"h{step}", "y" * chance.randrange(100)), *value[at:]]
        put.append((thread.put(messages=value), [message.model_copy() for message in value]))
    run.flush()
    found = {t.checkpoint["id"]: t.checkpoint["channel_values"] for t in Process(store).saver.list(None)}
    for config, expected in put:
        assert found[config["configurable"]["checkpoint_id"]]["messages"] == expected


CHANGES_IN_PLACE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "content": (lambda: human("a"), lambda m: setattr(m, "content", "new")),
    "part of the content": (
        lambda: HumanMessage([{"type": "text", "text": "old"}]),
        lambda m: m.content[0].update(text="new"),
    ),
    "metadata": (
        lambda: AIMessage("a", response_metadata={"usage": {"in": 1}}),
        lambda m: m.response_metadata["usage"].update({"in": 2}),
    ),
    "tool call": (
        lambda: AIMessage("a"),
        lambda m: m.tool_calls.append({"name": "f", "args": {}, "id": "1", "type": "tool_call"}),
    ),
    "artifact": (
        lambda: ToolMessage("a", tool_call_id="1", artifact=[{}]),
        lambda m: m.artifact[0].update(a=1),
    ),
    "extra field": (lambda: HumanMessage("a", note=["old"]), lambda m: m.note.append("new")),
    "new extra field": (lambda: HumanMessage("a"), lambda m: setattr(m, "note", "new")),
    "dict": (lambda: {"text": "y" * 99, "tags": ["old"]}, lambda d: d["tags"].append("new")),
    "nested list": (lambda: [["old"]], lambda v: v[0].append("new")),
    "dataclass": (lambda: Note("old"), lambda note: setattr(note, "text", "new")),
    "dataclass inside": (lambda: {"note": Note("old")}, lambda d: setattr(d["note"], "text", "new")),
}


@dataclass
class Note:
    text: str


@pytest.mark.parametrize("change", CHANGES_IN_PLACE)
def test_a_kept_element_that_was_changed_in_place_is_stored_again(store: Store, change: str) -> None:
    make, mutate = CHANGES_IN_PLACE[change]
    thread = Process(store, allowed=(Note,)).thread()
    value = [human("first"), make(), human("last")]
    before = thread.put(messages=value)
    mutate(value[1])
    after = thread.put(messages=[*value, human("new")])
    assert read(store, before, (Note,))["messages"][1] == make() != value[1]
    assert read(store, after, (Note,))["messages"][1] == value[1]


def test_objects_that_cannot_be_compared_are_stored_each_time(store: Store) -> None:
    class Odd(str):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("cannot be compared")

        __hash__ = None  # type: ignore[assignment]

    thread = Process(store).thread()
    value = [{"key": "old"}, {"key": "kept"}]
    thread.put(messages=value)
    value[0]["key"] = Odd("new")
    found = read(store, thread.put(messages=value))["messages"]
    assert found == [{"key": "new"}, {"key": "kept"}]


def test_a_version_is_never_stored_twice(store: Store) -> None:
    process = Process(store)
    thread = process.thread()
    first = thread.put(messages=M[:2])
    versions = {"messages": thread.versions["messages"]}
    for value in (M[:2], M[2:4]):
        again = {**empty_checkpoint(), "channel_values": {"messages": value}, "channel_versions": versions}
        process.saver.put(first, again, {}, versions)  # type: ignore[arg-type]
        assert read(store, first)["messages"] == M[:2]
    thread.values["messages"] = M[2:4]
    assert read(store, thread.put(messages=[*M[2:4], M[5]]))["messages"] == [*M[2:4], M[5]]


def test_a_snapshot_of_a_delta_channel_is_a_list_too(store: Store) -> None:
    process = Process(store)
    thread = process.thread()
    thread.put(messages=_DeltaSnapshot(M[:3]))
    items = count(store, "item")
    config = thread.put(messages=_DeltaSnapshot([*M[:3], M[3]]))
    assert read(store, config)["messages"] == _DeltaSnapshot(M[:4])
    assert count(store, "item") == items + 2


# -- how much


def grow(process: Process, length: int, supersteps: int, id: str) -> Thread:
    """A thread that starts with so many messages and gets one more per superstep, in the way of a loop and its hook."""
    thread = process.thread(id)
    thread.put(messages=[human(f"h{i}") for i in range(length)], i=0)
    for i in range(supersteps):
        new = AIMessage("x" * 300, id=f"a{i}")
        writes = [("messages", [new]), ("i", i), ("branch:to:node", None)]
        process.saver.put_writes(
            thread.config, writes, f"{i:08}-0000-0000-0000-000000000000", "~__pregel_pull, node"
        )
        thread.put(messages=[*thread.values["messages"], new], i=i)
    return thread


def test_a_superstep_adds_the_same_bytes_to_a_long_thread_and_to_a_short_one(store: Store) -> None:
    (process, run), grown = in_a_run(store), {}
    for length in (10, 1000):
        sizes = []
        for supersteps in (5, 105):
            grow(process, length, supersteps, f"{length} + {supersteps}")
            run.flush()
            sizes.append(payload(store))
            for table in ("checkpoint", "channel", "item", "write"):
                store.execute(f"DELETE FROM langgraph_{table}")
        grown[length] = (sizes[1] - sizes[0]) / 100
    assert abs(grown[1000] - grown[10]) < 0.1 * grown[10]
    assert grown[1000] < 2048


def test_a_message_is_stored_once_for_the_write_and_the_state(store: Store) -> None:
    thread = grow(Process(store), 1, 1, "thread")
    assert len(store.query("SELECT digest FROM langgraph_item WHERE base IS NULL AND type = 'msgpack'")) == 2
    assert read(store, thread.config)["messages"][1].content == "x" * 300


def test_the_head_of_a_long_thread_is_read_with_a_few_queries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, run = in_a_run(store)
    thread = grow(process, 0, 1000, "thread")
    run.flush()
    queries, native = list[str](), store.query

    def query(sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        queries.append(sql)
        return native(sql, params)

    monkeypatch.setattr(store, "query", query)
    assert [m.id for m in read(store, thread.config)["messages"]] == [f"a{i}" for i in range(1000)]
    assert len(queries) <= 6


def test_no_chain_is_longer_than_its_list() -> None:
    known: StoredList | None = None
    for i in range(200):
        known, _ = encode_list(
            [f"element {n}" for n in range(i, i + 5)], known, lambda v: ("msgpack", ormsgpack.packb(v))
        )
        assert known.depth <= 5


# -- what may be built upon


def test_another_process_writes_in_between(store: Store) -> None:
    ours, theirs = Process(store).thread(), Process(store).thread()
    ours.put(messages=M[:2])
    theirs.resume()
    theirs.put(messages=[*theirs.values["messages"], M[2]])
    mine = ours.put(messages=[*M[:2], M[3]])
    assert read(store, theirs.config)["messages"] == M[:3]
    assert read(store, mine)["messages"] == [*M[:2], M[3]]
    theirs.resume()
    assert read(store, theirs.put(messages=[*theirs.values["messages"], M[4]]))["messages"] == [
        *M[:2],
        M[3],
        M[4],
    ]


@pytest.mark.parametrize("read_first", [False, True])
def test_nothing_is_built_upon_what_a_lost_run_had_staged(store: Store, read_first: bool) -> None:
    process = Process(store)
    thread = process.thread()
    base = thread.put(messages=M[:2])
    lost = process.run = Run(store)
    thread.resume()
    thread.put(messages=[*thread.values["messages"], M[2]])
    lost.lose()
    run = process.run = Run(store)
    if read_first:
        assert thread.resume().config == base
    config = thread.put(messages=[*M[:3], M[3]])
    run.flush()
    assert read(store, config)["messages"] == M[:4]
    process.run = None
    assert read(store, thread.put(messages=M[:5]))["messages"] == M[:5]


def test_forget(store: Store) -> None:
    process, run = in_a_run(store)
    thread, other = process.thread(), process.thread("other")
    thread.put(messages=M[:3])
    other.put(messages=M[:3])
    run.lose()
    other_before = process.saver._lists.get(run, ("other", ""))
    process.saver.forget("thread")
    config = thread.put(messages=M[:4])
    run.flush()
    assert read(store, config)["messages"] == M[:4]
    assert process.saver._lists.get(run, ("other", "")) == other_before


def test_a_put_after_a_resume_is_a_delta(store: Store) -> None:
    grow(Process(store), 50, 1, "thread")
    process, run = in_a_run(store)
    thread = process.thread()
    thread.resume()
    thread.put(messages=[*thread.values["messages"], M[0]])
    items = next(s for s in run.staged if "langgraph_item" in s.sql)
    assert len(items.rows) == 2  # the message and its node
    assert len(repr(items.rows)) < 1000


def test_a_thread_that_was_deleted_elsewhere_starts_anew(store: Store) -> None:
    process = Process(store)
    process.thread().put(messages=[{"text": "a" * 99}, {"text": "b" * 99}])
    Process(store).saver.delete_thread("thread")
    thread = process.thread()
    assert process.saver.get_tuple(thread.config) is None
    config = thread.put(messages=[{"text": "a" * 99}, {"text": "b" * 99}, {"text": "c" * 99}])
    assert len(read(store, config)["messages"]) == 3


def test_missing_rows_are_an_error(store: Store) -> None:
    thread = Process(store).thread()
    config = thread.put(messages=M[:2])
    store.execute("DELETE FROM langgraph_item WHERE base IS NULL AND type <> 'list'")
    with pytest.raises(DurableError, match="part of its state is missing"):
        read(store, config)
    store.execute("DELETE FROM langgraph_item")
    with pytest.raises(DurableError, match="part of its state is missing"):
        read(store, config)


def test_memory_is_bounded(store: Store) -> None:
    process, run = in_a_run(store)
    for i in range(300):
        process.thread(f"thread {i}").put(messages=M[:1])
    config: RunnableConfig = {
        "configurable": {"thread_id": "thread", "checkpoint_ns": "", "checkpoint_id": "1"}
    }
    for i in range(5000):
        process.saver.record_writes(config, [("i", i)], f"task {i}")
    assert len(process.saver._lists._runs[run]) == 256
    assert len(process.saver._recorded) == 4096
    process.run = None
    del run
    gc.collect()
    assert not process.saver._lists._runs


def test_many_threads_at_once(store: Store) -> None:
    process = Process(store)

    def work(id: str) -> None:
        grow(process, 3, 20, id)

    workers = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i in range(8):
        head = process.thread(f"thread {i}").resume()
        assert len(head.checkpoint["channel_values"]["messages"]) == 23


# -- pending writes


def pending(store: Store, config: RunnableConfig) -> list[tuple[str, str, Any]]:
    found = Process(store).saver.get_tuple(config)
    assert found is not None
    return found.pending_writes or []


def test_pending_writes_come_in_the_order_of_their_tasks(store: Store) -> None:
    process = Process(store)
    config = process.thread().put(i=0)
    for path, task in (("~b", "1"), ("~a", "3"), ("", "9"), ("~a", "2")):
        process.saver.put_writes(config, [("x", f"{path}{task}"), ("y", [M[0]])], task, path)
    assert [w[:2] for w in pending(store, config)] == [
        (t, c) for t in ("9", "2", "3", "1") for c in ("x", "y")
    ]
    assert [w[2] for w in pending(store, config)][1::2] == [[M[0]]] * 4


def test_special_writes_replace_and_others_stay(store: Store) -> None:
    process = Process(store)
    config = process.thread().put(i=0)
    process.saver.put_writes(config, [("x", 1), (RESUME, ["a"])], "task")
    process.saver.put_writes(config, [("x", 2), (RESUME, ["a", "b"]), ("y", 3)], "task")
    process.saver.put_writes(config, [(ERROR, ValueError("odd"))], "other")
    process.saver.put_writes(config, [(INTERRUPT, "old")], "other")
    process.saver.put_writes(config, [(INTERRUPT, "new")], "other")
    found = pending(store, config)
    assert sorted(found[:2]) == [("other", ERROR, repr(ValueError("odd"))), ("other", INTERRUPT, "new")]
    assert found[2:] == [("task", RESUME, ["a", "b"]), ("task", "x", 1), ("task", "y", 3)]


def test_recorded_writes_are_not_repeated(store: Store) -> None:
    process, run = in_a_run(store)
    config = process.thread().put(i=0)
    writes = [("messages", [M[0]]), ("i", 1)]
    rows = process.saver.record_writes(config, writes, "task", "~path")
    run.flush()
    store.write(rows)
    process.saver.put_writes(config, list(writes), "task", "~path")
    assert run.staged == []
    process.saver.put_writes(config, list(writes), "task", "~path")
    assert run.staged != []
    run.flush()
    assert pending(store, config) == [("task", "messages", [M[0]]), ("task", "i", 1)]


def test_other_writes_of_a_recorded_task_are_stored(store: Store) -> None:
    process = Process(store)
    config = process.thread().put(i=0)
    store.write(process.saver.record_writes(config, [(INTERRUPT, "first")], "task"))
    process.saver.put_writes(config, [(INTERRUPT, "second")], "task")
    assert pending(store, config) == [("task", INTERRUPT, "second")]


# -- a run stages, and reads what it has staged


def test_a_run_writes_nothing_by_itself_and_reads_all(store: Store) -> None:
    process, _ = in_a_run(store)
    thread = process.thread()
    config = thread.put(messages=M[:2], i=1)
    process.saver.put_writes(config, [("i", 2)], "task")
    assert count(store, "checkpoint") == count(store, "write") == count(store, "item") == 0
    assert [len(t.pending_writes or ()) for t in process.saver.list(config)] == [1]
    process.saver.delete_thread("thread")
    assert count(store, "checkpoint") == 1
    assert process.saver.get_tuple(config) is None
    assert [count(store, table) for table in ("checkpoint", "channel", "item", "write")] == [0, 0, 0, 0]


async def test_inside_a_run_async_writes_need_no_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = in_a_run(store)
    thread, hops, native = process.thread(), [], asyncio.to_thread
    config = await asyncio.to_thread(thread.put, messages=M[:2])

    async def to_thread(work: Any, *args: Any) -> Any:
        hops.append(work)
        return await native(work, *args)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    await process.saver.aput_writes(config, [("i", 2)], "task")
    assert not hops
    found = await process.saver.aget_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "i", 2)]
    process.run = None
    await process.saver.aput_writes(config, [("i", 2)], "other")
    assert len(hops) == 2
    assert [t.config async for t in process.saver.alist(None)] == [config]


def test_head(store: Store) -> None:
    process = Process(store)
    thread = process.thread()
    assert process.saver.head("thread") is None
    config = thread.put(messages=M[:2])
    assert process.saver.head("thread") == Head(config["configurable"]["checkpoint_id"], None, False)
    process.run = Run(store, "order-55")
    config = thread.put(messages=M[:3])
    process.saver.put_writes(config, [("messages", [M[3]])], "task")
    assert process.saver.head("thread") == Head(config["configurable"]["checkpoint_id"], "order-55", False)
    process.saver.put_writes(config, [(RESUME, "yes")], NULL_TASK_ID)
    assert process.saver.head("thread") == Head(config["configurable"]["checkpoint_id"], "order-55", True)
    process.saver.copy_thread("thread", "copy")
    assert process.saver.head("copy") == process.saver.head("thread")


# -- the same as LangGraph's own saver


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], operator.add]
    topic: str
    facts: dict[str, int]
    rounds: int


def build(saver: BaseCheckpointSaver[Any]) -> Any:
    """Two parallel nodes, a fan-out, a question, and messages that come, change and go."""
    builder = StateGraph(State)

    def think(state: State) -> State:
        number = state.get("rounds", 0)
        return {
            "messages": [AIMessage(f"thought {number}", id=f"ai{number}")],
            "log": ["think"],
            "rounds": number + 1,
        }

    def trim(state: State) -> State:
        first = state["messages"][0]
        changed = HumanMessage("changed", id=state["messages"][-1].id)
        return {
            "messages": [RemoveMessage(id=str(first.id)), changed],
            "facts": {"n": len(state["messages"])},
        }

    def fan(state: State) -> list[Send]:
        return [Send("work", {"topic": f"part {i}"}) for i in range(3)]

    def work(state: State) -> State:
        return {"log": [state["topic"]]}

    def ask(state: State) -> State:
        return {"log": [interrupt("go on?")]}

    for node in (think, trim, work, ask):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "think")
    builder.add_edge(START, "trim")
    builder.add_conditional_edges("think", fan, ["work"])
    builder.add_edge("work", "ask")
    builder.add_conditional_edges("ask", lambda s: "think" if s["rounds"] < 3 else END, ["think", END])
    return builder.compile(checkpointer=saver)


def converse(graph: Any, config: RunnableConfig) -> None:
    graph.invoke({"messages": [human(f"h{i}", f"hello {i}") for i in range(3)]}, config)
    graph.invoke(Command(resume="yes"), config)
    graph.update_state(config, {"log": ["by hand"], "facts": {"a": 1}}, as_node="think")
    past = list(graph.get_state_history(config))
    fork = graph.update_state(past[3].config, {"messages": [human("fork", "another way")]})
    graph.invoke(None, fork)
    graph.invoke(None, past[-1].config)
    graph.invoke(Command(resume="no"), config)
    graph.update_state(config, None, as_node="__copy__")


def described(graph: Any, config: RunnableConfig) -> list[Any]:
    return [
        (
            s.values,
            s.next,
            [(t.name, t.interrupts and t.interrupts[0].value, t.result) for t in s.tasks],
            s.metadata["source"],
        )
        for s in graph.get_state_history(config)
    ]


def test_a_conversation_with_branches_reads_as_with_langgraphs_saver(store: Store) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "thread"}}
    ours, native = build(Process(store).saver), build(InMemorySaver())
    for graph in (ours, native):
        converse(graph, config)
    assert described(build(Process(store).saver), config) == described(native, config)


class Grown(TypedDict):
    items: Annotated[
        list[Any],
        DeltaChannel(lambda state, writes: [*state, *(x for w in writes for x in w)], snapshot_frequency=4),
    ]
    rounds: int


def test_delta_channels_are_rebuilt(store: Store) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "thread"}}

    def build(saver: BaseCheckpointSaver[Any]) -> Any:
        builder = StateGraph(Grown)
        for name in ("left", "right"):
            builder.add_node(name, lambda s, name=name: {"items": [f"{name} {s['rounds']}", M[0]]})
        builder.add_node("turn", lambda s: {"rounds": s["rounds"] + 1})
        builder.add_edge(START, "turn")
        builder.add_edge("turn", "left")
        builder.add_edge("turn", "right")
        builder.add_conditional_edges("left", lambda s: "turn" if s["rounds"] < 9 else END, ["turn", END])
        return builder.compile(checkpointer=saver)

    graphs = build(Process(store).saver), build(InMemorySaver())
    for graph in graphs:
        graph.invoke({"items": ["start"], "rounds": 0}, {**config, "recursion_limit": 100})
        graph.update_state(
            list(graph.get_state_history(config))[5].config, {"items": ["branch"]}, as_node="left"
        )
    assert described(graphs[0], config) == described(graphs[1], config)
    saver = Process(store).saver
    for checkpoint in saver.list(config):
        ask: dict[str, Any] = {"config": checkpoint.config, "channels": ["items", "rounds", "nothing"]}
        native = BaseCheckpointSaver.get_delta_channel_history(saver, **ask)
        assert saver.get_delta_channel_history(**ask) == native


# -- listing, copying, deleting


def test_list(store: Store) -> None:
    process = Process(store)
    thread = process.thread()
    configs = [thread.put(i=i, messages=M[:i]) for i in range(6)]
    process.thread("other").put(i=0)
    Process(store, space="elsewhere").thread().put(i=0)
    saver = process.saver
    ids = [config["configurable"]["checkpoint_id"] for config in configs][::-1]

    def listed(config: RunnableConfig | None, **options: Any) -> list[str]:
        return [t.checkpoint["id"] for t in saver.list(config, **options)]

    base: RunnableConfig = {"configurable": {"thread_id": "thread"}}
    assert listed(base) == ids
    assert listed(base, limit=2) == ids[:2]
    assert listed(base, before=configs[3], limit=2) == ids[3:5]
    assert listed(configs[1]) == [ids[-2]]
    assert listed(base, filter={"source": "loop", "step": 0}, limit=1) == ids[:1]
    assert listed(base, filter={"step": 1}) == []
    assert len(listed(None)) == 7
    assert [len(t.checkpoint["channel_values"]["messages"]) for t in saver.list(base)] == [5, 4, 3, 2, 1, 0]
    assert [t.parent_config for t in saver.list(base)] == [*configs[4::-1], None]


def test_metadata(store: Store) -> None:
    saver = Process(store).saver
    config: RunnableConfig = {
        "configurable": {"thread_id": "thread", "checkpoint_ns": "", "user": "ann", "__private": 1},
        "metadata": {"run_name": "nul\0", "odd": object(), "count": 3},
    }
    saved = saver.put(config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})
    found = saver.get_tuple(saved)
    assert found is not None
    assert found.metadata == {
        "source": "input",
        "step": -1,
        "parents": {},
        "user": "ann",
        "run_name": "nul",
        "count": 3,
    }
    with pytest.raises(EncodingError, match="metadata"):
        saver.put(config, empty_checkpoint(), {"source": "input", "odd": object()}, {})  # type: ignore[typeddict-unknown-key]


def test_copy_and_delete(store: Store) -> None:
    process = Process(store)
    thread = process.thread()
    thread.put(messages=M[:3])
    config = thread.put(messages=M[:4])
    process.saver.put_writes(config, [("messages", [M[5]])], "task")
    process.saver.copy_thread("thread", "copy")
    process.saver.delete_thread("thread")
    assert process.saver.get_tuple(config) is None
    copy = process.thread("copy")
    assert copy.resume().pending_writes == [("task", "messages", [M[5]])]
    assert read(store, copy.put(messages=[*copy.values["messages"], M[6]]))["messages"] == [*M[:4], M[6]]


def test_versions_grow_and_are_greater_than_those_of_langgraphs_savers(store: Store) -> None:
    saver = Process(store).saver
    native = InMemorySaver()
    version = native.get_next_version(None, None)
    for _ in range(12):
        version = native.get_next_version(version, None)
    ours = [version]
    for _ in range(1200):
        ours.append(saver.get_next_version(ours[-1], None))
    assert ours == sorted(ours)
    assert len({saver.get_next_version("1", None) for _ in range(1000)}) == 1000
    random.seed(1)
    one = saver.get_next_version(None, None)
    random.seed(1)
    assert saver.get_next_version(None, None) != one


# -- types


class Secret:
    """Not on any list."""


@pytest.mark.parametrize(
    "value", [Note("x"), [Note("x")], {"a": [Note("x")]}, Secret(), [Secret()], {1: Secret()}, 2**70]
)
def test_a_type_that_is_not_allowed_fails_when_it_is_written(store: Store, value: Any) -> None:
    process = Process(store)
    config = process.thread().put(i=0)
    named = r"channel 'facts'.*(Note|Secret|64-bit)"
    with pytest.raises(EncodingError, match=named):
        process.thread().put(facts=value)
    with pytest.raises(EncodingError, match=named):
        process.saver.put_writes(config, [("facts", value)], "task")
    with pytest.raises(EncodingError, match=named):
        process.saver.record_writes(config, [("facts", value)], "task")
    assert [count(store, table) for table in ("checkpoint", "write")] == [1, 0]


def test_allowed_types(store: Store) -> None:
    config = Process(store, allowed=(Note,)).thread().put(facts={"a": Note("x")}, notes=[Note("y")])
    assert read(store, config, (Note,)) == {"facts": {"a": Note("x")}, "notes": [Note("y")]}
    saver = Process(store).saver
    with pytest.raises(EncodingError, match=r"channel '(facts|notes)'.*Note"):
        saver.get_tuple(config)
    extended = saver.with_allowlist([(Note.__module__, "Note")])
    assert isinstance(extended, DurableSaver)
    found = extended.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"]["notes"] == [Note("y")]


def called(*args: object) -> None:
    raise AssertionError("a name from the database was called")


@pytest.mark.parametrize("extension", [0, 1, 2, 3, 4, 5, 8])
def test_reading_calls_nothing_that_only_the_database_names(store: Store, extension: int) -> None:
    config = Process(store).thread().put(facts={"a": 1})
    hostile = ormsgpack.packb(ormsgpack.Ext(extension, ormsgpack.packb((__name__, "called", {}, "__call__"))))
    store.execute("UPDATE langgraph_channel SET body = ?", (hostile,))
    with pytest.raises(EncodingError, match="facts"):
        read(store, config)


@pytest.mark.parametrize("format", ["json", "pickle", "yaml"])
def test_reading_knows_no_other_format(store: Store, format: str) -> None:
    config = Process(store).thread().put(facts={"a": 1})
    store.execute("UPDATE langgraph_channel SET type = ?, body = ?", (format, b"{}"))
    with pytest.raises(EncodingError, match=format):
        read(store, config)


def test_a_class_that_cannot_be_found_again_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Local:
        text: str

    serde = strict_serde([Local])
    serde.dumps_typed(Local("a"))
    serde.dumps_typed(Local("b"))
    assert len([record for record in caplog.records if "Local" in record.message]) == 1
