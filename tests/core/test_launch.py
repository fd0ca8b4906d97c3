"""Launching: from anywhere, once, on a database that can be used; and its end."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import durable_agents
from core.harness import Programs, eventually
from durable_agents import errors, runs
from durable_agents._core import RUN, astep, background, default_name, engine, step
from plain import Plain, Steer

Agent = Callable[..., Plain]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    durable_agents.shutdown()
    engine.RUNNERS.clear()


@pytest.fixture
def database(database_url: str) -> Iterator[str]:
    """A database that this process has left again before it is dropped."""
    yield database_url
    durable_agents.shutdown()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.sqlite'}"


def test_the_first_run_launches_on_a_file_in_the_working_directory(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(engine.DATABASE_URL, raising=False)
    monkeypatch.setattr(engine, "_launched_with", None)  # as in a process that has not launched before
    assert agent(lambda _: 1).run() == 1
    assert (tmp_path / "durable_agents.sqlite").exists()


def test_the_environment_names_the_database(
    agent: Agent, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(engine.DATABASE_URL, url)
    monkeypatch.setattr(engine, "_launched_with", None)  # as in a process that has not launched before
    agent(lambda _: 1).run(run_id="env")
    assert (tmp_path / "runs.sqlite").exists()
    assert not (tmp_path / "durable_agents.sqlite").exists()


def test_launch_twice_is_launch_once(database: str) -> None:
    durable_agents.launch(database)
    first = engine.current()
    durable_agents.launch(database)
    durable_agents.launch()
    assert engine.current() is first
    with pytest.raises(errors.ConfigurationError, match="already runs on"):
        durable_agents.launch("sqlite:///another.sqlite")


def test_launch_from_many_threads_is_launch_once(database: str) -> None:
    callers = [threading.Thread(target=durable_agents.launch, args=(database,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert [t.name for t in threading.enumerate()].count("durable-agents-claim") == 1


async def test_launch_inside_a_loop_adopts_no_loop(agent: Agent, database: str) -> None:
    durable_agents.launch(database)

    async def body(_: None) -> Any:
        return await astep("tool", "t", lambda: asyncio.sleep(0, threading.current_thread().name))

    runner = agent(body)
    mine = threading.current_thread().name
    assert await runner.arun() == mine
    queued = runner.start()
    assert await queued.aresult(10) == "durable-agents-loop"


def test_runs_of_one_process_in_several_loops(agent: Agent, database: str) -> None:
    durable_agents.launch(database)

    async def body(x: int) -> int:
        return await astep("tool", "t", lambda: asyncio.sleep(0.01, x))

    runner = agent(body)
    results: dict[int, int] = {}
    callers = [
        threading.Thread(target=lambda n=n: results.update({n: asyncio.run(runner.arun(n))}))
        for n in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert results == {n: n for n in range(6)}


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "mysql://user@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////no/such/folder/runs.sqlite",
        "postgresql://nobody:secret@127.0.0.1:1/none",
        "postgresql://nobody:secret@127.0.0.1:port/none",
        "sqlite:////dev/null",
    ],
)
def test_a_database_that_cannot_be_used_is_said_at_once(bad: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        durable_agents.launch(bad)
    assert "secret" not in str(caught.value)
    assert engine.launched() is None


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    with pytest.raises(errors.ConfigurationError, match=r"notes\.txt"):
        durable_agents.launch(f"sqlite:///{tmp_path / 'notes.txt'}")
    assert (tmp_path / "notes.txt").read_text() == "not a database " * 100


def test_after_a_failed_launch_another_works(agent: Agent, url: str) -> None:
    with pytest.raises(errors.ConfigurationError):
        durable_agents.launch("nonsense")
    durable_agents.launch(url)
    assert agent(lambda _: 1).run() == 1


@pytest.mark.parametrize("times", [{"heartbeat": 0}, {"grace": 0.1}, {"lease": 0.1}, {"poll": 0}])
def test_times_that_make_no_sense(url: str, times: dict[str, float]) -> None:
    with pytest.raises(errors.ConfigurationError, match="heartbeat <= grace <= lease"):
        durable_agents.launch(url, **times)


def test_errors_can_be_imported_by_name() -> None:
    """`except` clauses want `from durable_agents.errors import RunWaiting`."""
    done = subprocess.run(
        [sys.executable, "-c", "from durable_agents.errors import RunWaiting"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_two_runners_of_one_name_are_an_error(agent: Agent) -> None:
    Plain(lambda _: 1, "same")
    with pytest.raises(errors.ConfigurationError, match=r"'plain\.same'"):
        Plain(lambda _: 1, "same")


def test_the_default_name_is_that_of_the_module_and_the_object() -> None:
    assert default_name("app") == "test_launch.app"


# -- shutdown


def test_shutdown_records_the_step_in_flight_and_releases_the_run(agent: Agent, database: str) -> None:
    durable_agents.launch(database)
    started, calls = threading.Event(), []

    def body(_: None) -> list[Any]:
        step("tool", "a", lambda: (calls.append("a"), started.set(), time.sleep(0.3)))
        step("tool", "b", lambda: calls.append("b"))
        return calls

    run = agent(body).start(run_id="r")
    assert started.wait(10)
    durable_agents.shutdown()
    assert calls == ["a"]
    durable_agents.launch(database)
    assert run.result(10) == ["a", "b"]
    assert [s.path for s in run.steps()] == ["tool:a", "tool:b"]


def test_shutdown_twice_or_without_launch_is_nothing(url: str) -> None:
    durable_agents.shutdown()
    durable_agents.launch(url)
    durable_agents.shutdown()
    durable_agents.shutdown()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("durable-agents-b")]


async def test_shutdown_inside_the_loop_of_a_run_does_not_wait_for_itself(agent: Agent, url: str) -> None:
    """Servers call it at the end of their lifespan, in the loop that their runs are driven in."""
    durable_agents.launch(url)
    started = asyncio.Event()

    async def tool() -> None:
        started.set()
        await asyncio.sleep(0.2)

    async def body(_: None) -> None:
        await astep("tool", "t", tool)
        await astep("tool", "u", tool)

    task = asyncio.create_task(agent(body).arun(run_id="r"))
    await started.wait()
    begun = time.monotonic()
    durable_agents.shutdown()
    assert time.monotonic() - begun < 5
    await asyncio.wait([task], timeout=3)
    assert task.done(), "the caller waits for a process that has shut down"
    assert isinstance(task.exception(), errors.RunReleased)


def test_a_caller_that_waits_does_not_launch_again_after_shutdown(
    agent: Agent, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    durable_agents.launch(url)
    gate, caught = threading.Event(), []
    runner = agent(lambda x: step("tool", "t", lambda: gate.wait(10)) if x else x)
    held = runner.start(1, run_id="held", thread="t")
    eventually(lambda: held.status == "running")

    def call() -> None:
        try:
            runner.run(0, run_id="turn", thread="t")
        except BaseException as error:
            caught.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    eventually(lambda: [r.id for r in runs.list(status="queued")] == ["turn"])
    gate.set()
    durable_agents.shutdown()
    caller.join(5)
    assert engine.launched() is None
    assert not (tmp_path / "durable_agents.sqlite").exists()


def test_shutdown_may_be_registered_with_atexit(url: str, tmp_path: Path) -> None:
    script = (
        "import atexit, durable_agents\n"
        f"durable_agents.launch({url!r})\n"
        "atexit.register(durable_agents.shutdown)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_caller_whose_process_shuts_down_is_told_that_the_run_goes_on(agent: Agent, database: str) -> None:
    durable_agents.launch(database)
    started, caught = threading.Event(), []

    def body(_: None) -> None:
        step("tool", "a", lambda: (started.set(), time.sleep(0.2)))
        step("tool", "b", lambda: None)

    runner = agent(body)

    def call() -> None:
        try:
            runner.run(run_id="r")
        except BaseException as error:
            caught.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert started.wait(10)
    durable_agents.shutdown()
    caller.join(5)
    assert [type(error) for error in caught] == [errors.RunReleased]


def test_a_shutdown_in_the_middle_of_a_long_step_is_no_failure_of_the_run(agent: Agent, url: str) -> None:
    """Twenty deploys during one step, and it goes on at once: only workers that die in it make a run rest."""
    durable_agents.launch(url, poll=0.02)
    started, over = threading.Event(), threading.Event()

    def long() -> None:
        started.set()
        run = RUN.get()
        while not over.is_set() and run is not None and run.closing is None:
            time.sleep(0.001)
        if not over.is_set():
            raise Steer("interrupted")

    runner = agent(lambda _: step("tool", "long", long))
    runner.start(run_id="r")
    for _ in range(20):
        assert started.wait(2)
        durable_agents.shutdown()
        started.clear()
        durable_agents.launch(url, poll=0.02)
    over.set()
    durable_agents.runs.get("r").result(timeout=10)


@pytest.mark.parametrize("is_async", [False, True])
def test_shutdown_does_not_wait_for_a_run_that_has_no_step_in_flight(
    agent: Agent, url: str, is_async: bool
) -> None:
    """It waits for effects to be recorded; what a framework does between two steps can be done again."""
    durable_agents.launch(url)
    between, over = threading.Event(), threading.Event()

    def body(_: None) -> None:
        step("tool", "t", lambda: None)
        between.set()
        over.wait(20)

    async def abody(_: None) -> None:
        await astep("tool", "t", lambda: asyncio.sleep(0))
        between.set()
        await asyncio.sleep(20)

    agent(abody if is_async else body).start(run_id="r")
    assert between.wait(10)
    begun = time.monotonic()
    durable_agents.shutdown()
    took = time.monotonic() - begun
    over.set()
    engine.RUNNERS.clear()
    durable_agents.launch(url)
    assert runs.get("r").status == "running"
    assert took < 5


def test_shutdown_gives_up_on_a_step_that_does_not_end(
    agent: Agent, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_SHUTDOWN_SECONDS", 0.3)
    durable_agents.launch(url)
    calls: list[str] = []
    gate = threading.Event()

    def tool() -> str:
        calls.append("tool")
        if len(calls) == 1:
            gate.wait(20)
        return "done"

    run = agent(lambda _: step("tool", "t", tool)).start(run_id="r")
    eventually(lambda: calls)
    begun = time.monotonic()
    durable_agents.shutdown()
    assert time.monotonic() - begun < 3
    durable_agents.launch(url)
    assert run.result(10) == "done"
    gate.set()
    assert calls == ["tool", "tool"]


def test_a_process_that_ends_releases_the_run_it_drives(programs: Programs, database: str) -> None:
    """At the step that is in flight: nothing runs twice, nobody waits for the end of the run or for a grace."""
    ending = programs.start("ending", "slow")
    ending.until("main ends")
    begun = time.monotonic()
    assert ending.ends(10) == 0, ending.output
    assert time.monotonic() - begun < 2
    done = len(programs.ledger.effects())
    assert 0 < done < 50
    assert "Traceback" not in ending.output
    durable_agents.launch(programs.database_url, poll=3600)
    assert runs.get("r").status == "running"
    worker = programs.start("agents", "work")
    eventually(lambda: runs.get("r").status == "succeeded", 15, worker.output)
    assert programs.ledger.effects() == [f"moment-{n}" for n in range(60)]


def test_a_process_that_ends_leaves_queued_runs_to_others(programs: Programs, database: str) -> None:
    """It gives the step in flight some seconds, but must not take new runs that it can no longer drive."""
    ending, worker = programs.start("ending", "gated"), programs.start("agents", "work")
    ending.until("main ends")
    worker.until("works")
    durable_agents.launch(programs.database_url, poll=3600)
    engine.current().shun("late")  # for other processes
    Plain(lambda _: None, "order").start(run_id="late")
    eventually(lambda: runs.get("late").status == "succeeded", 8, ending.output + worker.output)
    (programs.home / "open").touch()
    assert ending.ends(12) == 0
    eventually(lambda: runs.get("r").status == "succeeded", 8, worker.output)


# -- fork


def in_child(work: Callable[[], None], seconds: float = 10.0) -> int:
    """The exit code of a forked child that does `work`: 0 when it raises nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_launches_an_engine_of_its_own(agent: Agent, database: str) -> None:
    durable_agents.launch(database)
    runner = agent(lambda x: step("tool", "t", lambda: x))
    runner.run(0, run_id="before")
    parent = engine.current().worker.id

    def work() -> None:
        assert engine.launched() is None
        if database.startswith("sqlite"):  # its file locks do not survive a fork
            with pytest.raises(durable_agents.errors.ConfigurationError, match="spawn or forkserver"):
                durable_agents.launch(database)
            return
        durable_agents.launch(database)
        assert engine.current().worker.id != parent
        assert runner.run(1, run_id="child") == 1
        durable_agents.shutdown()

    assert in_child(work) == 0
    assert runner.run(2, run_id="after") == 2
    if not database.startswith("sqlite"):
        assert runs.get("child").result(1) == 1
    assert engine.current().worker.beat()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_inside_a_run_writes_nothing_of_it(agent: Agent, database: str) -> None:
    """Tools use process pools; a step in a pool's child must not use the parent's connections."""
    durable_agents.launch(database)

    def child() -> None:
        assert RUN.get() is None
        assert step("tool", "in the child", lambda: 1) == 1

    def body(_: None) -> int:
        return step("tool", "forks", lambda: in_child(child))

    assert agent(body).run(run_id="forks") == 0
    assert [s.path for s in runs.get("forks").steps()] == ["tool:forks"]


