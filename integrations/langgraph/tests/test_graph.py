"""`DurableGraph` behaves as the graph it wraps, and what it cannot do it says at once."""

import asyncio
import operator
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel

import durable_agents
from durable_agents import RunWaiting, runs
from durable_agents._core.engine import RUNNERS
from durable_agents.errors import (
    ConfigurationError,
    EncodingError,
    InputMismatch,
    NotRecoverable,
    NotSupported,
    RunCancelled,
)
from durable_agents.langgraph import DurableGraph


@pytest.fixture(autouse=True)
def engine(database_url: str) -> Iterator[None]:
    durable_agents.launch(database_url, heartbeat=0.05, grace=0.2, poll=0.05)
    yield
    durable_agents.shutdown()


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


def durable(graph: Any, **options: Any) -> Any:
    """A runner with a name of its own: names are unique in a process."""
    return DurableGraph(graph, f"g{uuid.uuid4().hex}", **options)


def line(*nodes: Any, **options: Any) -> Any:
    """A compiled graph of these nodes, one after the other."""
    graph = StateGraph(Log)
    for node in nodes:
        graph.add_node(node.__name__, node, **options)
    for before, after in zip(
        [START, *(n.__name__ for n in nodes)], [n.__name__ for n in nodes], strict=False
    ):
        graph.add_edge(before, after)
    return graph.compile()


def thread(name: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


class Parrot(BaseChatModel):
    """Answers with what it was asked, and counts in its class how often."""

    calls: int = 0

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        type(self).seen.append(messages[-1].content)
        used = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(messages[-1].content, usage_metadata=used))]
        )


Parrot.seen = []  # type: ignore[attr-defined]


def a(state: Log) -> Log:
    return {"log": ["a"]}


def b(state: Log) -> Log:
    return {"log": ["b"]}


def ask(state: Log) -> Log:
    return {"log": [interrupt("first?"), interrupt("second?")]}


# -- the object


def test_it_is_an_instance_of_the_graphs_own_class_and_leaves_the_graph_alone() -> None:
    graph = line(a, b)
    app = durable(graph)
    assert isinstance(app, CompiledStateGraph)
    assert isinstance(app, DurableGraph)
    assert graph.checkpointer is None
    assert app.get_graph().draw_mermaid() == graph.get_graph().draw_mermaid()
    assert app.invoke({"log": []}) == graph.invoke({"log": []})


def test_with_config_gives_a_copy_whose_runs_are_the_same_runners() -> None:
    app = durable(line(a))
    tagged = app.with_config(configurable={"thread_id": "tagged"})
    tagged.invoke({"log": []}, run_id="r")
    assert runs.get("r").runner == app.durable.name
    assert app.get_state(thread("tagged")).values == {"log": ["a"]}


def test_durable_picks_the_runner_by_the_objects_framework() -> None:
    app = durable_agents.durable(line(a), f"g{uuid.uuid4().hex}")
    assert isinstance(app, DurableGraph)
    with pytest.raises(NotSupported, match="LangGraph"):
        durable_agents.durable(object())


def test_names_default_to_the_module_and_are_unique() -> None:
    first = DurableGraph(line(a))
    try:
        assert first.durable.name == "langgraph.test_graph.LangGraph"
        with pytest.raises(ConfigurationError, match="another name="):
            DurableGraph(line(a))
    finally:
        del RUNNERS[first.durable.name]


def test_a_graph_with_a_persistent_checkpointer_is_refused_until_told_to_ignore_it() -> None:
    with SqliteSaver.from_conn_string(":memory:") as saver:
        graph = line(a).copy({"checkpointer": saver})
        with pytest.raises(ConfigurationError, match="ignore_checkpointer"):
            durable(graph)
        assert durable(graph, ignore_checkpointer=True).invoke({"log": []}, run_id="1") == {"log": ["a"]}
    assert durable(line(a).copy({"checkpointer": InMemorySaver()})).invoke({"log": []}, run_id="2") == {
        "log": ["a"]
    }


@pytest.mark.parametrize("wrapped", [StateGraph(Log), object(), None])
def test_only_compiled_graphs_are_wrapped(wrapped: Any) -> None:
    with pytest.raises(ConfigurationError, match="compile"):
        DurableGraph(wrapped)


