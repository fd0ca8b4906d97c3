"""What is CrewAI's own: batches, state, waits in tasks, what is refused, and that nothing else is touched."""

import asyncio
import inspect
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crewai import Agent, Crew, Task
from crewai.flow.flow import Flow, and_, listen, or_, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import persist
from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
from crewai.llms.base_llm import BaseLLM
from crewai.memory.unified_memory import Memory
from crewai.state.checkpoint_config import CheckpointConfig
from crewai.tools import tool
from pydantic import BaseModel

import durable_agents
from durable_agents import RunWaiting, runs
from durable_agents.crewai import DurableCrew, DurableFlow
from durable_agents.errors import (
    AlreadyAnswered,
    ConfigurationError,
    NotRecoverable,
    NotSupported,
    ResultNotRecorded,
)


class Killed(BaseException):
    """Ends a run where it stands, as the death of its process does."""


class Model(BaseLLM):
    calls: Any = None

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        if self.calls is not None:
            self.calls.append(1)
        self._track_token_usage_internal({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})
        told = str(messages[-1]["content"])
        said = "polite" if "be polite" in told else told.partition("do ")[2][:3]
        return f"Thought: I now can give a great answer\nFinal Answer: {said}"


def crew(calls: Any = None, **options: Any) -> Crew:
    model = Model(model="fake/m", calls=calls)
    clerk = Agent(role="clerk", goal="to serve", backstory="long", llm=model)
    other = Agent(role="clerk", goal="to help", backstory="long", llm=model)
    tasks = [
        Task(description="do {what}", expected_output="x", agent=clerk, **options),
        Task(description="do two", expected_output="x", agent=other),
    ]
    return Crew(agents=[clerk, other], tasks=tasks)


class Plain(Flow[dict[str, Any]]):
    suppress_flow_events: bool = True
    _skip_auto_memory: bool = True


@pytest.fixture(autouse=True)
def _engine(database_url: str) -> Iterator[None]:
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()


def name() -> str:
    return uuid.uuid4().hex


def test_each_item_of_a_batch_is_a_run() -> None:
    calls: list[int] = []
    app = DurableCrew(crew(calls), name())
    items = [{"what": "one"}, {"what": "six"}]
    first = app.kickoff_for_each(items, run_id="b")
    assert [out.tasks_output[0].raw for out in first] == ["one", "six"]
    assert sorted(run.id for run in runs.list()) == ["b/0", "b/1"]
    again = asyncio.run(app.kickoff_for_each_async(items, run_id="b"))
    assert [out.tasks_output[0].raw for out in again] == ["one", "six"]
    assert len(calls) == 4


def test_tokens_are_those_of_the_run() -> None:
    native = crew().kickoff({"what": "one"}).token_usage
    app = DurableCrew(crew(), name())
    for run_id in ("r1", "r2"):
        assert app.kickoff({"what": "one"}, run_id=run_id).token_usage == native
    assert runs.get("r2").usage.input_tokens == 14


def test_the_crew_is_not_changed_and_runs_side_by_side() -> None:
    native = crew()
    app = DurableCrew(native, name())
    started = [app.start({"what": what}, run_id=what) for what in ("one", "six", "ten")]
    assert [run.result(timeout=60).tasks_output[0].raw for run in started] == ["one", "six", "ten"]
    assert native.tasks[0].output is None
    assert native.tasks[0].description == "do {what}"


def test_a_crew_beside_a_durable_run_is_untouched() -> None:
    calls: list[int] = []
    native = crew(calls)
    app = DurableCrew(crew(), name())
    thread = threading.Thread(target=native.kickoff, args=({"what": "one"},))
    thread.start()
    app.kickoff({"what": "six"}, run_id="r")
    thread.join()
    assert len(calls) == 2
    assert [run.id for run in runs.list()] == ["r"]
    assert len([step for step in runs.get("r").steps() if step.kind == "model"]) == 2


def test_a_task_with_human_input_waits_for_answers() -> None:
    app = DurableCrew(crew(human_input=True), name())
    with pytest.raises(RunWaiting, match="human_input"):
        app.kickoff({"what": "one"}, run_id="r")
    run = runs.get("r")
    (asked,) = run.questions.values()
    assert asked["output"] == "one"
    with pytest.raises(ConfigurationError, match="feedback is text"):
        run.answer({"feedback": "be polite"})
    run.answer("be polite")
    with pytest.raises(RunWaiting):
        app.kickoff({"what": "one"}, run_id="r")
    run.answer("")
    assert run.result(timeout=60).tasks_output[0].raw == "polite"


