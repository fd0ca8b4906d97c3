"""What every integration must show, written once. It is adopted by saying how a framework's agents are made and called:

    class TestContract(Contract):
        framework = MyFramework()

The crash matrix kills at every boundary and compares with the native agent. Here is what it does not look at:
attaching, waits that outlive their process, errors, threads, streams, and what a `Run` tells.
"""

import asyncio
import itertools
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

import durable_agents
from durable_agents import Run, runs
from durable_agents.errors import AlreadyAnswered, ConfigurationError, InputMismatch, RunWaiting

Tool = Callable[[int], str]


class Framework(ABC):
    """How the agents of one framework are made and called.

    An agent here has one tool, `charge(amount: int) -> str`, and a model that decides from its input: for the text
    "1 and 2" it calls the tool with 1, then with 2, then says "done: " and what the tool returned last.
    """

    runner: type
    """The class of the durable form."""
    result: type
    """Of what the native verb returns."""
    approval: Any = True
    """What `Run.answer` is given for a tool that needs approval."""
    streams: bool = True
    tool_errors: ClassVar[bool] = True
    """Whether an exception in a tool leaves the native verb."""
    tool_error: type[Exception] = ZeroDivisionError
    """As what a `ZeroDivisionError` in a tool leaves the native verb."""
    deaths: tuple[type[BaseException], ...] = ()
    """As what `Killed` leaves the native verbs, beside itself."""

    @abstractmethod
    def agent(self, charge: Tool, *, asks: bool = False) -> Any:
        """The native agent; `asks`: the tool needs a person's approval."""

    @abstractmethod
    def durable(self, agent: Any, name: str, **options: Any) -> Any:
        """The runner."""

    @abstractmethod
    def native(self, agent: Any, text: str) -> Any:
        """The result of the native verb."""

    @abstractmethod
    def call(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any: ...

    @abstractmethod
    async def acall(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any: ...

    @abstractmethod
    def start(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Run: ...

    @abstractmethod
    def said(self, result: Any) -> str:
        """The agent's last words."""

    @abstractmethod
    def is_asking(self, result: Any) -> bool:
        """Whether this is what the native verb returns for an agent that waits for approval."""

    @abstractmethod
    def approve(self, runner: Any, result: Any, thread: str) -> Any:
        """Approve in the framework's own way, without a run id; the result of the native verb."""

    def stream(self, agent: Any, text: str, **run: Any) -> list[str]:
        """The events of a native agent or of a runner, each as a text that two runs share."""
        raise NotImplementedError


class Killed(BaseException):
    """Ends a run where it stands, without an outcome, as the death of its process does."""


class World:
    """What the tool acts on."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.hooks: list[Callable[[int], None]] = []
        self._lock = threading.Lock()

    def charge(self, amount: int) -> str:
        """Charge an amount."""
        with self._lock:
            self.charged.append(amount)
            hooks = list(self.hooks)
        for hook in hooks:
            hook(amount)
        return f"receipt {amount}"


def dies_at(amount: int, error: BaseException) -> Callable[[int], None]:
    """Fails the first time that this amount is charged."""
    calls = itertools.count()

    def hook(charged: int) -> None:
        if charged == amount and next(calls) == 0:
            raise error

    return hook


class Contract:
    """See the module."""

    framework: Framework

    @pytest.fixture(autouse=True)
    def _engine(self, database_url: str) -> Iterator[None]:
        self.url = database_url
        self.world = World()
        self.launch()
        yield
        durable_agents.shutdown()

    def launch(self) -> None:
        durable_agents.launch(self.url, heartbeat=0.05, grace=0.2, poll=0.05)

    def relaunch(self) -> None:
        """A new worker on the same database."""
        durable_agents.shutdown()
        self.launch()

    def made(self, *, asks: bool = False, **options: Any) -> Any:
        agent = self.framework.agent(self.world.charge, asks=asks)
        return self.framework.durable(agent, f"agent-{uuid.uuid4().hex}", **options)

    # -- results

    def test_the_result_is_the_native_one(self) -> None:
        native = self.framework.native(self.framework.agent(self.world.charge), "1 and 2")
        durable = self.framework.call(self.made(), "1 and 2", "r")
        assert isinstance(durable, self.framework.result)
        assert type(durable) is type(native)
        assert self.framework.said(durable) == self.framework.said(native) == "done: receipt 2"
        assert self.world.charged == [1, 2, 1, 2]

    async def test_awaited_too(self) -> None:
        result = await self.framework.acall(self.made(), "1 and 2", "r")
        assert self.framework.said(result) == "done: receipt 2"

    @pytest.mark.parametrize("is_async", [False, True])
    def test_the_same_run_id_gives_the_same_result(self, is_async: bool) -> None:
        runner = self.made()
        first = self.framework.call(runner, "1", "r")
        if is_async:
            again = asyncio.run(self.framework.acall(runner, "1", "r"))
        else:
            again = self.framework.call(runner, "1", "r")
        assert type(again) is type(first)
        assert self.framework.said(again) == self.framework.said(first)
        assert self.world.charged == [1]

    def test_another_input_under_the_same_run_id_is_an_error(self) -> None:
        runner = self.made()
        self.framework.call(runner, "1", "r")
        with pytest.raises(InputMismatch, match="'r'"):
            self.framework.call(runner, "2", "r")
        assert self.world.charged == [1]

    def test_a_queued_run_gives_the_native_result_to_whoever_asks(self) -> None:
        runner = self.made()
        result = self.framework.start(runner, "1", "r").result(timeout=20)
        assert isinstance(result, self.framework.result)
        self.relaunch()
        again = runs.get("r").result()
        assert type(again) is type(result)
        assert self.framework.said(again) == self.framework.said(result) == "done: receipt 1"
        assert self.world.charged == [1]

    def test_what_a_run_tells(self) -> None:
        runner = self.made()
        self.framework.call(runner, "1 and 2", "r")
        run = runs.get("r")
        assert (run.status, run.error, run.questions) == ("succeeded", None, {})
        steps = [(step.kind, step.name) for step in run.steps() if step.kind in ("model", "tool")]
        assert [kind for kind, _ in steps] == ["model", "tool", "model", "tool", "model"]
        assert {name for kind, name in steps if kind == "tool"} == {"charge"}
        assert len({step.path for step in run.steps()}) == len(run.steps())
        assert run.usage.input_tokens > 0
        assert run.usage.output_tokens > 0
        assert [found.id for found in runs.list(runner=run.runner)] == ["r"]

    # -- a process that dies

    @pytest.mark.parametrize("is_async", [False, True])
    def test_what_was_finished_before_a_death_is_not_done_again(self, is_async: bool) -> None:
        self.world.hooks.append(dies_at(2, Killed()))
        runner = self.made()

        def life() -> Any:
            if is_async:
                return asyncio.run(self.framework.acall(runner, "1 and 2", "r"))
            return self.framework.call(runner, "1 and 2", "r")

        with pytest.raises((Killed, *self.framework.deaths)):
            life()
        assert self.framework.said(life()) == "done: receipt 2"
        assert self.world.charged == [1, 2, 2]

    def test_a_tool_whose_outcome_is_unknown_is_not_run_again(self) -> None:
        self.world.hooks.append(dies_at(2, Killed()))
        runner = self.made(at_most_once={"charge"})
        with pytest.raises((Killed, *self.framework.deaths)):
            self.framework.call(runner, "1 and 2", "r")
        with pytest.raises(RunWaiting, match="charge"):
            self.framework.call(runner, "1 and 2", "r")
        run = runs.get("r")
        assert [question.startswith("outcome:") for question in run.questions] == [True]
        run.answer({"result": "receipt by hand"})
        assert self.framework.said(run.result(timeout=20)) == "done: receipt by hand"
        assert self.world.charged == [1, 2]

    # -- waits

    def test_a_wait_outlives_its_process_and_is_answered_from_anywhere(self) -> None:
        runner = self.made(asks=True)
        assert self.framework.is_asking(self.framework.call(runner, "1", "r"))
        assert self.world.charged == []
        self.relaunch()
        run = runs.get("r")
        assert run.status == "waiting"
        assert len(run.questions) == 1
        assert self.framework.is_asking(self.framework.call(runner, "1", "r"))
        with pytest.raises(RunWaiting):
            run.result()
        run.answer(self.framework.approval)
        assert self.framework.said(run.result(timeout=20)) == "done: receipt 1"
        assert self.world.charged == [1]

    def test_a_wait_is_answered_natively(self) -> None:
        runner = self.made(asks=True)
        asking = self.framework.call(runner, "1", "r", "t")
        self.relaunch()
        result = self.framework.approve(runner, asking, "t")
        assert self.framework.said(result) == "done: receipt 1"
        assert runs.get("r").status == "succeeded"
        assert self.framework.said(runs.get("r").result()) == "done: receipt 1"
        assert self.world.charged == [1]
        assert len(runs.list(runner=runs.get("r").runner)) == 1

    def test_a_queued_run_waits_too(self) -> None:
        run = self.framework.start(self.made(asks=True), "1", "r")
        deadline = time.monotonic() + 20
        while run.status != "waiting" and time.monotonic() < deadline:
            time.sleep(0.01)
        run.answer(self.framework.approval)
        assert self.framework.said(run.result(timeout=20)) == "done: receipt 1"
        run.answer(self.framework.approval)  # the same again
        with pytest.raises(AlreadyAnswered):
            run.answer("another")

    # -- errors

    def test_an_error_keeps_its_type_and_a_mended_run_goes_on(self) -> None:
        if not self.framework.tool_errors:
            pytest.skip("natively a tool's exception is told to the model")
        self.world.hooks.append(dies_at(2, ZeroDivisionError("no funds")))
        runner = self.made()
        with pytest.raises(self.framework.tool_error, match="no funds"):
            self.framework.call(runner, "1 and 2", "r")
        self.relaunch()
        run = runs.get("r")
        assert run.status == "failed"
        assert isinstance(run.error, self.framework.tool_error)
        for _ in range(2):
            with pytest.raises(self.framework.tool_error, match="no funds"):
                self.framework.call(runner, "1 and 2", "r")
        run.resume()
        assert self.framework.said(run.result(timeout=20)) == "done: receipt 2"
        assert self.world.charged == [1, 2, 2]

    def test_two_runners_of_one_name(self) -> None:
        agent, name = self.framework.agent(self.world.charge), f"agent-{uuid.uuid4().hex}"
        self.framework.durable(agent, name)
        with pytest.raises(ConfigurationError, match=name):
            self.framework.durable(agent, name)

    def test_durable_picks_the_runner(self) -> None:
        agent = self.framework.agent(self.world.charge)
        runner = durable_agents.durable(agent, f"agent-{uuid.uuid4().hex}")
        assert isinstance(runner, self.framework.runner)
        assert isinstance(self.made(), self.framework.runner)

    # -- threads

    def test_runs_on_one_thread_come_one_after_the_other(self) -> None:
        active: list[int] = []
        most: list[int] = []

        def busy(amount: int) -> None:
            active.append(amount)
            most.append(len(active))
            time.sleep(0.05)
            active.remove(amount)

        self.world.hooks.append(busy)
        runner = self.made()
        started = [
            self.framework.start(runner, f"{number} and {number}0", f"r{number}", "t") for number in (1, 2, 3)
        ]
        said = [self.framework.said(run.result(timeout=30)) for run in started]
        assert said == ["done: receipt 10", "done: receipt 20", "done: receipt 30"]
        assert self.world.charged == [1, 10, 2, 20, 3, 30]
        assert max(most) == 1

    # -- streams

    def test_a_stream_has_the_native_events(self) -> None:
        if not self.framework.streams:
            pytest.skip("the framework does not stream")
        native = self.framework.stream(self.framework.agent(self.world.charge), "1 and 2")
        durable = self.framework.stream(self.made(), "1 and 2", run_id="r")
        assert durable == native
        assert len(native) > 2
        assert runs.get("r").status == "succeeded"
        assert self.framework.said(runs.get("r").result()) == "done: receipt 2"
        assert self.world.charged == [1, 2, 1, 2]

    def test_the_stream_of_a_run_that_died_goes_to_its_end(self) -> None:
        if not self.framework.streams:
            pytest.skip("the framework does not stream")
        self.world.hooks.append(dies_at(2, Killed()))
        runner = self.made()
        with pytest.raises((Killed, *self.framework.deaths)):
            self.framework.stream(runner, "1 and 2", run_id="r")
        self.relaunch()
        assert self.framework.said(runs.get("r").result(timeout=20)) == "done: receipt 2"
        assert self.world.charged == [1, 2, 2]
