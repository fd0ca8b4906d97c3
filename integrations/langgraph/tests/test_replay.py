"""What a replay serves: the same calls get the same records, however their tasks, order or arguments look."""

import asyncio
import operator
import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel

import durable_agents
from durable_agents import runs
from durable_agents._core.journal import Journal
from durable_agents.errors import DivergedError
from durable_agents.langgraph import DurableGraph

EFFECTS: list[str] = []


class Killed(BaseException):
    """Ends a run where it stands, without an outcome, as the death of its process does."""


@pytest.fixture(autouse=True)
def engine(database_url: str) -> Iterator[None]:
    EFFECTS.clear()
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


@tool
def pay(n: int, at: float = 0) -> str:
    """Pay."""
    EFFECTS.append(f"pay {n}")
    return f"receipt {n}"


class Echo(BaseChatModel):
    """Answers with what it was asked."""

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        EFFECTS.append("model")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(str(messages[-1].content)))])


def durable(graph: Any, **options: Any) -> Any:
    return DurableGraph(graph, f"g{uuid.uuid4().hex}", **options)


def one(node: Any, **options: Any) -> Any:
    graph = StateGraph(Log)
    graph.add_node("node", node, **options)
    graph.add_edge(START, "node")
    return durable(graph.compile())


def killed_once() -> Any:
    """Raises `Killed` at its first call."""
    calls: list[int] = []

    def kill() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise Killed

    return kill


def twice(app: Any, input: Any, *, is_async: bool) -> Any:
    """The result of a run that is killed in its first life."""

    def life() -> Any:
        if is_async:
            return asyncio.run(app.ainvoke(input, run_id="r"))
        return app.invoke(input, run_id="r")

    with pytest.raises(Killed):
        life()
    return life()


# -- arguments that differ on replay


def test_a_tool_called_with_the_time_does_not_run_again_in_an_async_node() -> None:
    kill = killed_once()

    async def node(state: Log) -> Log:
        receipt = await pay.ainvoke({"n": 1, "at": time.time()})
        kill()
        return {"log": [receipt]}

    with pytest.raises(DivergedError):
        twice(one(node), {"log": []}, is_async=True)
    assert EFFECTS == ["pay 1"]


@pytest.mark.parametrize("chained", [False, True])
def test_a_model_asked_with_the_time_is_served_in_an_async_node(chained: bool) -> None:
    kill = killed_once()
    model = RunnableLambda(lambda text: text) | Echo() if chained else Echo()

    async def node(state: Log) -> Log:
        answer = await model.ainvoke(f"now {time.time()}")
        kill()
        return {"log": [answer.content[:3]]}

    assert twice(one(node), {"log": []}, is_async=True) == {"log": ["now"]}
    assert EFFECTS == ["model"]


def test_an_agent_called_with_the_time_goes_on_where_it_was() -> None:
    kill, inner = killed_once(), create_agent(Echo(), [])

    async def node(state: Log) -> Log:
        answer = await inner.ainvoke({"messages": [("user", f"now {time.time()}")]})
        kill()
        return {"log": [answer["messages"][-1].content[:3]]}

    assert twice(one(node), {"log": []}, is_async=True) == {"log": ["now"]}
    assert EFFECTS == ["model"]


def test_a_tool_argument_without_durable_form_is_no_divergence() -> None:
    class Client:
        pass

    @tool
    def use(client: Any, names: Any) -> str:
        """Use."""
        EFFECTS.append("use")
        return "used"

    kill = killed_once()

    def node(state: Log) -> Log:
        used = use.invoke({"client": Client(), "names": {"a", "b", "c"}})
        kill()
        return {"log": [used]}

    assert twice(one(node), {"log": []}, is_async=False) == {"log": ["used"]}
    assert EFFECTS == ["use"]


# -- order


@pytest.mark.parametrize("spread", ["gather", "threads"])
def test_tasks_called_in_parallel_get_their_own_results(spread: str) -> None:
    kill, lives = killed_once(), []

    @task
    async def slow(n: int) -> int:
        EFFECTS.append(f"slow {n}")
        return n

    async def call(n: int) -> int:
        await asyncio.sleep(0.03 * (n if len(lives) == 1 else 3 - n))
        return await slow(n)

    @entrypoint()
    async def flow(_: Any) -> list[int]:
        lives.append(1)
        found = await asyncio.gather(*[call(n) for n in range(3)])
        kill()
        return list(found)

    assert twice(durable(flow), "go", is_async=True) == [0, 1, 2]
    assert sorted(EFFECTS) == ["slow 0", "slow 1", "slow 2"]


def test_a_task_that_is_spawned_and_awaited_later_is_known_by_its_input() -> None:
    """Replayed, the call before the await returns at once: the spawned task must not be taken for the node's own."""
    kill = killed_once()

    async def node(state: Log) -> Log:
        spawned = asyncio.create_task(pay.ainvoke({"n": 2}))
        first = await pay.ainvoke({"n": 1})
        second = await spawned
        kill()
        return {"log": [first, second]}

    assert twice(one(node), {"log": []}, is_async=True) == {"log": ["receipt 1", "receipt 2"]}
    assert sorted(EFFECTS) == ["pay 1", "pay 2"]