class Caller(BaseLLM):
    """Gives its calls in one answer, then ends; dies where it is told to."""

    wanted: Any = None
    deaths: Any = ()

    def supports_function_calling(self) -> bool:
        return True

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        given = [message["content"] for message in messages if message["role"] == "tool"]
        if not given:
            return [
                {"id": id, "type": "function", "function": {"name": "pay", "arguments": f'{{"amount": {n}}}'}}
                for id, n in self.wanted
            ]
        if next(self.deaths, False):
            raise Killed
        return " ".join(given)


@pytest.mark.parametrize("ids", [("", ""), ("pay", "pay"), ("a", "b")])
@pytest.mark.parametrize("amounts", [(1, 1), (1, 2)])
def test_calls_without_an_id_of_their_own_run_side_by_side_and_once(
    ids: tuple[str, str], amounts: tuple[int, int]
) -> None:
    paid: list[int] = []
    both = threading.Barrier(2, timeout=20)

    @tool("pay")
    def pay(amount: int) -> str:
        """Pay an amount."""
        both.wait()
        paid.append(amount)
        return f"paid {amount}"

    model = Caller(model="fake/m", wanted=list(zip(ids, amounts, strict=True)), deaths=iter([True]))
    clerk = Agent(role="clerk", goal="to pay", backstory="long", llm=model, tools=[pay])
    task = Task(description="pay", expected_output="x", agent=clerk)
    app = DurableCrew(Crew(agents=[clerk], tasks=[task]), name())
    with pytest.raises(Killed):
        app.kickoff(run_id="r")
    assert app.kickoff(run_id="r").raw == f"paid {amounts[0]} paid {amounts[1]}"
    assert sorted(paid) == list(amounts)


def test_what_is_remembered_is_remembered_once(tmp_path: Path) -> None:
    embedded: list[str] = []

    def embed(texts: list[str]) -> list[list[float]]:
        embedded.extend(texts)
        return [[1.0, 0.5] for _ in texts]

    memory = Memory(storage=str(tmp_path / "memory"), llm=Model(model="fake/m"), embedder=embed)
    deaths = iter([True])

    class Remembers(Plain):
        @start()
        def remember(self) -> str:
            memory.remember("a cat", scope="/", categories=["pets"], importance=0.5)
            found = memory.recall("cat", depth="shallow")
            if next(deaths, False):
                raise Killed
            return f"{found[0].record.content} of {len(found)}"

    app = DurableFlow(Remembers, name())
    with pytest.raises(Killed):
        app.kickoff(run_id="r")
    before = len(embedded)
    assert before > 0
    assert app.kickoff(run_id="r") == "a cat of 1"
    assert len(embedded) == before
    assert [step.path for step in runs.get("r").steps()] == [
        "method:remember/tool:memory.remember",
        "method:remember/tool:memory.recall",
        "method:remember",
    ]


class Tally(BaseModel):
    count: int = 0
    log: list[str] = []
    by: dict[str, int] = {}


def test_methods_side_by_side_keep_each_others_changes_over_a_death() -> None:
    deaths = iter([True])
    both = threading.Barrier(2, timeout=20)
    ran: list[str] = []

    class Sides(Flow[Tally]):
        suppress_flow_events: bool = True
        _skip_auto_memory: bool = True

        @start()
        def begin(self) -> None:
            self.state.log.append("begin")

        @listen(begin)
        def left(self) -> None:
            both.wait()
            ran.append("left")
            self.state.count += 1
            self.state.log.append("left")
            self.state.by["left"] = 1

        @listen(begin)
        def right(self) -> None:
            self.state.log.append("right")
            self.state.count += 10
            if next(deaths, False):
                both.wait()
                while len(runs.get("r").steps()) < 2:
                    pass
                raise Killed
            ran.append("right")
            self.state.by["right"] = 2

        @listen(and_(left, right))
        def end(self) -> str:
            return f"{self.state.count} {sorted(self.state.log)} {sorted(self.state.by)}"

    app = DurableFlow(Sides, name())
    with pytest.raises(Killed):
        app.kickoff(run_id="r")
    assert app.kickoff(run_id="r") == "11 ['begin', 'left', 'right'] ['left', 'right']"
    assert ran == ["left", "right"]
    state = app.state("r")
    assert isinstance(state, Tally)
    assert (state.count, state.by, state.id) == (11, {"left": 1, "right": 2}, "r")  # type: ignore[attr-defined]


