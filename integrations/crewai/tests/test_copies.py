"""A run has the models, memory and knowledge of the crew it copies, and shares nothing that a kickoff writes to."""

import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from crewai import LLM, Agent, Crew, Process, Task
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.agents.cache.cache_handler import CacheHandler
from crewai.knowledge.source.string_knowledge_source import StringKnowledgeSource
from crewai.llms.base_llm import BaseLLM
from crewai.memory.unified_memory import Memory
from crewai.tools import tool

import durable_agents
from durable_agents import runs
from durable_agents.crewai import DurableCrew
from durable_agents.crewai._copies import copy_of_crew
from durable_agents.crewai._private import WRITTEN

FINAL = "Thought: I now can give a great answer\nFinal Answer: "


class Model(BaseLLM):
    """Answers with its name; notes what it was told."""

    told: Any = None

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        if self.told is not None:
            self.told.append(str(messages[-1]["content"]))
        return f"{FINAL}{self.model}"


class Mine(LLM):
    """A model of a class of one's own, which `copy.copy` makes a plain `LLM` of."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Mine":
        return object.__new__(cls)

    def call(self, *args: Any, **kwargs: Any) -> str:
        return f"{FINAL}mine"


@pytest.fixture
def engine(database_url: str) -> Iterator[None]:
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()


def clerk(**options: Any) -> Agent:
    return Agent(
        **{"role": "clerk", "goal": "to serve", "backstory": "long", "llm": Model(model="m"), **options}
    )


def crew_of(agent: Agent, **options: Any) -> Crew:
    task = Task(description="do it", expected_output="x", agent=agent)
    return Crew(agents=[agent], tasks=[task], **options)


def durable(crew: Crew) -> DurableCrew:
    return DurableCrew(crew, uuid.uuid4().hex)


def test_a_model_of_a_class_of_ones_own_is_asked(engine: None) -> None:
    crew = crew_of(clerk(llm=Mine(model="gpt-4o")))
    assert durable(crew).kickoff().raw == crew.kickoff().raw == "mine"


def test_a_manager_of_a_class_of_ones_own_is_asked(engine: None) -> None:
    def managed() -> Crew:
        return crew_of(clerk(), process=Process.hierarchical, manager_llm=Mine(model="gpt-4o"))

    native = managed().kickoff().raw
    assert native.endswith("mine")
    assert durable(managed()).kickoff().raw == native


def test_every_model_is_the_users_own() -> None:
    models = {name: Mine(model="gpt-4o") for name in ("llm", "caller", "manager", "planner", "chat", "boss")}
    agent = clerk(llm=models["llm"], function_calling_llm=models["caller"])
    boss = clerk(role="boss", llm=models["boss"])
    llms = {"manager_llm": models["manager"], "planning_llm": models["planner"], "chat_llm": models["chat"]}
    crew = crew_of(agent, manager_agent=boss, function_calling_llm=models["caller"], **llms)
    copy = copy_of_crew(crew)
    assert (copy.manager_llm, copy.planning_llm, copy.chat_llm) == tuple(llms.values())
    assert copy.agents[0].llm is models["llm"]
    assert copy.manager_agent is not None
    assert copy.manager_agent.llm is models["boss"]
    for owner in (copy, copy.agents[0]):
        assert owner.__dict__["function_calling_llm"] is models["caller"]


class Notes:
    """Remembers in a list, and is no `Memory` at all."""

    read_only = False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.kept: list[str] = []

    def recall(self, query: str, **options: Any) -> list[Any]:
        self.asked.append(query)
        return []

    def extract_memories(self, content: str) -> list[str]:
        return ["a fact"]

    def remember_many(self, contents: list[str], **options: Any) -> list[Any]:
        self.kept += contents
        return []

    def drain_writes(self) -> None:
        pass


class NotedMemory(Memory):
    """A memory of a class of one's own."""

    _notes: Notes

    def __init__(self, notes: Notes) -> None:
        super().__init__(llm=Model(model="memory"), storage="unused", embedder=lambda texts: [])
        self._notes = notes

    def model_post_init(self, context: Any) -> None:
        """It opens no database."""
        self._read_only = False

    def recall(self, query: str, *args: Any, **options: Any) -> list[Any]:
        return self._notes.recall(query)

    def extract_memories(self, content: str) -> list[str]:
        return self._notes.extract_memories(content)

    def remember_many(self, contents: list[str], *args: Any, **options: Any) -> list[Any]:
        return self._notes.remember_many(contents)

    def drain_writes(self) -> None:
        pass