def test_a_forked_child_does_not_keep_its_parent_alive(programs: Programs, database: str) -> None:
    """A pool's child outlives a killed parent: the parent's lock must be free all the same."""
    parent = programs.start("forking")
    eventually(lambda: "child" in programs.ledger.effects(), what=parent.output)
    parent.kill()
    worker = programs.start("forking", "only launch")
    worker.until("works")
    durable_agents.launch(programs.database_url, poll=3600)
    eventually(lambda: runs.get("f").status == "succeeded", 6, worker.output)
    child = programs.ledger.pids("child")[0]
    os.kill(child, 0)  # it still lives
    os.kill(child, 9)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_pool_of_forked_children_inside_a_step(agent: Agent, url: str) -> None:
    """They end with their own exit handlers, which must not end the parent's engine."""
    durable_agents.launch(url)

    def tool() -> list[int]:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            return list(pool.map(abs, [-1, -2, -3]))

    runner = agent(lambda _: [step("tool", "pool", tool), step("tool", "after", lambda: 4)])
    assert runner.run(run_id="pool") == [[1, 2, 3], 4]
    assert [s.path for s in runs.get("pool").steps()] == ["tool:pool", "tool:after"]
    assert engine.current().worker.beat()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_that_ends_leaves_the_parents_lock(agent: Agent, database: str) -> None:
    durable_agents.launch(database)
    worker = engine.current().worker

    def work() -> None:
        durable_agents.shutdown()  # nothing to do: it has not launched

    assert in_child(work) == 0
    assert not engine.current().store.lock_is_free(worker.id)
    assert worker.beat()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_the_parent_is_busy_does_not_hang(agent: Agent, database: str) -> None:
    """Another thread holds the locks of the store and the engine at any moment: the child must not wait for them."""
    durable_agents.launch(database, poll=0.01)
    ended = threading.Event()
    runner = agent(lambda x: [step("tool", "t", lambda: x) for _ in range(5)])

    def keep_busy() -> None:
        while not ended.is_set():
            runner.run(1)

    busy = threading.Thread(target=keep_busy)
    busy.start()

    def work() -> None:
        try:
            durable_agents.launch(database)
        except errors.ConfigurationError:
            return  # said at once: that is no hanging
        assert runner.run(2) == [2] * 5
        durable_agents.shutdown()

    try:
        assert [in_child(work, 5.0) for _ in range(5)] == [0] * 5
    finally:
        ended.set()
        busy.join(10)
    assert {run.status for run in runs.list(limit=1000)} == {"succeeded"}


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_that_kept_something_of_its_parent_is_told(agent: Agent, database: str) -> None:
    durable_agents.launch(database)
    store = engine.current().store

    def work() -> None:
        with pytest.raises(errors.ConfigurationError, match="must launch for itself"):
            store.query("SELECT 1")

    assert in_child(work) == 0
    assert store.query("SELECT 1") == [(1,)]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_a_forked_child_has_finished_outlives_its_parents_engine(agent: Agent, database: str) -> None:
    """SQLite's locks are not inherited by a fork, but what it believes about them is."""
    durable_agents.launch(database)
    runner = agent(lambda x: step("tool", "t", lambda: x))
    runner.run(0, run_id="parent")
    (opened, open_it), (ended, end_it) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                durable_agents.launch(database)
            except errors.ConfigurationError:
                os.write(open_it, b"refused")
                os._exit(0)
            assert runner.run(1, run_id="child") == 1
            os.write(open_it, b"opened")
            os.read(ended, 1)
            assert runner.run(2, run_id="late") == 2
        finally:
            os._exit(1)
    verdict = os.read(opened, 7)
    durable_agents.shutdown()
    os.write(end_it, b"x")
    os.waitpid(pid, 0)
    durable_agents.launch(database)
    found = {run.id: run.status for run in runs.list()}
    expected = {"parent", "child", "late"} if verdict == b"opened" else {"parent"}
    assert found == dict.fromkeys(expected, "succeeded")


def test_an_implicit_launch_means_the_database_of_the_last_explicit_one(
    agent: Agent, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a shutdown, or in a forked child: on another database the same run id would do its work again."""
    monkeypatch.chdir(tmp_path)
    calls: list[int] = []
    runner = agent(lambda _: calls.append(1))
    durable_agents.launch(database, grace=0.3)
    runner.run(run_id="order-55")
    durable_agents.shutdown()
    runner.run(run_id="order-55")
    assert calls == [1]
    assert engine.current().liveness.grace == 0.3
    assert not (tmp_path / "durable_agents.sqlite").exists() or "tmp" in database


@pytest.mark.parametrize(
    "odd", [{"poll": float("inf")}, {"heartbeat": 1e10, "grace": 1e10, "lease": 1e10}, {"grace": "x"}]
)
def test_options_that_no_clock_takes(database: str, odd: Any) -> None:
    with pytest.raises(errors.ConfigurationError, match="seconds"):
        durable_agents.launch(database, **odd)
