"""Per superstep of a 40-superstep graph with 10, 100 and 1000 messages: no checkpointer, the native savers, ours."""

import contextlib
import operator
import secrets
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

import durable_agents
from durable_agents.langgraph import DurableGraph

SUPERSTEPS = 40
SIZES = (10, 100, 1000)


class State(TypedDict):
    messages: Annotated[list[Any], operator.add]
    done: int
    wanted: int


MOMENTS: list[float] = []
"""When the node was entered, in the run that is measured."""


def text() -> str:
    """300 characters that no database compresses away."""
    return secrets.token_hex(150)


def build() -> Any:
    def node(state: State) -> dict[str, Any]:
        MOMENTS.append(time.perf_counter())
        return {"messages": [AIMessage(text(), id=f"a{state['done']}")], "done": state["done"] + 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: END if state["done"] >= state["wanted"] else "node")
    return graph.compile()


@dataclass
class Variant:
    """One way to keep the state: how to run the graph, and how many bytes its database has and has written."""

    name: str
    invoke: Callable[[dict[str, Any], Any], Any]
    table_bytes: Callable[[], int] = lambda: 0
    log_bytes: Callable[[], int] = lambda: 0
    best: dict[int, float] = field(default_factory=dict)
    bytes: dict[int, tuple[float, float]] = field(default_factory=dict)

    def run(self, size: int, supersteps: int) -> None:
        messages = [HumanMessage(text(), id=f"h{number}") for number in range(size)]
        config = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": 1000}
        MOMENTS.clear()
        self.invoke({"messages": messages, "done": 0, "wanted": supersteps}, config)

    def measure_time(self, size: int) -> None:
        self.run(size, SUPERSTEPS + 1)
        self.best[size] = min(self.best.get(size, 1e9), (MOMENTS[-1] - MOMENTS[0]) / SUPERSTEPS * 1000)

    def measure_bytes(self, size: int, threads: int = 4) -> None:
        """Growth over whole runs less growth over runs of one superstep."""

        def grown(supersteps: int) -> tuple[int, int]:
            tables, log = self.table_bytes(), self.log_bytes()
            for _ in range(threads):
                self.run(size, supersteps)
            log = self.log_bytes() - log  # first: counting the tables writes to the log too
            return self.table_bytes() - tables, log

        (tables, log), (first_tables, first_log) = grown(SUPERSTEPS + 1), grown(1)
        count = SUPERSTEPS * threads
        self.bytes[size] = ((tables - first_tables) / count, (log - first_log) / count)


def report(name: str, url: str, rounds: int) -> None:
    """Measure on this database and print a table."""
    graph = build()
    durable_agents.launch(url)
    with contextlib.ExitStack() as stack:
        open_variants = _on_sqlite if name == "sqlite" else _on_postgres
        variants = list(open_variants(graph, url, stack))
        for size in SIZES:
            for _ in range(max(2, rounds // 2)):
                for variant in variants:
                    variant.measure_time(size)
            for variant in variants[1:]:
                variant.measure_bytes(size)
    durable_agents.shutdown()
    print(
        f"\n{name}: per superstep of {SUPERSTEPS}, one message of 300 characters each (bytes: tables, written)"
    )
    print("  " + " " * 18 + "".join(f"{f'{size} messages':>31}" for size in SIZES))
    for variant in variants:
        cells = []
        for size in SIZES:
            tables, log = variant.bytes.get(size, (0, 0))
            cells.append(f"{variant.best[size]:8.2f} ms{tables:10.0f}{log:10.0f}")
        print(f"  {variant.name:18}{''.join(cells)}")


def _durable(graph: Any, name: str, tables: Callable[[], int], log: Callable[[], int]) -> Variant:
    durable = DurableGraph(graph, f"bench_{name}")
    return Variant("DurableGraph", lambda input, config: durable.invoke(input, config), tables, log)


def _on_sqlite(graph: Any, url: str, stack: contextlib.ExitStack) -> Iterator[Variant]:
    path = Path(url.removeprefix("sqlite:///"))
    native_path = path.with_name("native.sqlite")
    connection = stack.enter_context(
        contextlib.closing(sqlite3.connect(native_path, check_same_thread=False))
    )
    saver = SqliteSaver(connection)
    saver.setup()
    connection.execute("PRAGMA synchronous=FULL")
    native = graph.copy({"checkpointer": saver})
    yield Variant("no checkpointer", graph.invoke)
    yield Variant(
        "SqliteSaver", lambda input, config: native.invoke(input, config, durability="sync"),
        lambda: _sqlite_bytes(native_path), _written_bytes,
    )  # fmt: skip
    yield _durable(graph, "sqlite", lambda: _sqlite_bytes(path), _written_bytes)


def _sqlite_bytes(path: Path) -> int:
    """Size of the file with its pages packed, so that half-filled ones do not blur a few kilobytes."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("VACUUM")
        (pages,), (size,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
        )
    return int(pages * size)


def _written_bytes() -> int:
    """What this process has written to files: log, and tables when the log is emptied into them (Linux)."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["wchar"])


def _on_postgres(graph: Any, url: str, stack: contextlib.ExitStack) -> Iterator[Variant]:
    saver = stack.enter_context(PostgresSaver.from_conn_string(url))
    saver.setup()
    native = graph.copy({"checkpointer": saver})
    watch = stack.enter_context(psycopg.connect(url, autocommit=True))

    def tables(*schemas: str) -> int:
        """Size of all tables of these schemas with their indexes, packed."""
        total = 0
        found = watch.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s)", (list(schemas),)
        )
        for schema, table in found.fetchall():
            watch.execute(f'VACUUM FULL "{schema}"."{table}"')
            ((size,),) = watch.execute(f'SELECT pg_total_relation_size(\'"{schema}"."{table}"\')').fetchall()
            total += size
        return total

    def log() -> int:
        return int(watch.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()[0])

    yield Variant("no checkpointer", graph.invoke)
    yield Variant(
        "PostgresSaver", lambda input, config: native.invoke(input, config, durability="sync"),
        lambda: tables("public"), log,
    )  # fmt: skip
    yield _durable(graph, "postgresql", lambda: tables("dbos", "durable_agents"), log)