# -- runs


def test_the_same_run_id_attaches_and_another_input_is_refused() -> None:
    ran = []

    def count(state: Log) -> Log:
        ran.append(1)
        return {"log": ["once"]}

    app = durable(line(count))
    assert app.invoke({"log": []}, run_id="r") == app.invoke({"log": []}, run_id="r") == {"log": ["once"]}
    assert asyncio.run(app.ainvoke({"log": []}, run_id="other")) == {"log": ["once"]}
    assert len(ran) == 2
    with pytest.raises(InputMismatch, match="another input"):
        app.invoke({"log": ["x"]}, run_id="r")


def test_start_queues_sync_and_async_graphs() -> None:
    async def slow(state: Log) -> Log:
        await asyncio.sleep(0)
        return {"log": ["async"]}

    assert durable(line(a)).start({"log": []}).result(10) == {"log": ["a"]}
    assert durable(line(slow)).start({"log": []}).result(10) == {"log": ["async"]}


def test_steps_read_as_the_place_in_the_graph_with_usage() -> None:
    @tool
    def charge(n: int) -> str:
        """Charge."""
        return f"receipt {n}"

    def act(state: Log) -> Log:
        return {"log": [Parrot().invoke("hello").content, charge.invoke({"n": 1}), charge.invoke({"n": 2})]}

    app = durable(line(act))
    app.invoke({"log": []}, run_id="r")
    run = runs.get("r")
    assert [(step.path, step.kind) for step in run.steps()] == [
        ("1/node:act/model:Parrot", "model"),
        ("1/node:act/tool:charge", "tool"),
        ("1/node:act/tool:charge#2", "tool"),
        ("1/node:act", "node"),
    ]
    assert (run.usage.input_tokens, run.usage.output_tokens) == (3, 2)


def test_every_step_of_a_fan_out_has_a_path_of_its_own() -> None:
    @tool
    def work(n: int) -> int:
        """Work."""
        return n * 10

    graph = StateGraph(Log)
    graph.add_node("each", lambda item: {"log": [work.invoke({"n": item["n"]})]})
    graph.add_conditional_edges(START, lambda state: [Send("each", {"n": n}) for n in (1, 2, 3)], ["each"])
    app = durable(graph.compile())
    assert app.invoke({"log": []}, run_id="r") == {"log": [10, 20, 30]}
    paths = [step.path for step in runs.get("r").steps()]
    assert len(set(paths)) == len(paths) == 6
    assert "1/node:each:2/tool:work" in paths


