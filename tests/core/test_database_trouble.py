"""A database that is away, locked, full or read-only for a while: what has happened is recorded when it is well again.

A step's effect cannot be taken back, so its record is not given up, and nothing runs twice.
"""

import asyncio
import logging
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import durable_agents
import postgres
from core.harness import SOURCES, Programs, drive, eventually
from durable_agents import errors, runs
from durable_agents._core import RUN, Statement, astep, background, emit, engine, journal, step
from durable_agents._core.errors import OwnershipLost
from durable_agents._core.store import Store, base, open_store, sqlite
from durable_agents._core.worker import Liveness, Worker
from plain import Plain

Agent = Callable[..., Plain]
BIG = "x" * 20_000
"""Too much for the room that is left in the pages of a full database."""
LASTS = 0.7
"""Seconds; longer than any patience here."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody waits for long, and nothing is left running."""
    monkeypatch.setattr(base, "PATIENCE", 0.4)
    monkeypatch.setattr(base, "BRIEF", 0.1)
    monkeypatch.setattr(base, "LOCK_WAIT", 0.1)
    monkeypatch.setattr(journal, "_LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(background, "_SHUTDOWN_SECONDS", 0.5)
    monkeypatch.setattr(background, "_FAREWELL_SECONDS", 2.0)
    yield
    durable_agents.shutdown()
    engine.RUNNERS.clear()


@pytest.fixture
def here(database_url: str) -> str:
    """This process as a worker on the database."""
    launch(database_url)
    return database_url


def launch(url: str) -> None:
    durable_agents.launch(url, poll=0.05, heartbeat=0.05, grace=0.2)


# -- what a database can suffer from


@contextmanager
def locked(store: Store, _: postgres.Server | None) -> Iterator[None]:
    """Another process holds its lock on everything that is written."""
    if isinstance(store, sqlite.SqliteStore):
        hold = "import sqlite3, sys; other = sqlite3.connect(sys.argv[1]); other.execute('BEGIN EXCLUSIVE')"
        command = [sys.executable, "-Sc", f"{hold}; print('held', flush=True); input()", str(store.path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdout.readline()
            yield
            other.stdin.write("\n")
        return
    with psycopg.connect(store.url) as connection:
        connection.execute("LOCK TABLE dbos.operation_outputs, durable_agents.durable_agents_worker")
        yield


@contextmanager
def full(store: Store, _: postgres.Server | None, table: str = "dbos.operation_outputs") -> Iterator[None]:
    """There is no room for another page; what fits into the ones that are there is still written."""
    if isinstance(store, sqlite.SqliteStore):
        ((pages,),) = store.query("PRAGMA page_count")
        with on_connections(store, f"PRAGMA max_page_count = {pages}", "PRAGMA max_page_count = 1000000000"):
            yield
        return
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION public.no_room() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$"
        )
        connection.execute(
            f"CREATE TRIGGER full_disk BEFORE INSERT ON {table} EXECUTE FUNCTION public.no_room()".encode()
        )
        yield
        connection.execute("DROP FUNCTION public.no_room CASCADE")


@contextmanager
def read_only(store: Store, _: postgres.Server | None) -> Iterator[None]:
    """Nothing at all can be written, as after a failover to a standby; new connections find it so too."""
    if isinstance(store, sqlite.SqliteStore):
        with on_connections(store, "PRAGMA query_only = ON", "PRAGMA query_only = OFF"):
            yield
        return
    elsewhere, name = store.url.rsplit("/", 1)
    with psycopg.connect(f"{elsewhere}/postgres", autocommit=True) as connection:
        setting = f"ALTER DATABASE {name} SET default_transaction_read_only"
        cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        connection.execute(f"{setting} = on")
        connection.execute(cut)
        yield
        connection.execute(f"{setting} = off")


@contextmanager
def away(_: Store, server: postgres.Server | None) -> Iterator[None]:
    """The server is stopped."""
    assert server is not None
    with server.stopped():
        yield


@contextmanager
def on_connections(store: sqlite.SqliteStore, before: str, after: str) -> Iterator[None]:
    def run(pragma: str) -> None:
        for lock, connection in ((store._write_lock, store._writer), (store._pulse_lock, store._pulse)):
            with lock:
                connection.execute(pragma).fetchall()

    run(before)
    yield
    with suppress(sqlite3.ProgrammingError):  # shut down meanwhile
        run(after)


class Trouble:
    """Begins and ends when the test, or the agent, says so."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make, self._lasting = make, ExitStack()
        self._has_begun = threading.Event()

    def begins(self) -> None:
        self._lasting.enter_context(self._make())
        self._has_begun.set()

    def lasts(self, seconds: float = LASTS) -> None:
        """Wait until the agent has met the trouble, and this long after that."""
        assert self._has_begun.wait(20)
        time.sleep(seconds)

    def ends(self) -> None:
        self._lasting.close()


KINDS: dict[str, Any] = {"locked": locked, "full": full, "read-only": read_only, "away": away}
EVERY = [(d, k) for d in ("sqlite", "postgresql") for k in KINDS if (d, k) != ("sqlite", "away")]
FULL = [("sqlite", "full"), ("postgresql", "full")]
"""For us, while others can still write."""
every_trouble = pytest.mark.parametrize(("database_url", "trouble"), EVERY, indirect=True)
full_here = pytest.mark.parametrize(("database_url", "trouble"), FULL, indirect=True)


@pytest.fixture
def trouble(request: pytest.FixtureRequest, database_url: str) -> Iterator[Trouble]:
    """Of the database of the engine that is launched when it begins."""
    needs_server = database_url.startswith("postgresql")
    server = request.getfixturevalue("postgres_server") if needs_server else None
    made = Trouble(lambda: KINDS[request.param](engine.current().store, server))
    yield made
    made.ends()


class Call(threading.Thread):
    """A call of a verb that goes on beside the test."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.result = error

    def ends(self, seconds: float = 10.0) -> Any:
        self.join(seconds)
        assert not self.is_alive(), "the call hangs"
        return self.result


# -- in the middle of a run


@pytest.mark.parametrize(
    ("database_url", "trouble", "is_async"),
    [(*each, False) for each in EVERY] + [(*each, True) for each in (*FULL, ("postgresql", "away"))],
    indirect=["database_url", "trouble"],
)
def test_a_step_that_is_done_waits_for_the_database_and_is_not_done_again(
    agent: Agent, here: str, trouble: Trouble, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "durable_agents")
    effects: list[str] = []

    def body(_: None) -> str:
        step("tool", "before", lambda: effects.append("before"))
        step("tool", "in trouble", lambda: (effects.append("in trouble"), trouble.begins(), BIG)[2])
        return step("tool", "after", lambda: (effects.append("after"), "done")[1])

    async def abody(_: None) -> str:
        async def tool(name: str, *more: Callable[[], object]) -> str:
            effects.append(name)
            for work in more:
                await asyncio.to_thread(work)
            return BIG if more else "done"

        await astep("tool", "before", lambda: tool("before"))
        await astep("tool", "in trouble", lambda: tool("in trouble", trouble.begins))
        return await astep("tool", "after", lambda: tool("after"))

    runner = agent(abody if is_async else body)
    if is_async:
        run = runner.start(run_id="r")
    call = None if is_async else Call(lambda: runner.run(run_id="r"))
    trouble.lasts()
    assert effects == ["before", "in trouble"]
    trouble.ends()
    assert (run.result(10) if call is None else call.ends()) == "done"
    assert effects == ["before", "in trouble", "after"]
    steps = runs.get("r").steps()
    assert [(s.name, s.epoch) for s in steps] == [("before", 1), ("in trouble", 1), ("after", 1)]
    assert len({s.worker for s in steps}) == 1
    assert runs.get("r").status == "succeeded"
    told(caplog, "run 'r': writing the record 'tool:in trouble'")
    next_run_works(agent(lambda _: step("tool", "t", lambda: "done")))


def test_a_record_whose_acknowledgement_was_lost_is_written_once(
    agent: Agent, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again with the same bytes: one that was sealed anew would find its place taken."""
    store, lost = engine.current().store, []
    execute = store.execute

    def cut(sql: str, params: Any = ()) -> int:
        done = execute(sql, params)
        if sql.startswith("INSERT INTO operation_outputs") and not lost:
            lost.append(sql)
            raise unwell(here)
        return done

    monkeypatch.setattr(store, "execute", cut)
    effects: list[str] = []
    body = agent(lambda _: [step("tool", name, lambda name=name: effects.append(name)) for name in "ab"])
    body.run(run_id="r")
    assert lost
    assert effects == ["a", "b"]
    assert [(s.name, s.epoch) for s in runs.get("r").steps()] == [("a", 1), ("b", 1)]


def unwell(url: str) -> Exception:
    """An error that may heal."""
    return (
        of_sqlite("SQLITE_BUSY") if url.startswith("sqlite") else psycopg.OperationalError("connection lost")
    )


def told(caplog: pytest.LogCaptureFixture, what: str) -> None:
    """The trouble was said once, and once that it is over; nothing else flooded the log."""
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "durable_agents"]
    mine = [(level, line) for level, line in lines if line.startswith(what)]
    assert [level for level, _ in mine] == ["WARNING", "INFO"], lines
    assert "fails and is tried again" in mine[0][1]
    assert "works again after" in mine[1][1]
    assert len([level for level, _ in lines if level != "INFO"]) <= 3, lines
    assert not [r for r in caplog.records if r.exc_info], lines


def next_run_works(runner: Plain) -> None:
    """The loops in the background go on by themselves."""
    before = beats()
    assert runner.start(run_id="next").result(10) == "done"
    eventually(lambda: beats() > before)


def beats() -> int:
    ((beat,),) = engine.current().store.query("SELECT beat FROM durable_agents_worker")
    return int(beat)


@full_here
@pytest.mark.parametrize("end", ["close", "wait"])
def test_a_run_that_ends_or_parks_waits_for_the_database(
    agent: Agent, here: str, trouble: Trouble, end: str
) -> None:
    effects: list[str] = []

    def body(_: None) -> Any:
        step("tool", "t", lambda: effects.append("t"))
        trouble.begins()
        return BIG if end == "close" else RUN.get().wait({"q": BIG})  # type: ignore[union-attr]

    runner = agent(body)
    call = Call(lambda: runner.run(run_id="r"))
    trouble.lasts(0.3)
    assert call.is_alive()
    trouble.ends()
    if end == "close":
        assert call.ends() == BIG
    else:
        assert isinstance(call.ends(), errors.RunWaiting)
        assert runs.get("r").questions == {"q": BIG}
    assert effects == ["t"]
    assert runs.get("r").status == ("succeeded" if end == "close" else "waiting")


# -- full for us, while others can write


def elsewhere(url: str, sql: str) -> None:
    """What another process does meanwhile."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other:
            assert other.execute(sql).rowcount == 1
        return
    with psycopg.connect(url, options="-c search_path=durable_agents,dbos") as server:
        assert server.execute(sql.encode()).rowcount == 1


def two_steps(effects: list[str], trouble: Trouble) -> Callable[[Any], Any]:
    """A run that meets the trouble between the first effect and its record."""

    def first() -> str:
        effects.append("first")
        if effects == ["first"]:
            trouble.begins()
        return BIG

    def body(_: None) -> str:
        step("tool", "first", first)
        return step("tool", "second", lambda: (effects.append("second"), "done")[1])

    return body


@full_here
def test_a_run_that_was_taken_over_meanwhile_is_left_to_its_new_owner(
    agent: Agent, idle: str, trouble: Trouble
) -> None:
    effects: list[str] = []
    call = Call(lambda: drive(agent(two_steps(effects, trouble)), run_id="r"))
    trouble.lasts(0)
    elsewhere(idle, "UPDATE workflow_status SET owner_xid = 'thief', executor_id = 'thief'")
    trouble.ends()
    assert isinstance(call.ends(), OwnershipLost)
    assert effects == ["first"]
    assert runs.get("r").steps() == []


@full_here
def test_a_worker_that_was_declared_dead_meanwhile_comes_back_at_once(
    agent: Agent, here: str, trouble: Trouble
) -> None:
    """Its heartbeat does not wait for a record that waits for the database."""
    effects: list[str] = []
    runner = agent(two_steps(effects, trouble))
    run = runner.start(run_id="r")
    trouble.lasts(0)
    worker = engine.current().worker
    dead = worker.id
    elsewhere(here, f"DELETE FROM durable_agents_worker WHERE worker_id = '{dead}'")
    eventually(lambda: worker.id != dead, LASTS)
    trouble.ends()
    assert run.result(10) == "done"
    assert effects == ["first", "first", "second"]  # it was taken from a living worker
    assert [s.epoch for s in run.steps()] == [2, 2]


@full_here
def test_staging_rows_does_not_wait_for_a_record_that_waits(
    agent: Agent, here: str, trouble: Trouble
) -> None:
    """Frameworks stage from their event loop, which must not stand still."""
    effects: list[str] = []
    call = Call(lambda: agent(two_steps(effects, trouble)).run(run_id="r"))
    trouble.lasts(0.2)
    execution = engine.current()._live["r"]
    begun = time.monotonic()
    execution.journal.stage([])
    assert time.monotonic() - begun < 1
    trouble.ends()
    assert call.ends() == "done"


@full_here
def test_state_that_cannot_be_written_yet_costs_neither_the_run_nor_the_heartbeat(
    agent: Agent, here: str, trouble: Trouble
) -> None:
    engine.current().store.migrate_tables("test", (("CREATE TABLE state (value TEXT)",),))
    effects: list[str] = []
    gate = threading.Event()

    def body(_: None) -> str:
        step("tool", "first", lambda: effects.append("first"))
        trouble.begins()
        run = RUN.get()
        assert run is not None
        run.journal.stage([Statement("INSERT INTO state VALUES (?)", ((BIG,),))])
        gate.wait(20)
        return step("tool", "second", lambda: (effects.append("second"), "done")[1])

    call = Call(lambda: agent(body).run(run_id="r"))
    trouble.lasts(0.2)
    before = beats()
    eventually(lambda: beats() > before + 5, LASTS)
    trouble.ends()
    gate.set()
    assert call.ends() == "done"
    assert effects == ["first", "second"]
    assert [s.epoch for s in runs.get("r").steps()] == [1, 1]
    assert engine.current().store.query("SELECT value FROM state") == [(BIG,)]


def test_a_run_that_could_not_be_loaded_is_not_left_to_others_for_ever(
    agent: Agent, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be no others."""
    take, failed = engine.Engine.take, []

    def fails_once(*arguments: Any) -> Any:
        if not failed:
            failed.append(1)
            raise unwell(here)
        return take(*arguments)

    monkeypatch.setattr(engine.Engine, "take", fails_once)
    assert agent(lambda _: 1).start(run_id="r").result(10) == 1
    assert failed


# -- the end of a process


@every_trouble
def test_shutdown_ends_in_time_and_raises_nothing(agent: Agent, here: str, trouble: Trouble) -> None:
    effects: list[str] = []
    runner = agent(two_steps(effects, trouble))
    call = Call(lambda: runner.run(run_id="r"))
    trouble.lasts(0.2)
    begun = time.monotonic()
    durable_agents.shutdown()
    assert time.monotonic() - begun < 4
    assert isinstance(call.ends(5), errors.RunReleased)
    trouble.ends()
    launch(here)
    assert runs.get("r").result(10) == "done"
    assert effects == ["first", "first", "second"]  # the record of the first one never reached the database
    assert [s.path for s in runs.get("r").steps()] == ["tool:first", "tool:second"]


@pytest.mark.parametrize(("database_url", "trouble"), [("sqlite", "full")], indirect=True)
def test_shutdown_ends_in_time_although_the_heartbeat_hangs_in_the_driver(
    agent: Agent, here: str, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    call = Call(lambda: agent(two_steps([], trouble)).run(run_id="r"))
    trouble.lasts(0)
    monkeypatch.setattr(engine.current(), "_beat", lambda: hangs.wait(30))
    begun = time.monotonic()
    time.sleep(0.2)
    durable_agents.shutdown()
    assert time.monotonic() - begun < 5
    assert isinstance(call.ends(1), errors.RunReleased)
    hangs.set()


PROGRAM = """
import logging, sys, time, pathlib
sys.path[:0] = {sources!r}
import durable_agents
from durable_agents._core import background, step
from plain import Plain

background._SHUTDOWN_SECONDS, background._FAREWELL_SECONDS = 0.5, 1.0

def tool():
    print("in the step", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)

durable_agents.launch({url!r})
Plain(lambda _: step("tool", "t", tool), "ending").start(run_id="r")
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("database_url", "kind"), [("sqlite", "locked"), ("postgresql", "away")], indirect=["database_url"]
)
def test_a_process_ends_although_the_database_is_unwell(
    database_url: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("postgres_server") if kind == "away" else None
    script = PROGRAM.format(sources=[str(p) for p in SOURCES], url=database_url)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        closing(open_store(database_url)) as store,
        subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, text=True, **pipes) as process,  # type: ignore[call-overload]
    ):
        assert process.stdout.readline() == "in the step\n"
        with KINDS[kind](store, server):
            (tmp_path / "go").touch()
            time.sleep(0.3)
            begun = time.monotonic()
            _, said = process.communicate(timeout=20)
            assert time.monotonic() - begun < 6
        assert process.returncode == 0
        assert "Traceback" not in said
    Plain(lambda _: step("tool", "t", lambda: "again"), "ending")
    launch(database_url)
    assert runs.get("r").result(10) == "again"


@pytest.mark.parametrize(("database_url", "trouble"), [("sqlite", "full")], indirect=True)
def test_ctrl_c_ends_a_call_whose_record_waits(agent: Agent, here: str, trouble: Trouble) -> None:
    effects: list[str] = []
    caller = threading.get_ident()
    Call(lambda: (trouble.lasts(0.3), signal.pthread_kill(caller, signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        agent(two_steps(effects, trouble)).run(run_id="r")
    assert effects == ["first"]
    assert engine.current().store.query("SELECT status, owner_xid FROM workflow_status") == [
        ("ENQUEUED", None)
    ]


# -- after it


@pytest.mark.parametrize(("database_url", "trouble"), [("postgresql", "read-only")], indirect=True)
def test_connections_to_what_is_no_primary_any_more_are_not_used_again(idle: str, trouble: Trouble) -> None:
    store = engine.current().store
    trouble.begins()
    readers = [Call(lambda: store.query("SELECT pg_sleep(0.2)")) for _ in range(4)]
    for reader in readers:
        reader.ends()
    trouble.ends()
    mark = "UPDATE durable_agents_worker SET label = 'written'"
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        store.execute(mark)
    assert store.execute(mark) == 1


# -- at launch


@every_trouble
def test_a_database_that_is_unwell_at_launch_is_said_at_once(
    database_url: str, trouble: Trouble, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = request.node.callspec.params["trouble"]
    server = request.getfixturevalue("postgres_server") if database_url.startswith("postgresql") else None
    with closing(open_store(database_url)) as store, ExitStack() as lasting:
        if kind == "full" and server is not None:
            lasting.enter_context(full(store, server, "durable_agents.durable_agents_worker"))
        elif kind in ("full", "read-only") and server is None:
            lasting.enter_context(opened_so(kind, store, monkeypatch))
        else:
            lasting.enter_context(KINDS[kind](store, server))
        begun = time.monotonic()
        with pytest.raises(errors.ConfigurationError) as caught:
            launch(database_url)
        assert time.monotonic() - begun < 3
        reason = {"locked": "lock", "full": "full|no space", "read-only": "read-?only", "away": "refused"}
        assert re.search(reason[kind], str(caught.value))
        assert engine.launched() is None
        names = [thread.name for thread in threading.enumerate()]
        assert not {"durable-agents-beat", "durable-agents-claim"} & set(names)
        if isinstance(store, sqlite.SqliteStore):
            assert not list(store._lock_path("any").parent.glob("*"))
    launch(database_url)


@contextmanager
def opened_so(kind: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connections to a file that may not be written, or that has no room, made while this lasts."""
    assert isinstance(store, sqlite.SqliteStore)
    connect, path = sqlite3.connect, store.path
    if kind == "full":
        path.unlink()  # what is there already would leave room for a worker

    def other(database: str, **options: Any) -> sqlite3.Connection:
        if kind == "read-only":
            return connect(f"file:{path}?mode=ro", uri=True, **options)
        made = connect(database, **options)
        made.execute("PRAGMA max_page_count = 3").fetchall()
        return made

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", other)
        yield


# -- what may heal


def of_sqlite(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(name)
    error.sqlite_errorcode = getattr(sqlite3, name)
    return error


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_may_heal_on_sqlite(database_url: str) -> None:
    heals = [
        "BUSY",
        "BUSY_SNAPSHOT",
        "LOCKED",
        "FULL",
        "READONLY",
        "IOERR",
        "IOERR_FSYNC",
        "CANTOPEN",
        "PROTOCOL",
    ]
    with closing(open_store(database_url)) as store:
        for name in heals:
            assert store.may_heal(of_sqlite(f"SQLITE_{name}")), name
        for name in ("ERROR", "CONSTRAINT", "CONSTRAINT_CHECK", "CORRUPT", "NOTADB", "MISMATCH", "TOOBIG"):
            assert not store.may_heal(of_sqlite(f"SQLITE_{name}")), name
        for error in (
            sqlite3.ProgrammingError("Cannot operate on a closed database"),
            ValueError(),
            OwnershipLost(),
        ):
            assert not store.may_heal(error)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_what_may_heal_on_postgresql(database_url: str) -> None:
    heals = [
        "08006",
        "25006",
        "25P03",
        "40001",
        "40P01",
        "53100",
        "53200",
        "53300",
        "55P03",
        "57014",
        "57P01",
        "57P03",
    ]
    with closing(open_store(database_url)) as store:
        for state in (*heals, "58030"):
            assert store.may_heal(psycopg.errors.lookup(state)("no")), state
        for state in ("22001", "22021", "23505", "23514", "42501", "42601", "42P01", "54000", "XX001"):
            assert not store.may_heal(psycopg.errors.lookup(state)("no")), state
        for lost in (psycopg.OperationalError("connection refused"), psycopg.InterfaceError("is closed")):
            assert store.may_heal(lost)
        for ours in (
            psycopg.DataError("NUL"),
            psycopg.ProgrammingError("too few"),
            ValueError(),
            OwnershipLost(),
        ):
            assert not store.may_heal(ours)


# -- workers, when the server restarts


on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def watches(worker: Worker, seconds: float) -> None:
    """What the heartbeat of a worker does for some time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        worker.beat()
        worker.sweep()
        time.sleep(0.02)


@on_postgresql
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_of_the_server_is_no_death_of_who_comes_back_late(
    database_url: str, postgres_server: postgres.Server, mode: Any
) -> None:
    """It has freed the lock of everybody, and for a while nobody's counter moves."""
    times = Liveness(heartbeat=0.02, grace=0.2, lease=1.0)
    with closing(open_store(database_url)) as here, closing(open_store(database_url)) as there:
        first, late = Worker(here, times), Worker(there, times)
        late.beat()
        watches(first, 0.1)
        postgres_server.restart(mode)
        watches(first, 0.7)
        assert late.beat()
        late._lock.release()  # now its process is gone
        watches(first, 1.0)
        assert not late.beat()
        first.leave()


@on_postgresql
def test_two_workers_keep_their_runs_over_restarts_of_the_server(
    programs: Programs, postgres_server: postgres.Server
) -> None:
    started = [programs.start("agents", "run", "gated", run_id) for run_id in ("one", "two")]
    eventually(lambda: programs.ledger.effects().count("held") == 2, what=started[0].output)
    for mode in ("fast", "immediate", "fast"):
        postgres_server.restart(mode)  # type: ignore[arg-type]
        time.sleep(0.8)
    (programs.home / "open").touch()
    for program in started:
        assert program.ends(20) == 0, program.output
        assert program.says('["through", "last"]')
        assert "dead" not in program.output
    assert sorted(programs.ledger.effects()) == ["first", "first", "held", "held", "last", "last"]
    launch(programs.database_url)
    for run_id in ("one", "two"):
        assert [s.epoch for s in runs.get(run_id).steps()] == [1, 1, 1]


@every_trouble
def test_a_frozen_process_that_thaws_into_trouble_waits_for_the_database(
    agent: Agent, here: str, trouble: Trouble
) -> None:
    """Before it begins a step it asks whether the run is still its own; that question is no failure of the agent."""
    calls: list[str] = []

    def body(_: None) -> str:
        step("tool", "first", lambda: calls.append("first"))
        trouble.begins()
        time.sleep(0.5)  # longer than the grace
        step("tool", "second", lambda: calls.append("second"))
        return "done"

    call = Call(lambda: agent(body).run(run_id="r"))
    trouble.lasts(1.2)
    trouble.ends()
    assert call.ends() == "done"
    assert calls == ["first", "second"]


@every_trouble
def test_a_child_run_is_started_when_the_database_is_well_again(
    agent: Agent, here: str, trouble: Trouble
) -> None:
    child = agent(lambda n: n * 10)

    def body(_: None) -> Any:
        step("tool", "first", lambda: None)
        trouble.begins()
        return child.start(3).result(timeout=20)

    call = Call(lambda: agent(body).run(run_id="r"))
    trouble.lasts()
    trouble.ends()
    assert call.ends(20) == 30
    assert len(runs.list()) == 2


@every_trouble
def test_start_says_that_the_database_cannot_be_used(agent: Agent, here: str, trouble: Trouble) -> None:
    runner = agent(lambda _: 1)
    trouble.begins()
    with pytest.raises(errors.DatabaseUnavailable, match="'r'"):
        runner.start("x" * 20_000, run_id="r")
    trouble.ends()
    assert runner.start("x" * 20_000, run_id="r").result(timeout=20) == 1


@pytest.mark.parametrize(("database_url", "trouble"), [("postgresql", "away")], indirect=True)
def test_a_reader_of_events_waits_for_the_database(agent: Agent, here: str, trouble: Trouble) -> None:
    gate = threading.Event()

    def body(_: None) -> None:
        emit("one")
        step("tool", "a", lambda: None)
        assert gate.wait(20)
        emit("two")

    runner = agent(body)
    runner.start(run_id="r")
    eventually(lambda: len(runs.get("r").steps()) == 1)
    run = runs.get("r")
    reader = Call(lambda: [event.data for event in run.stream()])
    time.sleep(0.2)
    trouble.begins()
    time.sleep(1.5)
    trouble.ends()
    gate.set()
    assert reader.ends(20) == ["one", "two"]