def test_tasks_of_a_failed_attempt_run_again_in_the_next_as_natively() -> None:
    tries: list[int] = []

    @task
    def work(n: int) -> int:
        EFFECTS.append(f"work {n}")
        return n

    @entrypoint(
        retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.01, jitter=False, retry_on=ValueError)
    )
    def flow(n: int) -> int:
        found = work(n).result()
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        return found

    assert durable(flow).invoke(7) == 7
    assert EFFECTS == ["work 7", "work 7"]


# -- streams


class Streaming(Echo):
    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[Any]:
        EFFECTS.append("stream")
        yield ChatGenerationChunk(message=AIMessageChunk("hel"))
        yield ChatGenerationChunk(message=AIMessageChunk("lo", chunk_position="last"))
        used = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        yield ChatGenerationChunk(message=AIMessageChunk("", usage_metadata=used))


def test_the_usage_after_the_last_chunk_belongs_to_the_record() -> None:
    kill = killed_once()

    def node(state: Log) -> Log:
        chunks = list(Streaming().stream("hi"))
        kill()
        return {"log": ["".join(str(c.content) for c in chunks), sum(bool(c.usage_metadata) for c in chunks)]}

    assert twice(one(node), {"log": []}, is_async=False) == {"log": ["hello", 1]}
    assert EFFECTS == ["stream"]
    assert runs.get("r").usage.output_tokens == 2


# -- waits


def ask(state: Log) -> Log:
    return {"log": [interrupt("ok?")]}


@pytest.mark.parametrize("natively", [True, False])
def test_an_answer_counts_when_the_state_was_edited_meanwhile(natively: bool) -> None:
    app, thread = one(ask), {"configurable": {"thread_id": "t"}}
    app.invoke({"log": ["in"]}, thread, run_id="r")
    app.update_state(thread, {"log": ["edited"]})
    if natively:
        app.invoke(Command(resume="yes"), thread)
    else:
        runs.get("r").answer("yes")
    assert runs.get("r").result(10) == {"log": ["in", "edited", "yes"]}


def test_an_answer_without_a_thread_names_its_run() -> None:
    app = one(ask)
    app.invoke({"log": []}, run_id="r")
    assert app.invoke(Command(resume="yes"), run_id="r") == {"log": ["yes"]}


# -- where a run is called


def test_a_durable_graph_called_in_a_native_graphs_node_has_a_run_of_its_own() -> None:
    inner = one(lambda state: {"log": [pay.invoke({"n": 1})]})

    def call(state: Log) -> Log:
        return {"log": inner.invoke({"log": []}, run_id="inner")["log"]}

    outer = StateGraph(Log)
    outer.add_node("call", call)
    outer.add_edge(START, "call")
    for saver in (None, InMemorySaver()):
        thread = {"configurable": {"thread_id": uuid.uuid4().hex}}
        assert outer.compile(checkpointer=saver).invoke({"log": []}, thread) == {"log": ["receipt 1"]}
    assert runs.get("inner").result() == {"log": ["receipt 1"]}
    assert EFFECTS == ["pay 1"]


def test_tags_and_metadata_are_no_part_of_what_a_run_id_stands_for() -> None:
    app = one(lambda state: {"log": [1]})
    results = [
        app.invoke({"log": []}, {"metadata": {"request": n}, "tags": [str(n)]}, run_id="r") for n in (1, 2)
    ]
    assert results == [{"log": [1]}, {"log": [1]}]


class Answer(BaseModel):
    text: str


class Structured(Echo):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        calls = [{"name": "Answer", "args": {"text": "42"}, "id": "a1"}]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=calls))])


def test_structured_output_of_an_agent_is_stored() -> None:
    from langchain.agents.structured_output import ToolStrategy

    agent = create_agent(Structured(), [], response_format=ToolStrategy(Answer))
    app = durable(agent)
    assert app.invoke({"messages": [("user", "?")]}, run_id="r")["structured_response"] == Answer(text="42")
    assert runs.get("r").result()["structured_response"] == Answer(text="42")


def test_start_drives_tools_without_a_sync_form_asynchronously() -> None:
    @tool
    async def later(n: int) -> str:
        """Later."""
        return f"later {n}"

    class Calls(Echo):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> ChatResult:
            called = any(m.type == "tool" for m in messages)
            calls = [] if called else [{"name": "later", "args": {"n": 1}, "id": "c1"}]
            return ChatResult(generations=[ChatGeneration(message=AIMessage("done", tool_calls=calls))])

    result = durable(create_agent(Calls(), [later])).start({"messages": [("user", "?")]}).result(10)
    assert [m.content for m in result["messages"]] == ["?", "done", "later 1", "done"]


