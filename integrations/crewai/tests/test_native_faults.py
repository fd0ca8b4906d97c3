"""What goes wrong natively (crewai 1.15.30) when a process dies or a task is tried again, and is right here.

Each test shows both: the native way first.
"""

import itertools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow, listen, router, start
from crewai.llms.base_llm import BaseLLM
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.tools import tool

import durable_agents
from durable_agents import runs
from durable_agents.crewai import DurableCrew, DurableFlow


class Killed(BaseException):
    """Ends a run where it stands, as the death of its process does."""


class Model(BaseLLM):
    """Charges once, then ends; `before` is called before each answer with the number of tool results so far."""

    before: Any = None

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        replies = [m for m in messages if m["role"] == "assistant" and "Observation:" in str(m["content"])]
        if self.before is not None:
            self.before(len(replies))
        if not replies:
            return 'Thought: next\nAction: charge\nAction Input: {"amount": 1}'
        return "Thought: I now can give a great answer\nFinal Answer: done"


@pytest.fixture(autouse=True)
def _engine(database_url: str) -> Iterator[None]:
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()


def charging_crew(charged: list[int], before: Callable[[int], None] | None = None, **options: Any) -> Crew:
    @tool("charge")
    def charge(amount: int) -> str:
        """Charge an amount."""
        charged.append(amount)
        return "receipt"

    clerk = Agent(
        role="clerk",
        goal="to charge",
        backstory="long",
        tools=[charge],
        llm=Model(model="fake/m", before=before),
    )
    return Crew(
        agents=[clerk], tasks=[Task(description="charge", expected_output="x", agent=clerk)], **options
    )


def first_time(number: int, error: BaseException) -> Callable[[int], None]:
    calls = itertools.count()

    def before(replies: int) -> None:
        if replies == number and next(calls) == 0:
            raise error

    return before


def name() -> str:
    return uuid.uuid4().hex


def test_a_task_that_is_tried_again_does_not_charge_again() -> None:
    charged: list[int] = []
    charging_crew(charged, first_time(1, ConnectionError("overloaded"))).kickoff()
    assert charged == [1, 1], "natively the conversation begins anew"

    charged.clear()
    crew = charging_crew(charged, first_time(1, ConnectionError("overloaded")))
    assert DurableCrew(crew, name()).kickoff(run_id="r").raw == "done"
    assert charged == [1]
    paths = [step.path.rpartition("/")[2] for step in runs.get("r").steps()]
    assert paths == ["model:fake%2Fm", "tool:charge", "model:fake%2Fm#2", "model:fake%2Fm#2@2"]


def test_a_crew_with_a_tool_function_goes_on_after_a_death(tmp_path: Path) -> None:
    """Its native checkpoints cannot be written: a function has no JSON. That is only logged."""
    charged: list[int] = []
    checkpoint = CheckpointConfig(location=str(tmp_path), on_events=["task_completed"])
    charging_crew(charged, checkpoint=checkpoint).kickoff()
    assert not list(tmp_path.rglob("*.json"))

    charged.clear()
    app = DurableCrew(charging_crew(charged, first_time(1, Killed())), name())
    with pytest.raises(Killed):
        app.kickoff(run_id="r")
    assert app.kickoff(run_id="r").raw == "done"
    assert charged == [1]


def routed(ran: list[str], dies: Callable[[], None]) -> type[Flow[Any]]:
    class Routed(Flow[dict[str, Any]]):
        suppress_flow_events: bool = False
        _skip_auto_memory: bool = True

        @start()
        def first(self) -> str:
            ran.append("first")
            return "F"

        @router(first)
        def route(self) -> str:
            ran.append("route")
            return "go"

        @listen("go")
        def going(self) -> str:
            ran.append("going")
            return "G"

        @listen(going)
        def last(self, said: str) -> str:
            dies()
            ran.append("last")
            return f"last of {said}"

    return Routed


def test_a_flow_with_a_router_goes_on_to_its_end(tmp_path: Path) -> None:
    """Natively it ends without its last method, silently, with another result."""
    ran: list[str] = []
    deaths = itertools.count()

    def dies() -> None:
        if next(deaths) == 0:
            raise Killed

    native = routed(ran, dies)
    config = CheckpointConfig(location=str(tmp_path), on_events=["method_execution_finished"])
    with pytest.raises(Killed):
        native(checkpoint=config).kickoff()
    newest = max(tmp_path.rglob("*.json"), key=lambda file: file.stat().st_mtime)
    ran.clear()
    restored = native.from_checkpoint(CheckpointConfig(restore_from=str(newest)))
    assert restored.kickoff() != "last of G"
    assert "last" not in ran

    ran.clear()
    deaths = itertools.count()
    app = DurableFlow(routed(ran, dies), name())
    with pytest.raises(Killed):
        app.kickoff(run_id="r")
    assert app.kickoff(run_id="r") == "last of G"
    assert ran == ["first", "route", "going", "last"]


def test_nothing_runs_again_whatever_events_there_were(tmp_path: Path) -> None:
    """Natively a checkpoint at every event (`on_events=["*"]`) makes everything run again."""
    ran: list[str] = []
    deaths = itertools.count()

    def dies() -> None:
        if next(deaths) == 0:
            raise Killed

    native = routed(ran, dies)
    with pytest.raises(Killed):
        native(checkpoint=CheckpointConfig(location=str(tmp_path), on_events=["*"])).kickoff()
    newest = max(tmp_path.rglob("*.json"), key=lambda file: file.stat().st_mtime)
    ran.clear()
    native.from_checkpoint(CheckpointConfig(restore_from=str(newest))).kickoff()
    assert ran[:2] == ["first", "route"]

    ran.clear()
    deaths = itertools.count()
    app = DurableFlow(routed(ran, dies), name())
    with pytest.raises(Killed):
        app.kickoff(run_id="r")
    app.kickoff(run_id="r")
    assert ran == ["first", "route", "going", "last"]
