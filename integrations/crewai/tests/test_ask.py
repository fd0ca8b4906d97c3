"""`Flow.ask` with an input provider of the user's own: what it answered is recorded, and it is not asked again."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crewai.flow.flow import Flow, start
from crewai.flow.input_provider import InputResponse

import durable_agents
from durable_agents import runs
from durable_agents.crewai import DurableFlow


class Killed(BaseException):
    """Ends a run where it stands, as the death of its process does."""


@pytest.fixture(autouse=True)
def _engine(database_url: str) -> Iterator[None]:
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()


class Asking(Flow[dict[str, Any]]):
    suppress_flow_events: bool = True
    _skip_auto_memory: bool = True

    @start()
    def work(self) -> Any:
        said = [self.ask("who?"), self.ask("and?")]
        return [said, [entry["response_metadata"] for entry in self._input_history]]


def asking(answers: list[Any], after: Callable[[], None] = lambda: None) -> Callable[[], Flow[Any]]:
    class Provider:
        def request_input(self, message: str, flow: Any, metadata: Any = None) -> Any:
            return answers.pop(0)

    class Asks(Asking):
        @start()
        def work(self) -> Any:
            said = super().work()
            after()
            return said

    def make() -> Flow[Any]:
        flow = Asks()
        flow.input_provider = Provider()
        return flow

    return make


@pytest.mark.parametrize(
    "answers",
    [
        [InputResponse("ann", {"by": "ann", "at": [1, 2]}), "bob"],
        [InputResponse(None, {"by": "ann"}), None],
        [InputResponse("ann"), object()],
    ],
    ids=["metadata", "no text", "neither"],
)
def test_what_a_provider_answers_is_recorded_with_its_metadata(answers: list[Any]) -> None:
    native = asking(list(answers))().kickoff()
    deaths = iter([True])

    def dies() -> None:
        if next(deaths, False):
            raise Killed

    left = list(answers)
    app = DurableFlow(asking(left, dies), uuid.uuid4().hex)
    with pytest.raises(Killed):
        app.kickoff(run_id="r")
    assert left == []
    assert app.kickoff(run_id="r") == native
    assert [step.path.rpartition("/")[2] for step in runs.get("r").steps()][:2] == [
        "tool:ask:1",
        "tool:ask:2",
    ]


def test_metadata_that_cannot_be_recorded_are_left_out() -> None:
    answers = [InputResponse("ann", {"client": object()}), "bob"]
    app = DurableFlow(asking(answers), uuid.uuid4().hex)
    assert app.kickoff() == [["ann", "bob"], [None, None]]
