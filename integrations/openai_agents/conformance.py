"""Leads the SDK's own tests through `DurableRunner`: every run that a test starts, streamed ones too.

`Runner.run`, `run_sync`, `run_streamed` and the agents that are tools come together in `AgentRunner`, so its three
methods are what is replaced. A subclass that a test has made is left alone: it is that test's subject.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from agents import RunState
from agents.run import AgentRunner

from conformance.ledger import Ledger
from durable_agents import runs
from durable_agents._core import RUN
from durable_agents._core.engine import RUNNERS
from durable_agents.errors import ConfigurationError, NotSupported, NotWaiting, RunNotFound
from durable_agents.openai_agents import DurableRunner

STREAMING: ContextVar[bool] = ContextVar("conformance_streaming", default=False)
"""Whether it is our runner that calls the native `run_streamed`. The SDK's task for that run inherits it."""

Verb = Callable[..., Any]


def install(ledger: Ledger) -> None:
    """Replace the three verbs of `AgentRunner`."""
    runners = Runners(ledger)
    AgentRunner.run = _run(AgentRunner.run, runners)  # type: ignore[method-assign]
    AgentRunner.run_sync = _run_sync(AgentRunner.run_sync, runners)  # type: ignore[method-assign]
    AgentRunner.run_streamed = _run_streamed(AgentRunner.run_streamed, runners)  # type: ignore[method-assign]


class Runners:
    """Makes the runners of the current test.

    They are named after the test and the agent, so that the state of a paused run finds that run, whatever agent object
    it comes back with. One that is not needed any more is dropped at once: tests look at whether agents are freed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[str, DurableRunner] = {}
        self._paused: set[str] = set()

    def of(self, native: AgentRunner, agent: Any) -> DurableRunner | None:
        """The runner of this agent; None where the call is to be native."""
        if STREAMING.get() or RUN.get() is not None or type(native) is not AgentRunner:
            return None
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        name = f"{test}:{getattr(agent, 'name', '')}"
        kept = self._kept.get(name)
        if kept is not None and kept.agent is agent:
            return kept
        for old in list(self._kept.values()):  # of other tests, and this name's
            if old is kept or not old.name.startswith(f"{old.framework}.{test}:"):
                self.drop(old)
        try:
            runner = self._kept[name] = DurableRunner(agent, name)
        except (NotSupported, ConfigurationError) as error:
            self._ledger.refused(error)
            return None
        return runner

    @contextmanager
    def call(self, runner: DurableRunner, run_id: str | None) -> Iterator[None]:
        """Around a verb of the runner: tells of it, and ends it in silence when the runner has refused.

        A state that no run of ours has left, because the test has made it by hand, is refused too.
        """
        try:
            yield
        except (NotSupported, NotWaiting) as error:
            self.drop(runner)
            asked = isinstance(error, NotWaiting) and runner.name in self._paused
            if asked or (run_id is not None and _has_steps(run_id)):
                self._ledger.ran()
                raise
            self._ledger.refused(error)
        except BaseException:
            self.drop(runner)
            self._ledger.ran()
            raise
        else:
            self._ledger.ran()

    def over(self, runner: DurableRunner, result: Any) -> Any:
        """The run has come to its end, or to a pause, for which the runner is kept."""
        if result.interruptions:
            self._paused.add(runner.name)
        else:
            self.drop(runner)
        return result

    def drop(self, runner: DurableRunner) -> None:
        name = runner.name.partition(".")[2]
        if self._kept.get(name) is runner:
            del self._kept[name]
        if RUNNERS.get(runner.name) is runner:
            del RUNNERS[runner.name]


def _has_steps(run_id: str) -> bool:
    try:
        return bool(runs.get(run_id).steps())
    except RunNotFound:
        return False


def _new_id(input: Any) -> str | None:
    return None if isinstance(input, RunState) else uuid.uuid4().hex  # a state knows its run


def _run(native: Verb, runners: Runners) -> Verb:
    @wraps(native)
    async def run(self: AgentRunner, starting_agent: Any, input: Any, **options: Any) -> Any:
        runner = runners.of(self, starting_agent)
        if runner is not None:
            run_id = _new_id(input)
            with runners.call(runner, run_id):
                return runners.over(runner, await runner.run(input, run_id=run_id, **options))
        return await native(self, starting_agent, input, **options)

    return run


def _run_sync(native: Verb, runners: Runners) -> Verb:
    @wraps(native)
    def run_sync(self: AgentRunner, starting_agent: Any, input: Any, **options: Any) -> Any:
        runner = runners.of(self, starting_agent)
        if runner is not None:
            run_id = _new_id(input)
            with runners.call(runner, run_id):
                return runners.over(runner, runner.run_sync(input, run_id=run_id, **options))
        return native(self, starting_agent, input, **options)

    return run_sync


def _run_streamed(native: Verb, runners: Runners) -> Verb:
    @wraps(native)
    def run_streamed(self: AgentRunner, starting_agent: Any, input: Any, **options: Any) -> Any:
        runner = runners.of(self, starting_agent)
        if runner is not None:
            run_id = _new_id(input)
            token = STREAMING.set(True)
            try:
                with runners.call(runner, run_id):
                    streamed = runner.run_streamed(input, run_id=run_id, **options)
                    streamed.run_loop_task.add_done_callback(lambda _: runners.over(runner, streamed))
                    return streamed
            finally:
                STREAMING.reset(token)
        return native(self, starting_agent, input, **options)

    return run_streamed