# -- what ends a node


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_and_exit_in_a_node_reach_the_caller_and_the_run_goes_on(
    kind: type[BaseException], is_async: bool
) -> None:
    calls: list[int] = []

    def act() -> Log:
        receipt = pay.invoke({"n": 1})
        calls.append(1)
        if len(calls) == 1:
            raise kind
        return {"log": [receipt]}

    async def aact(state: Log) -> Log:
        return act()

    app = one(aact if is_async else lambda state: act())

    def invoke() -> Any:
        return (
            asyncio.run(app.ainvoke({"log": []}, run_id="r"))
            if is_async
            else app.invoke({"log": []}, run_id="r")
        )

    with pytest.raises(kind):
        invoke()
    assert runs.get("r").status == "running"
    assert invoke() == {"log": ["receipt 1"]}
    assert EFFECTS == ["pay 1"]


def test_an_error_in_a_node_ends_the_run_with_it() -> None:
    def act(state: Log) -> Log:
        pay.invoke({"n": 1})
        raise LookupError("no such order")

    app = one(act)
    for _ in range(2):
        with pytest.raises(LookupError, match="no such order"):
            app.invoke({"log": []}, run_id="r")
    assert EFFECTS == ["pay 1"]
    assert (runs.get("r").status, str(runs.get("r").error)) == ("failed", "no such order")


class Order(BaseModel):
    id: int
    note: str = ""


class Kept(TypedDict):
    """State that LangGraph gives back in another form: lists for tuples, all fields of a model as set."""

    messages: Annotated[list[Any], add_messages]
    stops: list[tuple[float, float]]
    orders: list[Order]


@tool
def book(what: Any) -> str:
    """Book."""
    EFFECTS.append("book")
    return "booked"


@task
async def booking(what: Any) -> str:
    return str(await book.ainvoke({"what": what}))


def booking_agent(number: int) -> Any:
    builder = StateGraph(Kept)
    builder.add_node("act", lambda state: {"messages": [AIMessage(book.invoke({"what": number}))]})
    builder.add_edge(START, "act")
    return builder.compile()


AGENTS = [booking_agent(1), booking_agent(2)]


def one_by_one(state: Kept) -> None:
    for what in (state["messages"], state["stops"], state["stops"][0], state["orders"][0], "\ud800"):
        book.invoke({"what": what})


def in_threads(state: Kept) -> None:
    book.batch([{"what": what} for what in (*state["stops"], *state["orders"], state["messages"])])


async def gathered_agents(state: Kept) -> None:
    await asyncio.gather(*(agent.ainvoke(dict(state)) for agent in AGENTS))


async def gathered_tools(state: Kept) -> None:
    calls = ({"what": what} for what in (state["messages"], *state["stops"], *state["orders"]))
    await asyncio.gather(*(book.ainvoke(call) for call in calls))


async def gathered_tasks(state: Kept) -> None:
    await asyncio.gather(booking(state["messages"]), booking(state["stops"]), booking(state["orders"][0]))


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("act", [one_by_one, in_threads, gathered_agents, gathered_tools, gathered_tasks])
def test_an_input_that_was_kept_by_the_state_is_the_same_input(act: Any, is_planned: bool) -> None:
    given = {
        "messages": [("user", "go")],
        "stops": [(38.7, -9.1), (41.1, -8.6)],
        "orders": [Order(id=1), Order(id=2)],
    }
    killed: list[int] = []

    def die() -> None:
        killed.append(len(EFFECTS))
        if len(killed) == 1:
            raise Killed

    def node(state: Kept) -> None:
        act(state)
        die()

    async def anode(state: Kept) -> None:
        await act(state)
        die()

    builder = StateGraph(Kept)
    builder.add_node("plan", (lambda _: given) if is_planned else (lambda _: None))
    builder.add_node("act", anode if asyncio.iscoroutinefunction(act) else node)
    builder.add_edge(START, "plan" if is_planned else "act")
    builder.add_edge("plan", "act")
    app = durable(builder.compile())
    for attempt in (1, 2):
        try:
            asyncio.run(app.ainvoke({} if is_planned else given, run_id=f"kept {app.name}"))
        except Killed:
            assert attempt == 1
    assert killed == [len(EFFECTS)] * 2
    assert set(EFFECTS) == {"book"}


def test_a_run_whose_first_checkpoint_is_lost_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writes of its input, which another thread stores, had been committed already."""
    app = one(lambda state: {"log": [len(state["log"])]})
    thread: Any = {"configurable": {"thread_id": "t"}}
    app.invoke({"log": ["a"]}, thread, run_id="before")
    stage = Journal.stage

    def stage_writes_first(self: Journal, statements: Any) -> None:
        if self.run_id != "r":
            stage(self, statements)
        elif any("langgraph_checkpoint" in statement.sql for statement in statements):
            while not self.has_staged:
                time.sleep(0.01)
            self.flush()
            raise Killed
        elif not self.has_staged:
            stage(self, statements)

    monkeypatch.setattr(Journal, "stage", stage_writes_first)
    with pytest.raises(Killed):
        app.invoke({"log": ["b"]}, thread, run_id="r")
    monkeypatch.undo()
    assert app.invoke({"log": ["b"]}, thread, run_id="r") == {"log": ["a", 1, "b", 3]}