class Receipt:
    """No durable form."""

    def __init__(self, text: str) -> None:
        self.text = text


def test_a_method_whose_result_cannot_be_stored_does_not_run_again_to_give_it() -> None:
    acted: list[str] = []

    class Odd(Plain):
        @start()
        def pay(self) -> Any:
            acted.append("pay")
            return Receipt("paid")

        @listen(pay)
        def end(self, receipt: Any) -> Any:
            acted.append("end")
            return receipt

    app = DurableFlow(Odd, name())
    assert app.kickoff(run_id="r").text == "paid"
    for asking in (lambda: app.kickoff(run_id="r"), lambda: runs.get("r").result()):
        with pytest.raises(ResultNotRecorded, match=r"'method:pay' of run 'r'.*Receipt.*types="):
            asking()
    assert acted == ["pay", "end"]


def test_who_lost_a_race_does_not_run_again_to_give_a_result() -> None:
    acted: list[str] = []

    class Race(Plain):
        @start()
        def begin(self) -> None:
            acted.append("begin")

        @listen(begin)
        async def quick(self) -> None:
            acted.append("quick")

        @listen(begin)
        async def slow(self) -> None:
            acted.append("slow")
            await asyncio.sleep(30)

        @listen(or_(quick, slow))
        def end(self) -> Any:
            return Receipt("won")

    app = DurableFlow(Race, name())
    assert app.kickoff(run_id="r").text == "won"
    ran = list(acted)
    with pytest.raises(ResultNotRecorded, match="'method:end'"):
        app.kickoff(run_id="r")
    assert acted == ran
    assert sorted(ran) == ["begin", "quick", "slow"]


class Verdict(BaseModel):
    """Of a class that nobody has declared."""


def test_a_guardrail_does_not_run_again_to_give_a_result() -> None:
    judged: list[int] = []

    def judge(output: Any):  # type: ignore[no-untyped-def]
        judged.append(1)
        return True, output.model_copy(update={"pydantic": Verdict()})

    app = DurableCrew(crew(guardrail=judge), name())
    app.kickoff({"what": "one"}, run_id="r")
    with pytest.raises(ResultNotRecorded, match=r"guardrail:judge.*Verdict"):
        app.kickoff({"what": "one"}, run_id="r")
    assert len(judged) == 1


def test_what_cannot_be_recorded_is_restored_or_refused() -> None:
    class Uses(Plain):
        @start()
        def use(self) -> str:
            return f"used {type(self.state['client']).__name__}"

    client = threading.Lock()
    app = DurableFlow(Uses, name())
    assert app.kickoff({"client": client}, run_id="r") == "used lock"
    with pytest.raises(NotRecoverable, match=r"inputs\.client"):
        app.start({"client": client}, run_id="s")
    restoring = DurableFlow(Uses, name(), restore=lambda run: {"inputs.client": client})
    assert restoring.start({"client": client}, run_id="t").result(timeout=60) == "used lock"


def test_what_is_not_supported_says_so() -> None:
    streaming = crew()
    streaming.stream = True
    with pytest.raises(NotSupported, match="stream"):
        DurableCrew(streaming, name())
    with pytest.raises(ConfigurationError, match="class of a flow"):
        DurableFlow(Plain(), name())  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="from_checkpoint"):
        DurableCrew(crew(), name()).kickoff(from_checkpoint=CheckpointConfig())
    with pytest.raises(ValueError, match="No pending feedback"):
        DurableFlow(crew_flow(), name()).from_pending("nobody")


def crew_flow() -> type[Plain]:
    class Kicks(Plain):
        @start()
        def kick(self) -> str:
            return str(crew().kickoff({"what": "one"}).raw)

    return Kicks