@pytest.mark.parametrize("whose", ["agent", "crew"])
@pytest.mark.parametrize("is_memory", [True, False])
def test_a_memory_of_a_class_of_ones_own_is_asked(engine: None, whose: str, is_memory: bool) -> None:
    def remembering(notes: Notes) -> Crew:
        crew = crew_of(clerk())
        memory: Any = NotedMemory(notes) if is_memory else notes
        if whose == "agent":
            crew.agents[0].memory = memory
        else:
            crew.memory = crew._memory = memory
        return crew

    natively, durably = Notes(), Notes()
    remembering(natively).kickoff()
    app = durable(remembering(durably))
    app.kickoff(run_id="r")
    assert (durably.asked, durably.kept) == (natively.asked, natively.kept)
    assert natively.asked
    assert natively.kept == ["a fact"]
    recorded = [step.name for step in runs.get("r").steps() if step.name.startswith("memory.")]
    assert recorded == (
        ["memory.recall", "memory.extract_memories", "memory.remember_many"] if is_memory else []
    )


def test_a_memory_that_a_crew_has_made_for_itself_stays() -> None:
    crew = crew_of(clerk())
    made: Any = Notes()
    crew.memory, crew._memory = True, made
    copy = copy_of_crew(crew)
    assert copy.memory is copy._memory is made
    assert crew.memory is True


def test_knowledge_is_the_users_own() -> None:
    class Knows:
        pass

    known: Any = Knows()
    source = StringKnowledgeSource(content="cats purr")
    agent = clerk()
    agent.knowledge, agent.knowledge_storage, agent.knowledge_sources = known, known, [source]
    crew = crew_of(agent)
    crew.knowledge, crew.knowledge_sources = known, [source]
    copy = copy_of_crew(crew)
    for owner in (copy, copy.agents[0]):
        assert owner.knowledge is known
        assert owner.knowledge_sources is not None
        assert owner.knowledge_sources[0] is source
    assert copy.agents[0].knowledge_storage is known


def test_only_what_a_kickoff_writes_to_is_not_the_users_own() -> None:
    """Of every field that CrewAI's classes have: a new one that is copied otherwise shows here."""

    def guard(output: Any) -> Any:
        return True, output

    @tool("count")
    def count() -> int:
        """Count."""
        return 1

    agent = clerk(tools=[count], callbacks=[print], step_callback=print, knowledge_sources=None)
    crew = crew_of(agent, task_callback=print, step_callback=print, before_kickoff_callbacks=[print])
    crew.tasks[0].guardrail = guard
    copy = copy_of_crew(crew)
    pairs: list[tuple[Any, Any]] = [
        (crew, copy),
        (crew.agents[0], copy.agents[0]),
        (crew.tasks[0], copy.tasks[0]),
    ]
    for original, copied in pairs:
        new = {name for cls, names in WRITTEN.items() if isinstance(original, cls) for name in names}
        for name, value in original.__dict__.items():
            if name not in new:
                mine = copied.__dict__[name]
                same = mine == value if type(value) in (list, dict, set) else mine is value
                assert same, f"{type(original).__name__}.{name}"
        assert copied.id != original.id
    assert copy.tasks[0].agent is copy.agents[0]
    assert copy.tasks[0].tools is copy.agents[0].tools is not agent.tools


def test_a_kickoff_leaves_the_users_crew_as_it_is(engine: None) -> None:
    crew = crew_of(clerk(role="clerk of {what}", max_rpm=100), cache=True, max_rpm=100, memory=False)
    crew.tasks[0].description = "do {what}"
    objects: list[Any] = [crew, crew.agents[0], crew.tasks[0]]
    before = [{**each.__dict__, **each.__pydantic_private__} for each in objects]
    assert durable(crew).kickoff({"what": "one"}).raw == "m"
    assert [{**each.__dict__, **each.__pydantic_private__} for each in objects] == before


def test_tools_results_are_cached_for_one_run() -> None:
    crew = crew_of(clerk(), cache=True)
    one, other = copy_of_crew(crew), copy_of_crew(crew)
    for copy in (one, other):
        handler = copy.agents[0].tools_handler.cache
        assert copy.agents[0].cache_handler is handler is copy._cache_handler
    assert len({id(each._cache_handler) for each in (crew, one, other)}) == 3

    class Shared(CacheHandler):
        pass

    shared = Shared()
    assert copy_of_crew(crew_of(clerk(cache_handler=shared))).agents[0].cache_handler is shared


def test_an_agent_with_a_copy_of_its_own_makes_it() -> None:
    class Counted(Agent):
        copies: ClassVar[list[Any]] = []

        def copy(self) -> Any:
            copied = super().copy()
            self.copies.append(copied)
            return copied

    agent = Counted(role="clerk", goal="to serve", backstory="long", llm=Model(model="m"))
    copy = copy_of_crew(crew_of(agent))
    assert copy.agents == agent.copies
    assert copy.agents[0].llm is agent.llm
    assert isinstance(copy.agents[0], BaseAgent)
