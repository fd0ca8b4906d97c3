"""CrewAI's executions: one per run, in however many processes, with traces where the native kickoff has them."""

import contextvars
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.execution import get_execution_uuid, set_execution_uuid
from crewai.flow.flow import Flow, start
from crewai.llms.base_llm import BaseLLM
from crewai.telemetry.tracing.grants import GrantSpanExporter, TraceGrant, TraceGrantClient
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import durable_agents
from durable_agents.crewai import DurableCrew, DurableFlow


class Killed(BaseException):
    """Ends a run where it stands, as the death of its process does."""


class Model(BaseLLM):
    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return "Thought: I now can give a great answer\nFinal Answer: done"


@pytest.fixture(autouse=True)
def _engine(database_url: str) -> Iterator[None]:
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], tuple[list[str], list[str]]]:
    """Gives, and forgets, what went to CrewAI's service: the ids of executions, and the names of spans."""
    granted: list[str] = []
    exporters: list[InMemorySpanExporter] = []  # a trace shuts its own down

    def create(client: Any, execution_uuid: str) -> TraceGrant:
        granted.append(str(uuid.UUID(execution_uuid)))
        expires_at = datetime.now(UTC) + timedelta(minutes=15)
        return TraceGrant(
            token="t", collector_url="https://c.invalid", execution_uuid=granted[-1], expires_at=expires_at
        )

    def exporter(*args: Any) -> InMemorySpanExporter:
        exporters.append(InMemorySpanExporter())
        return exporters[-1]

    def told() -> tuple[list[str], list[str]]:
        spans = [span.name for each in exporters for span in each.get_finished_spans()]
        found = list(granted), sorted(spans)
        granted.clear()
        exporters.clear()
        return found

    monkeypatch.chdir(tmp_path)  # CrewAI notes its last trace there
    monkeypatch.setenv("CREWAI_USER_PAT", "a token")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
    monkeypatch.setattr(TraceGrantClient, "create", create)
    monkeypatch.setattr(GrantSpanExporter, "_exporter", staticmethod(exporter))

    return told


class Traced(Flow[dict[str, Any]]):
    suppress_flow_events: bool = False
    _skip_auto_memory: bool = True

    @start()
    def work(self) -> str:
        return str(get_execution_uuid())


def crew_of(tracing: bool | None) -> Crew:
    clerk = Agent(role="clerk", goal="to serve", backstory="long", llm=Model(model="m"))
    task = Task(description="do it", expected_output="x", agent=clerk)
    return Crew(agents=[clerk], tasks=[task], tracing=tracing)


def test_a_crew_is_traced_as_natively(traced: Any) -> None:
    crew_of(True).kickoff()
    _, natively = traced()
    assert natively
    app = DurableCrew(crew_of(True), uuid.uuid4().hex)
    for run_id in (str(uuid.uuid4()), "order 17"):
        app.kickoff(run_id=run_id)
        (granted,), spans = traced()
        assert spans == natively
        assert granted == run_id or run_id == "order 17"
        app.kickoff(run_id=run_id)
        assert traced() == ([], []), "a run that has ended is not executed"


def test_tracing_is_off_where_it_is_natively(traced: Any) -> None:
    for tracing in (None, False):  # the environment says no
        crew_of(tracing).kickoff()
        DurableCrew(crew_of(tracing), uuid.uuid4().hex).kickoff()
    assert traced() == ([], [])


def test_a_flow_is_traced_under_one_id_in_every_process(traced: Any) -> None:
    Traced(tracing=True).kickoff()
    _, natively = traced()
    assert natively
    deaths = iter([True])

    class Dies(Traced):
        @start()
        def work(self) -> str:
            if next(deaths, False):
                raise Killed
            return str(get_execution_uuid())

    app = DurableFlow(lambda: Dies(tracing=True), uuid.uuid4().hex)
    with pytest.raises(Killed):
        app.kickoff(run_id="order 17")
    (died,), _ = traced()
    said = app.kickoff(run_id="order 17")
    assert died == said
    granted, spans = traced()
    assert granted == [said]
    assert [span.replace("Dies", "Traced") for span in spans] == natively
    assert get_execution_uuid() is None


def test_an_id_that_a_host_has_bound_stays(traced: Any) -> None:
    def hosted() -> list[str]:
        set_execution_uuid("the host's")
        app = DurableFlow(lambda: Traced(tracing=True), uuid.uuid4().hex)
        return [Traced(tracing=True).kickoff(), app.kickoff(), str(get_execution_uuid())]

    assert contextvars.copy_context().run(hosted) == ["the host's"] * 3
    assert traced() == ([], [])