def test_durable_agents_imports_no_crewai() -> None:
    code = "import sys, durable_agents; print([m for m in sys.modules if m.partition('.')[0] == 'crewai'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_tool_that_is_on_no_agent_and_may_run_only_once_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool("charge")
    def charge(amount: int) -> str:
        """Charge an amount."""
        return "receipt"

    native = crew()
    app = DurableCrew(native, name(), at_most_once={"charge", "chrage"})
    native.agents[0].tools = [charge]
    app.kickoff({"what": "one"})
    (told,) = [record.getMessage() for record in caplog.records if "at_most_once" in record.getMessage()]
    assert "named chrage" in told
    assert "there are charge" in told


def test_what_a_crews_users_read() -> None:
    native = crew()
    app = DurableCrew(native, name())
    assert (app.agents, app.tasks, app.usage_metrics) == (native.agents, native.tasks, None)
    output = app.kickoff({"what": "one"}, None)
    assert app.usage_metrics == output.token_usage == crew().kickoff({"what": "one"}, None).token_usage
    app.kickoff_for_each([{"what": "one"}, {"what": "six"}], None)
    assert app.usage_metrics.total_tokens == 2 * output.token_usage.total_tokens


@pytest.mark.parametrize("verb", ["kickoff", "kickoff_async", "akickoff"])
@pytest.mark.parametrize(("durable", "native"), [(DurableCrew, Crew), (DurableFlow, Flow)])
def test_verbs_have_the_native_parameters(durable: Any, native: Any, verb: str) -> None:
    ours, theirs = (list(inspect.signature(getattr(cls, verb)).parameters) for cls in (durable, native))
    assert ours == [*theirs, "run_id"]


# -- what a copy of a crew must not lose


