"""Conversations: one active run in each, in the order they came; a new input drops the pause of the old one."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from core.harness import eventually
from durable_agents import errors, runs
from durable_agents._core import RUN, engine, step
from plain import Plain

Agent = Callable[..., Plain]
pytestmark = pytest.mark.usefixtures("launched")


def ask(**questions: Any) -> dict[str, Any]:
    run = RUN.get()
    assert run is not None
    return run.wait(questions)


class Log:
    """Who was active when, in one conversation."""

    def __init__(self) -> None:
        self.order: list[Any] = []
        self.active = self.most = 0
        self.lock = threading.Lock()

    def body(self, input: Any) -> Any:
        def tool() -> Any:
            with self.lock:
                self.active += 1
                self.most = max(self.most, self.active)
                self.order.append(input)
            time.sleep(0.01)
            with self.lock:
                self.active -= 1
            return input

        return step("tool", "t", tool)


def test_queued_runs_of_a_thread_run_one_by_one_in_order(agent: Agent) -> None:
    logs = {thread: Log() for thread in "ab"}
    runners = {thread: agent(log.body) for thread, log in logs.items()}
    started = []
    for n in range(6):
        for thread, runner in runners.items():
            started.append(runner.start(n, run_id=f"{thread}{n}", thread=thread))
            time.sleep(0.002)  # the order is by milliseconds
    for run in started:
        run.result(20)
    for log in logs.values():
        assert log.order == [0, 1, 2, 3, 4, 5]
        assert log.most == 1


def test_direct_calls_on_one_thread_run_one_by_one(agent: Agent) -> None:
    log = Log()
    runner = agent(log.body)
    callers = [threading.Thread(target=runner.run, args=(n,), kwargs={"thread": "t"}) for n in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert sorted(log.order) == list(range(8))
    assert log.most == 1


def test_threads_do_not_wait_for_each_other(agent: Agent) -> None:
    gate = threading.Event()
    runner = agent(lambda x: step("tool", "t", lambda: gate.wait(20) if x else True))
    held = runner.start(1, run_id="held", thread="a")
    eventually(lambda: held.status == "running")
    assert runner.run(0, thread="b") is True
    assert runner.run(0) is True
    gate.set()
    assert held.result(10) is True


def test_a_new_input_drops_the_pause(agent: Agent) -> None:
    runner = agent(lambda x: ask(q=1)["q"] if x == "ask" else x)
    with pytest.raises(errors.RunWaiting):
        runner.run("ask", run_id="old", thread="t")
    assert runner.run("never mind", run_id="new", thread="t") == "never mind"
    assert runs.get("old").status == "cancelled"
    with pytest.raises(errors.RunCancelled):
        runs.get("old").result(1)
    with pytest.raises(errors.NotWaiting):
        runs.get("old").answer(1)


def test_a_queued_new_input_drops_the_pause_when_it_is_claimed(agent: Agent) -> None:
    runner = agent(lambda x: ask(q=1)["q"] if x == "ask" else x)
    with pytest.raises(errors.RunWaiting):
        runner.run("ask", run_id="old", thread="t")
    assert runner.start("never mind", run_id="new", thread="t").result(10) == "never mind"
    assert runs.get("old").status == "cancelled"


def test_a_pause_on_another_thread_stays(agent: Agent) -> None:
    runner = agent(lambda x: ask(q=1)["q"] if x == "ask" else x)
    with pytest.raises(errors.RunWaiting):
        runner.run("ask", run_id="old", thread="t")
    runner.run("else", thread="u")
    runner.run("else")
    assert runs.get("old").status == "waiting"


def test_a_pause_of_another_runner_stays(agent: Agent) -> None:
    """A thread id belongs to its agent: two agents of one user may both call their conversation "1"."""
    asker, other = agent(lambda _: ask(q=1)["q"]), agent(lambda x: x)
    with pytest.raises(errors.RunWaiting):
        asker.run(run_id="old", thread="1")
    assert other.run("hello", thread="1") == "hello"
    assert runs.get("old").status == "waiting"


def test_a_waiting_run_frees_its_thread_and_gets_it_back(agent: Agent) -> None:
    runner = agent(lambda x: step("tool", "t", lambda: ask(q=1)["q"], leaf=False) if x == "ask" else x)
    with pytest.raises(errors.RunWaiting):
        runner.run("ask", run_id="old", thread="t")
    runs.get("old").answer("yes")
    assert runs.get("old").result(10) == "yes"
    assert runner.run("next", thread="t") == "next"


def test_a_cancelled_run_frees_its_thread(agent: Agent) -> None:
    gate = threading.Event()
    runner = agent(lambda x: step("tool", "t", lambda: gate.wait(20) if x == "hold" else x))
    held = runner.start("hold", run_id="held", thread="t")
    eventually(lambda: held.status == "running")
    held.cancel()
    gate.set()
    assert runner.run("next", thread="t") == "next"
    eventually(lambda: held.status in ("cancelled", "succeeded"))


def test_a_failed_run_frees_its_thread(agent: Agent) -> None:
    runner = agent(lambda x: 1 / x)
    with pytest.raises(ZeroDivisionError):
        runner.run(0, thread="t")
    assert runner.run(1, thread="t") == 1


def in_time(call: Callable[[], Any]) -> BaseException:
    """What the call raises, which would wait for itself for ever if it waited."""
    caught: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            caught.append(error)

    caller = threading.Thread(target=work, daemon=True)
    caller.start()
    caller.join(5)
    assert caught, "the run waits for itself"
    return caught[0]


@pytest.mark.parametrize("where", ["body", "tool"])
def test_a_call_on_its_own_thread_from_inside_the_run_is_an_error(agent: Agent, where: str) -> None:
    def inner() -> Any:
        return runner.run("inner", thread="t")

    def body(x: Any) -> Any:
        if x == "inner":
            return x
        return step("tool", "t", inner) if where == "tool" else inner()

    runner = agent(body)
    error = in_time(lambda: runner.run("outer", run_id="outer", thread="t"))
    assert isinstance(error, errors.ThreadBusy)
    assert "'outer'" in str(error)
    assert "start()" in str(error)
    assert runner.run("inner", thread="t") == "inner"


def test_an_awaited_call_on_its_own_thread_from_inside_the_run_is_an_error(agent: Agent) -> None:
    async def body(x: Any) -> Any:
        return await runner.arun("inner", thread="t") if x == "outer" else x

    runner = agent(body)
    error = in_time(lambda: asyncio.run(runner.arun("outer", run_id="outer", thread="t")))
    assert isinstance(error, errors.ThreadBusy)


def test_from_inside_a_run_other_threads_are_free_and_its_own_can_be_queued(agent: Agent) -> None:
    def body(x: Any) -> Any:
        if x != "outer":
            return x
        runner.start("after", run_id="after", thread="t")
        return [runner.run("else", thread="u"), runner.run("none")]

    runner = agent(body)
    assert runner.run("outer", thread="t") == ["else", "none"]
    assert runs.get("after").result(10) == "after"


def test_runs_that_one_process_starts_have_the_order_they_were_started_in(agent: Agent) -> None:
    """However many of them are started in one millisecond."""
    runner = agent(lambda n: n)
    started = runner.submit_all([runner._request(n, "t") for n in range(50)], [None] * 50)
    store = engine.current().store
    rows = store.query("SELECT workflow_uuid FROM workflow_status ORDER BY created_at")
    assert [run_id for (run_id,) in rows] == [run.id for run in started]
    assert len(store.query("SELECT DISTINCT created_at FROM workflow_status")) == 50