def test_errors_keep_their_type_and_are_raised_again_on_attach() -> None:
    class Broke(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__(f"code {code}")
            self.code = code

    def fail(state: Log) -> Log:
        raise Broke(code=7)

    app = durable(line(fail))
    with pytest.raises(Broke):
        app.invoke({"log": []}, run_id="r")
    assert runs.get("r").status == "failed"
    with pytest.raises(Exception, match="code 7"):
        app.invoke({"log": []}, run_id="r")


def test_a_retry_policy_retries_as_natively_and_each_attempt_is_recorded() -> None:
    tries: list[int] = []

    def flaky(state: Log) -> Log:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return {"log": ["done"]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=ValueError)
    app = durable(line(flaky, retry_policy=policy))
    assert app.invoke({"log": []}, run_id="r") == {"log": ["done"]}
    steps = runs.get("r").steps()
    assert [(step.path, step.attempts, step.error) for step in steps] == [
        ("1/node:flaky", 1, "not yet"),
        ("1/node:flaky@2", 2, "not yet"),
        ("1/node:flaky@3", 3, None),
    ]


def test_the_functional_api() -> None:
    @task
    def double(x: int) -> int:
        return x * 2

    @entrypoint()
    def flow(xs: list[int]) -> int:
        return sum(future.result() for future in [double(x) for x in xs])

    app = durable(flow)
    assert app.invoke([1, 2, 3], run_id="r") == 12
    assert runs.get("r").result() == 12
    assert [s.path for s in runs.get("r").steps() if s.kind == "task"].count("0/node:flow/task:double:0") == 1


# -- threads and state


def test_a_thread_goes_on_over_runs_and_its_history_is_the_native_one() -> None:
    native = line(a, b).copy({"checkpointer": InMemorySaver()})
    app = durable(line(a, b))
    for graph in (native, app):
        graph.invoke({"log": ["1"]}, thread())
        graph.invoke({"log": ["2"]}, thread())
    shown = [
        [
            (s.values, s.next, s.metadata["source"], s.metadata["step"])
            for s in graph.get_state_history(thread())
        ]
        for graph in (native, app)
    ]
    assert shown[0] == shown[1]
    app.update_state(thread(), {"log": ["edited"]})
    native.update_state(thread(), {"log": ["edited"]})
    assert app.get_state(thread()).values == native.get_state(thread()).values


def test_messages_are_the_native_ones() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("say", lambda state: {"messages": [Parrot().invoke(state["messages"])]})
    graph.add_edge(START, "say")
    compiled = graph.compile()
    native, mine = (
        compiled.invoke({"messages": [("user", "hi")]}),
        durable(compiled).invoke({"messages": [("user", "hi")]}),
    )
    assert [(type(m), m.content) for m in native["messages"]] == [
        (type(m), m.content) for m in mine["messages"]
    ]
    assert isinstance(mine["messages"][0], HumanMessage)


class Money(BaseModel):
    amount: int


class Priced(TypedDict):
    price: Money


def test_types_of_the_schema_are_stored_and_others_are_refused_when_written() -> None:
    graph = StateGraph(Priced)
    graph.add_node("pay", lambda state: {"price": Money(amount=state["price"].amount + 1)})
    graph.add_edge(START, "pay")
    app = durable(graph.compile())
    assert app.invoke({"price": Money(amount=1)}, run_id="r") == {"price": Money(amount=2)}
    assert runs.get("r").result() == {"price": Money(amount=2)}

    made = [Money(amount=1)]

    def odd(state: Log) -> Log:  # names no class
        return {"log": [*made]}

    with pytest.raises(EncodingError, match="Money"):
        durable(line(odd)).invoke({"log": []})
    assert durable(line(odd), types=[Money]).invoke({"log": []}) == {"log": [Money(amount=1)]}


# -- waits


def test_two_interrupts_of_one_node_get_one_answer_each() -> None:
    app = durable(line(ask))
    first = app.invoke({"log": []}, thread(), run_id="r")
    assert [i.value for i in first["__interrupt__"]] == ["first?"]
    assert runs.get("r").status == "waiting"
    assert list(runs.get("r").questions.values()) == ["first?"]
    assert app.invoke({"log": []}, thread(), run_id="r") == first
    second = app.invoke(Command(resume=1), thread())
    assert [i.value for i in second["__interrupt__"]] == ["second?"]
    runs.get("r").answer(2)
    assert runs.get("r").result(10) == {"log": [1, 2]}


def test_a_waiting_run_has_no_result_and_a_new_input_supersedes_it() -> None:
    app = durable(line(ask))
    app.invoke({"log": []}, thread(), run_id="waits")
    with pytest.raises(RunWaiting, match=r"answer\(value\)"):
        runs.get("waits").result()
    app.invoke({"log": ["new"]}, thread(), run_id="next")
    assert runs.get("waits").status == "cancelled"
    assert runs.get("next").status == "waiting"


def test_several_questions_need_the_interrupts_id_as_natively() -> None:
    graph = StateGraph(Log)
    for name in ("x", "y"):
        graph.add_node(name, lambda state, name=name: {"log": [(name, interrupt(name))]})
        graph.add_edge(START, name)
    app = durable(graph.compile())
    asked = app.invoke({"log": []}, thread(), run_id="r")["__interrupt__"]
    with pytest.raises(RuntimeError, match="multiple pending interrupts"):
        app.invoke(Command(resume="?"), thread())
    ids = {i.value: i.id for i in asked}
    half = app.invoke(Command(resume={ids["x"]: 1}), thread())
    assert [i.value for i in half["__interrupt__"]] == ["y"]
    runs.get("r").answer(2, ids["y"])
    assert sorted(runs.get("r").result(10)["log"]) == [
        ["x", 1],
        ["y", 2],
    ]  # as natively, tuples are lists once stored


# -- streams


def test_streams_give_the_native_events_sync_and_async() -> None:
    def events(graph: Any, **kwargs: Any) -> list[Any]:
        return list(graph.stream({"log": []}, stream_mode=["updates", "values", "custom"], **kwargs))

    async def aevents(graph: Any) -> list[Any]:
        return [e async for e in graph.astream({"log": []}, stream_mode=["updates", "values", "custom"])]

    native = events(line(a, b))
    assert events(durable(line(a, b)), run_id="r") == native
    assert asyncio.run(aevents(durable(line(a, b)))) == native
    assert runs.get("r").result() == {"log": ["a", "b"]}


class Note(BaseModel):
    value: str = ""


def test_states_of_a_class_are_streamed_as_objects() -> None:
    def events(graph: Any) -> list[Any]:
        return [event["data"] for event in graph.stream({"value": "x"}, stream_mode="values", version="v2")]

    graph = (
        StateGraph(Note)
        .add_node("a", lambda note: {"value": note.value + "a"})
        .add_edge(START, "a")
        .compile()
    )
    assert events(durable(graph)) == events(graph) == [Note(value="x"), Note(value="xa")]


@pytest.mark.timeout(30)
def test_a_node_may_leave_a_models_protocol_events_before_they_end() -> None:
    """Its output is whole then, and recorded: nobody waits for the rest."""

    def talk(state: Any) -> Any:
        return {"messages": model.stream_events(state["messages"], version="v3").output}

    graph = StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk").compile()
    app = durable(graph)
    for run_id in ("r1", "r2"):
        model = GenericFakeChatModel(messages=iter(["streamed answer"]))
        said = app.invoke({"messages": "go"}, run_id=run_id)["messages"][-1]
        assert said.text == "streamed answer"
        assert [step.kind for step in runs.get(run_id).steps()] == ["model", "node"]


def test_leaving_a_stream_early_stops_the_graph_and_cancels_the_run() -> None:
    ran: list[str] = []

    def first(state: Log) -> Log:
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        ran.append("second")
        return {"log": ["second"]}

    stream = durable(line(first, second)).stream({"log": []}, stream_mode="updates", run_id="r")
    next(stream)
    stream.close()
    assert (ran, runs.get("r").status) == ([], "cancelled")
    with pytest.raises(RunCancelled):
        runs.get("r").result()


def test_the_consumers_code_is_not_part_of_the_run() -> None:
    for _ in durable(line(a, b)).stream({"log": []}, stream_mode="updates", run_id="r"):
        assert durable(line(a)).invoke({"log": []}, run_id=uuid.uuid4().hex) == {"log": ["a"]}
    assert [step.path for step in runs.get("r").steps()] == ["1/node:a", "2/node:b"]


# -- fidelity of callbacks


class Seen(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.events.append(("chain", kwargs.get("name")))

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.events.append(("model", messages[0][-1].content))

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.events.append(("answer", response.generations[0][0].text))

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.events.append(("tool", input_str))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.events.append(("result", str(output)))


def test_callbacks_are_called_as_natively_and_in_the_same_order() -> None:
    @tool
    def charge(n: int) -> str:
        """Charge."""
        return f"receipt {n}"

    def act(state: Log) -> Log:
        return {"log": [Parrot().invoke("hello").content, charge.invoke({"n": 1})]}

    seen = []
    for graph in (line(a, act), durable(line(a, act))):
        handler = Seen()
        graph.invoke({"log": []}, {"callbacks": [handler]})
        seen.append(handler.events)
    assert seen[0] == seen[1]
    assert ("result", "receipt 1") in seen[1]


# -- what is not there


def test_an_object_that_cannot_be_recorded_is_refused_by_start_and_lives_with_its_caller() -> None:
    class Client:
        pass

    app, config = durable(line(a)), {"configurable": {"thread_id": "t", "client": Client()}}
    assert app.invoke({"log": []}, config) == {"log": ["a"]}
    with pytest.raises(NotRecoverable, match="client"):
        app.start({"log": []}, config)


def test_outside_of_a_run_langchain_and_langgraph_are_untouched() -> None:
    before = len(runs.list(limit=1000))
    assert Parrot().invoke("plain").content == "plain"
    assert line(a, b).invoke({"log": []}) == {"log": ["a", "b"]}
    assert len(runs.list(limit=1000)) == before