class Says(Model):
    """Says its name, and what it was told to build on."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        told = str(messages[-1]["content"])
        built = [word for word in ("FROM-X", "FROM-Y") if word in told]
        return f"Thought: I now can give a great answer\nFinal Answer: FROM-{self.model} on {built}"


def sayer(name: str) -> Agent:
    return Agent(role="clerk", goal="to serve", backstory="long", llm=Says(model=name))


def test_agents_that_only_tasks_name() -> None:
    for agents in ([], [sayer("X")]):
        task = Task(description="do it", expected_output="x", agent=sayer("Y"))
        native = Crew(agents=agents, tasks=[task])
        assert (
            DurableCrew(native, name()).kickoff(run_id=name()).raw == native.kickoff().raw == "FROM-Y on []"
        )


def test_the_context_of_a_task_is_that_of_the_task_meant() -> None:
    """Two tasks of the same text: `Crew.copy` takes the one for the other."""
    x, y, z = sayer("X"), sayer("Y"), sayer("Z")
    first, second = (Task(description="do it", expected_output="x", agent=agent) for agent in (x, y))
    third = Task(description="build on it", expected_output="x", agent=z, context=[first])
    native = Crew(agents=[x, y, z], tasks=[first, second, third])
    durable = DurableCrew(native, name()).kickoff(run_id=name()).raw
    assert durable == native.kickoff().raw == "FROM-Z on ['FROM-X']"


def test_the_users_own_models_are_asked() -> None:
    planner = Says(model="planner")
    task = Task(description="do it", expected_output="x", agent=sayer("X"))
    app = DurableCrew(Crew(agents=[task.agent], tasks=[task], planning_llm=planner), name())
    assert app._make().planning_llm is planner


def test_a_crew_of_a_class_of_its_own_is_refused() -> None:
    class Mine(Crew):
        pass

    task = Task(description="do it", expected_output="x", agent=sayer("X"))
    with pytest.raises(NotSupported, match="Mine"):
        DurableCrew(Mine(agents=[task.agent], tasks=[task]), name())


# -- what methods that run side by side begin


class Optional(BaseModel):
    log: list[str] | None = None
    seen: set[str] | None = None
    items: list[str] = []
    count: int = 0


class SideBySide(Flow[Optional]):
    suppress_flow_events: bool = True
    _skip_auto_memory: bool = True

    @start()
    def begin(self) -> None:
        pass

    def _work(self, who: str) -> None:
        self.state.log = [*(self.state.log or []), who]
        self.state.seen = {*(self.state.seen or ()), who}
        self.state.items = [*self.state.items, who]
        self.state.count += 1

    @listen(begin)
    async def one(self) -> None:
        self._work("one")

    @listen(begin)
    async def two(self) -> None:
        self._work("two")

    @listen(and_(one, two))
    def end(self) -> Any:
        state = self.state
        return [sorted(state.log or []), sorted(state.seen or ()), sorted(state.items), state.count]


class Unstructured(Plain):
    @start()
    def begin(self) -> None:
        pass

    def _work(self, who: str) -> None:
        self.state.setdefault("log", []).append(who)
        self.state.setdefault("by", {})[who] = 1
        self.state["count"] = self.state.get("count", 0) + 1

    @listen(begin)
    async def one(self) -> None:
        self._work("one")

    @listen(begin)
    async def two(self) -> None:
        self._work("two")

    @listen(and_(one, two))
    def end(self) -> Any:
        return [sorted(self.state["log"]), sorted(self.state["by"]), self.state["count"]]


@pytest.mark.parametrize("flow", [SideBySide, Unstructured])
def test_what_two_methods_begin_side_by_side_is_kept_from_both(flow: Any) -> None:
    native = flow().kickoff()
    app = DurableFlow(flow, name())
    run_id = name()
    assert app.kickoff(run_id=run_id) == native
    assert native[0] == ["one", "two"]
    assert native[-1] == 2


# -- state that CrewAI keeps


class Log(BaseModel):
    id: str = ""
    said: str = ""
    log: list[str] = []


@pytest.mark.parametrize("kind", [dict, Log])
def test_a_replay_begins_from_the_state_that_the_run_began_from(tmp_path: Path, kind: Any) -> None:
    deaths = iter([True, False, True])

    @persist(SQLiteFlowPersistence(str(tmp_path / "flows.sqlite")))
    class Chat(Flow[kind]):  # type: ignore[valid-type]
        suppress_flow_events: bool = True
        _skip_auto_memory: bool = True

        def note(self, what: str) -> list[str]:
            if kind is Log:
                self.state.log.append(f"{what} {self.state.said}")
                return list(self.state.log)
            self.state.setdefault("log", []).append(f"{what} {self.state['said']}")
            return list(self.state["log"])

        @start()
        def hear(self) -> None:
            self.note("heard")

        @listen(hear)
        @human_feedback(message="fine?")
        def ask(self) -> str:
            self.note("asked")
            return "fine?"

        @listen(ask)
        def reply(self) -> list[str]:
            if next(deaths, False):
                raise Killed
            return self.note("replied")

    app = DurableFlow(Chat, name())
    logged = []
    for said in ("one", "two"):
        app.kickoff({"id": "chat", "said": said}, run_id=said)
        with pytest.raises(Killed):
            app.resume("yes", run_id=said)
        logged += [f"heard {said}", f"asked {said}", f"replied {said}"]
        assert app.kickoff({"id": "chat", "said": said}, run_id=said) == logged
    assert runs.get("two").steps()[0].path == "state:chat"


def test_feedback_that_comes_late_answers_no_later_question() -> None:
    class Twice(Plain):
        @start()
        @human_feedback(message="first?")
        def one(self) -> str:
            return "1"

        @listen(one)
        @human_feedback(message="second?")
        def two(self) -> str:
            return "2"

    app = DurableFlow(Twice, name())
    app.kickoff(run_id="r")
    late = app._feedback("no", None, "r")  # the process that says so stands still here
    app.resume("yes", run_id="r")
    (second,) = runs.get("r").questions
    with pytest.raises(AlreadyAnswered):
        app.call(*late)
    assert list(runs.get("r").questions) == [second]


def test_a_result_that_is_asked_for_again_saves_no_state(tmp_path: Path) -> None:
    """Later runs have moved it on."""

    @persist(SQLiteFlowPersistence(str(tmp_path / "flows.sqlite")))
    class Odd(Plain):
        @start()
        def hear(self) -> None:
            self.state.setdefault("log", []).append(self.state["said"])

        @listen(hear)
        def reply(self) -> Any:
            return Receipt(str(self.state["log"]))

    app = DurableFlow(Odd, name())
    app.kickoff({"id": "chat", "said": "one"}, run_id="one")
    app.kickoff({"id": "chat", "said": "two"}, run_id="two")
    with pytest.raises(ResultNotRecorded):
        app.kickoff({"id": "chat", "said": "one"}, run_id="one")
    assert app.kickoff({"id": "chat", "said": "three"}, run_id="three").text == "['one', 'two', 'three']"
