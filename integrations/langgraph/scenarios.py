"""LangGraph agents for the crash matrix (`python -m crashmatrix --framework langgraph`).

Ordinary graphs, as an application has them. Their models decide from the messages they get, their nodes and tools act on
the `World`. Those decorated with `both` exist twice, the second one awaited.
"""

import asyncio
import operator
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelFallbackMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from typing_extensions import TypedDict

from crashmatrix import Answer, Resume, Scenario, Turn, World, scenario
from durable_agents.langgraph import DurableGraph

THREAD: Any = {"configurable": {"thread_id": "t"}}
BEGIN: Any = {"log": []}
ASK: Any = {"messages": [("user", "please")]}


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


# -- how the graphs are built and called


def invoke(input: Any, run_id: str = "r1", is_async: bool = False) -> Turn:
    return Turn(run_id, _call(input, is_async))


def resume(value: Any, run_id: str = "r1", is_async: bool = False) -> Resume:
    return Resume(run_id, _call(Command(resume=value), is_async))


def answer(
    value: Any,
    pick: Callable[[dict[str, Any]], str] | None = None,
    native: Any = None,
    is_async: bool = False,
) -> Answer:
    native = native or _call(Command(resume=value), is_async)
    return Answer("r1", value, pick, native)


def _call(input: Any, is_async: bool) -> Callable[..., Any]:
    def call(app: Any, **run: Any) -> Any:
        return (app.ainvoke if is_async else app.invoke)(input, THREAD, **run)

    return call


def left_behind(app: Any) -> Any:
    """The thread's state and history."""
    state = app.get_state(THREAD)
    tasks = [(task.name, [i.value for i in task.interrupts], task.error) for task in state.tasks]
    history = [
        (past.metadata["source"], past.metadata["step"], past.next) for past in app.get_state_history(THREAD)
    ]
    return state.values, state.next, tasks, history


def told(graph: Any, *turns: Turn | Resume | Answer, is_async: bool = False) -> Scenario:
    """The graph, durably and natively, and what is said to it."""
    return Scenario(
        runner=DurableGraph(graph, "agent"), native=graph, turns=turns, is_async=is_async, show=left_behind
    )


def both(build: Callable[[World, bool], Scenario]) -> None:
    """Register a scenario that is built for `invoke`, and for `ainvoke`."""

    def called(world: World) -> Scenario:
        return build(world, False)

    def awaited(world: World) -> Scenario:
        return build(world, True)

    called.__name__, awaited.__name__ = build.__name__, f"async_{build.__name__}"
    scenario(called)
    scenario(awaited)


def node(act: Callable[[Any], Any], is_async: bool) -> Callable[[Any], Any]:
    """A node with this body, as a function or as a coroutine function."""

    async def aact(state: Any) -> Any:
        await asyncio.sleep(0)
        return act(state)

    return aact if is_async else act


def acting(world: World, name: str, is_async: bool = False) -> Callable[[Any], Any]:
    """A node that acts on the world and logs it."""

    def act(state: Any) -> Any:
        world.effect(name)
        return {"log": [f"{name} after {len(state['log'])}"]}

    return node(act, is_async)


def in_a_row(**nodes: Any) -> StateGraph[Any]:
    """A graph of these nodes, one after the other."""
    builder = StateGraph(Log)
    above = START
    for name, body in nodes.items():
        builder.add_node(name, body)
        builder.add_edge(above, name)
        above = name
    return builder


def kept(builder: StateGraph[Any]) -> Any:
    return builder.compile(checkpointer=InMemorySaver())


# -- models and tools

Plan = Callable[[int, list[BaseMessage]], AIMessage]


class Model(BaseChatModel):
    """Decides from its prompt: `plan` gets the number of its replies so far, and the messages."""

    world: Any
    label: str = "model"
    plan: Any = None
    broken: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _reply(self, messages: list[BaseMessage]) -> AIMessage:
        replies = sum(message.type == "ai" for message in messages)
        self.world.effect(f"{self.label} after {replies} replies and {messages[-1].text[:20]!r}")
        if self.broken:
            raise ConnectionError("overloaded")
        plan: Plan = self.plan or (lambda n, asked: AIMessage(f"reply to {asked[-1].text}"))
        used = {
            "input_tokens": 10 * len(messages),
            "output_tokens": 5,
            "total_tokens": 10 * len(messages) + 5,
        }
        return plan(replies, messages).model_copy(
            update={"usage_metadata": used, "response_metadata": {"model_name": self.label}}
        )

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages))])

    async def _agenerate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        await asyncio.sleep(0)
        return self._generate(messages)


class StreamingModel(Model):
    """Replies word by word."""

    def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        reply = self._reply(messages)
        for word in re.findall(r"\S+\s*", reply.text):
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        last = AIMessageChunk(
            "", usage_metadata=reply.usage_metadata, response_metadata=reply.response_metadata
        )
        last.chunk_position = "last"
        yield ChatGenerationChunk(message=last)

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            await asyncio.sleep(0)
            yield chunk


def tools_of(world: World) -> tuple[BaseTool, BaseTool]:
    """Two tools, each with a sync and an async form."""

    def charge(amount: int) -> str:
        """Charge an amount."""
        world.effect(f"charge {amount}")
        return f"receipt {amount}"

    def mail(to: str) -> str:
        """Send a mail."""
        world.effect(f"mail {to}")
        return f"mailed {to}"

    return _tool(charge), _tool(mail)


def _tool(function: Callable[..., str]) -> BaseTool:
    async def coroutine(**arguments: Any) -> str:
        await asyncio.sleep(0)
        return function(**arguments)

    return StructuredTool.from_function(function, coroutine)


def wants(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": name, "args": args, "id": f"{name}-{args}"} for name, args in calls]
    )


def two_tools(replies: int, messages: list[BaseMessage]) -> AIMessage:
    """First both tools at once, then the end."""
    if replies == 0:
        return wants(("charge", {"amount": 1}), ("mail", {"to": "ann"}))
    return AIMessage(f"done: {messages[-2].text}, {messages[-1].text}")


# -- the shapes of graphs


@both
def chain(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(**{name: acting(world, name, is_async) for name in ("a", "b", "c")}))
    return told(graph, invoke(BEGIN, is_async=is_async), is_async=is_async)


@both
def parallel(world: World, is_async: bool) -> Scenario:
    builder = StateGraph(Log)
    for name in ("a", "b", "c"):
        builder.add_node(name, acting(world, name, is_async))
        builder.add_edge(START, name)
    builder.add_node("join", acting(world, "join", is_async))
    builder.add_edge(["a", "b", "c"], "join")
    return told(kept(builder), invoke(BEGIN, is_async=is_async), is_async=is_async)


@both
def fan_out(world: World, is_async: bool) -> Scenario:
    def work(item: Any) -> Any:
        world.effect(f"item {item}")
        return {"log": [item * item]}

    builder = in_a_row(plan=acting(world, "plan", is_async))
    builder.add_node("work", node(work, is_async))
    builder.add_conditional_edges("plan", lambda state: [Send("work", item) for item in range(5)], ["work"])
    builder.add_node("collect", acting(world, "collect", is_async))
    builder.add_edge("work", "collect")
    return told(kept(builder), invoke(BEGIN, is_async=is_async), is_async=is_async)


@scenario
def routing(world: World) -> Scenario:
    def decide(state: Any) -> Command[Any]:
        world.effect(f"decide {len(state['log'])}")
        return Command(goto="small" if len(state["log"]) < 3 else "large", update={"log": ["decided"]})

    builder = in_a_row(first=acting(world, "first"))
    builder.add_conditional_edges("first", lambda state: "decide" if state["log"] else END, ["decide", END])
    builder.add_node("decide", decide, destinations=("small", "large"))
    builder.add_node("small", _counting(world, "small"))
    builder.add_edge("small", "decide")
    builder.add_node("large", acting(world, "large"))
    return told(kept(builder), invoke(BEGIN))


def _counting(world: World, name: str) -> Callable[[Any], Any]:
    """A node that is visited several times, each visit another effect."""

    def act(state: Any) -> Any:
        world.effect(f"{name} {len(state['log'])}")
        return {"log": [name]}

    return act


def inner_graph(world: World) -> StateGraph[Any]:
    charge, mail = tools_of(world)
    return in_a_row(
        pay=lambda state: {"log": [charge.invoke({"amount": len(state["log"])})]},
        notify=lambda state: {"log": [mail.invoke({"to": f"bob {len(state['log'])}"})]},
    )


@scenario
def subgraph_as_node(world: World) -> Scenario:
    graph = in_a_row(
        before=acting(world, "before"), inner=inner_graph(world).compile(), after=acting(world, "after")
    )
    return told(kept(graph), invoke(BEGIN))


@scenario
def subgraph_in_node(world: World) -> Scenario:
    inner = inner_graph(world).compile()

    def call(state: Any) -> Any:
        world.effect("before the call")
        first = inner.invoke({"log": ["x"]})["log"]
        return {"log": [*first, *inner.invoke({"log": ["x", "y"]})["log"]]}

    return told(kept(in_a_row(call=call, after=acting(world, "after"))), invoke(BEGIN))


@scenario
def subgraphs_in_threads(world: World) -> Scenario:
    inner = inner_graph(world).compile(checkpointer=False)

    def call(state: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            calls = [pool.submit(copy_context().run, inner.invoke, {"log": ["x"] * n}) for n in (1, 3)]
            return {"log": [line for called in calls for line in called.result()["log"]]}

    return told(kept(in_a_row(call=call, after=acting(world, "after"))), invoke(BEGIN))


@both
def functional(world: World, is_async: bool) -> Scenario:
    def act(name: str) -> str:
        world.effect(name)
        return f"{name} done"

    async def aact(name: str) -> str:
        await asyncio.sleep(0)
        return act(name)

    @task
    def work(name: str) -> str:
        return act(name)

    @task
    async def awork(name: str) -> str:
        return await aact(name)

    @entrypoint(checkpointer=InMemorySaver())
    def flow(names: list[str]) -> list[str]:
        found = [future.result() for future in [work(name) for name in names]]
        return [*found, work("last").result()]

    @entrypoint(checkpointer=InMemorySaver())
    async def aflow(names: list[str]) -> list[str]:
        found = await asyncio.gather(*[awork(name) for name in names])
        return [*found, await awork("last")]

    return told(aflow if is_async else flow, invoke(["x", "y"], is_async=is_async), is_async=is_async)


# -- models and tools inside


@scenario
def model_and_tools(world: World) -> Scenario:
    charge, mail = tools_of(world)
    model = Model(world=world)

    def act(state: Any) -> Any:
        world.effect("begin")
        plan = model.invoke("plan").text
        paid = charge.invoke({"amount": 7})
        sent = mail.invoke({"to": "ann"})
        return {"log": [plan, paid, sent, model.invoke(f"report {paid}").text]}

    return told(kept(in_a_row(act=act, after=acting(world, "after"))), invoke(BEGIN))


@both
def agent(world: World, is_async: bool) -> Scenario:
    graph = create_agent(
        Model(world=world, plan=two_tools), list(tools_of(world)), checkpointer=InMemorySaver()
    )
    return told(graph, invoke(ASK, is_async=is_async), is_async=is_async)


@both
def agent_as_tool(world: World, is_async: bool) -> Scenario:
    charge, mail = tools_of(world)
    inner = create_agent(Model(world=world, label="inner", plan=two_tools), [charge, mail])

    def expert(question: str) -> str:
        """Ask an expert."""
        return str(inner.invoke({"messages": [("user", question)]})["messages"][-1].text)

    async def aexpert(question: str) -> str:
        return str((await inner.ainvoke({"messages": [("user", question)]}))["messages"][-1].text)

    def plan(replies: int, messages: list[BaseMessage]) -> AIMessage:
        if replies == 0:
            return wants(("expert", {"question": "how"}), ("mail", {"to": "outer"}))
        return AIMessage(f"expert says {messages[-2].text}")

    tools = [StructuredTool.from_function(expert, aexpert), mail]
    graph = create_agent(Model(world=world, label="outer", plan=plan), tools, checkpointer=InMemorySaver())
    return told(graph, invoke(ASK, is_async=is_async), is_async=is_async)


@scenario
def gather_in_node(world: World) -> Scenario:
    charge, _ = tools_of(world)
    model = Model(world=world)

    async def act(state: Any) -> Any:
        replies = await asyncio.gather(*[model.ainvoke(f"question {n}") for n in range(3)])
        receipts = await asyncio.gather(*[charge.ainvoke({"amount": n}) for n in range(3)])
        return {"log": [*(reply.text for reply in replies), *receipts]}

    graph = kept(in_a_row(act=act, after=acting(world, "after", is_async=True)))
    return told(graph, invoke(BEGIN, is_async=True), is_async=True)


@scenario
def threads_in_node(world: World) -> Scenario:
    charge, mail = tools_of(world)

    def act(state: Any) -> Any:
        with ContextThreadPoolExecutor(3) as pool:
            receipts = list(pool.map(lambda amount: charge.invoke({"amount": amount}), range(3)))
        return {"log": [*receipts, mail.invoke({"to": "ann"})]}

    return told(kept(in_a_row(act=act, after=acting(world, "after"))), invoke(BEGIN))


@both
def streaming_model(world: World, is_async: bool) -> Scenario:
    model = StreamingModel(world=world)
    charge, _ = tools_of(world)

    def act(state: Any) -> Any:
        words = [chunk.text for chunk in model.stream("tell me a story")]
        return {"log": [words, charge.invoke({"amount": 1}), model.invoke("and the end").text]}

    async def aact(state: Any) -> Any:
        words = [chunk.text async for chunk in model.astream("tell me a story")]
        return {
            "log": [words, await charge.ainvoke({"amount": 1}), (await model.ainvoke("and the end")).text]
        }

    graph = kept(in_a_row(act=aact if is_async else act))
    return told(graph, invoke(BEGIN, is_async=is_async), is_async=is_async)


@both
def streaming_agent(world: World, is_async: bool) -> Scenario:
    """An agent whose tokens are streamed to the caller."""
    model = StreamingModel(world=world, plan=lambda n, messages: AIMessage(f"the end of {messages[-1].text}"))
    graph = create_agent(model, [], checkpointer=InMemorySaver())

    def streamed(app: Any, **run: Any) -> Any:
        return list(
            map(_without_metadata, app.stream(ASK, THREAD, stream_mode=["messages", "updates"], **run))
        )

    async def astreamed(app: Any, **run: Any) -> Any:
        events = app.astream(ASK, THREAD, stream_mode=["messages", "updates"], **run)
        return [_without_metadata(event) async for event in events]

    return told(graph, Turn("r1", astreamed if is_async else streamed, attaches=False), is_async=is_async)


def _without_metadata(event: Any) -> Any:
    """A stream's event; the metadata beside a message names checkpoints."""
    mode, data = event
    return (mode, data[0]) if mode == "messages" else event


@both
def consumed_stream(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(**{name: acting(world, name, is_async) for name in ("a", "b", "c")}))

    def streamed(app: Any, **run: Any) -> Any:
        return list(app.stream(BEGIN, THREAD, stream_mode=["updates", "values"], **run))

    async def astreamed(app: Any, **run: Any) -> Any:
        return [event async for event in app.astream(BEGIN, THREAD, stream_mode=["updates", "values"], **run)]

    return told(graph, Turn("r1", astreamed if is_async else streamed, attaches=False), is_async=is_async)


# -- failures that are part of the course


@scenario
def retry_policy(world: World) -> Scenario:
    """A node that fails at its first attempt."""
    charge, _ = tools_of(world)

    def act(state: Any) -> Any:
        paid = charge.invoke({"amount": 1})
        world.effect("flaky")
        if world.is_first("flaky"):
            raise ConnectionError("overloaded")
        return {"log": [paid]}

    builder = in_a_row(before=acting(world, "before"))
    policy = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3)
    builder.add_node("act", act, retry_policy=policy)
    builder.add_edge("before", "act")
    return told(kept(builder), invoke(BEGIN))


@scenario
def retried_tool(world: World) -> Scenario:
    """A node whose tool fails at its first call; the retry policy runs the node again."""
    charge, _ = tools_of(world)

    def flaky(question: str) -> str:
        """Fail at first."""
        world.effect("flaky")
        if world.is_first("flaky"):
            raise ConnectionError("overloaded")
        return f"fine {question}"

    tool = _tool(flaky)

    def act(state: Any) -> Any:
        return {"log": [charge.invoke({"amount": 1}), tool.invoke({"question": "how"})]}

    builder = StateGraph(Log)
    builder.add_node(
        "act", act, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3)
    )
    builder.add_edge(START, "act")
    return told(kept(builder), invoke(BEGIN))


@scenario
def model_fallback(world: World) -> Scenario:
    charge, _ = tools_of(world)
    broken, good = Model(world=world, label="broken", broken=True), Model(world=world, label="good")
    model = broken.with_fallbacks([good])

    def act(state: Any) -> Any:
        return {
            "log": [model.invoke("first").text, charge.invoke({"amount": 1}), model.invoke("second").text]
        }

    return told(kept(in_a_row(act=act)), invoke(BEGIN))


@scenario
def fallback_agent(world: World) -> Scenario:
    broken = Model(world=world, label="broken", broken=True)
    good = Model(world=world, label="good", plan=two_tools)
    graph = create_agent(
        broken,
        list(tools_of(world)),
        middleware=[ModelFallbackMiddleware(good)],
        checkpointer=InMemorySaver(),
    )
    return told(graph, invoke(ASK))


@scenario
def failing(world: World) -> Scenario:
    """The run fails, and stays failed."""

    def fail(state: Any) -> Any:
        world.effect("fail")
        raise LookupError("no such order")

    return told(kept(in_a_row(before=acting(world, "before"), fail=fail)), invoke(BEGIN))


# -- interrupts


def asking(world: World, name: str, is_async: bool = False) -> Callable[[Any], Any]:
    """A node that acts, asks, and acts on the answer."""

    def act(state: Any) -> Any:
        world.effect(f"prepare {name}")
        said = interrupt(f"{name}?")
        world.effect(f"{name} said {said}")
        return {"log": [f"{name} {said}"]}

    return node(act, is_async)


@both
def interrupt_resumed(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(before=acting(world, "before", is_async), ask=asking(world, "ship", is_async)))
    return told(graph, invoke(BEGIN, is_async=is_async), resume("yes", is_async=is_async), is_async=is_async)


@both
def interrupt_answered(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(ask=asking(world, "ship", is_async), after=acting(world, "after", is_async)))
    return told(graph, invoke(BEGIN, is_async=is_async), answer("yes", is_async=is_async), is_async=is_async)


def _asking_twice(world: World) -> Any:
    def act(state: Any) -> Any:
        first = interrupt("first?")
        world.effect(f"first {first}")
        second = interrupt("second?")
        world.effect(f"second {second}")
        return {"log": [first, second]}

    return kept(in_a_row(act=act, after=acting(world, "after")))


@scenario
def two_interrupts_in_a_node(world: World) -> Scenario:
    return told(_asking_twice(world), invoke(BEGIN), resume("one"), resume("two"))


@scenario
def two_interrupts_answered(world: World) -> Scenario:
    return told(_asking_twice(world), invoke(BEGIN), answer("one"), answer("two"))


@both
def interrupted_sibling(world: World, is_async: bool) -> Scenario:
    """Of three parallel nodes one asks."""
    builder = StateGraph(Log)
    nodes = {
        "a": acting(world, "a", is_async),
        "ask": asking(world, "ship", is_async),
        "c": acting(world, "c", is_async),
    }
    for name, body in nodes.items():
        builder.add_node(name, body)
        builder.add_edge(START, name)
    builder.add_node("join", acting(world, "join", is_async))
    builder.add_edge(list(nodes), "join")
    turns = (invoke(BEGIN, is_async=is_async), resume("yes", is_async=is_async))
    return told(kept(builder), *turns, is_async=is_async)


@scenario
def two_questions_at_once(world: World) -> Scenario:
    """Two parallel nodes ask; each is answered on its own."""

    def picking(asked: str) -> Callable[[dict[str, Any]], str]:
        return lambda open: next(question for question, text in open.items() if text == asked)

    def natively(asked: str, value: str) -> Callable[[Any], Any]:
        def call(app: Any) -> Any:
            open = {i.id: i.value for task in app.get_state(THREAD).tasks for i in task.interrupts}
            return app.invoke(Command(resume={picking(asked)(open): value}), THREAD)

        return call

    def ask_both(app: Any, **run: Any) -> Any:
        result = app.invoke(BEGIN, THREAD, **run)
        return sorted(asked.value for asked in result["__interrupt__"])  # natively in the order of arrival

    builder = StateGraph(Log)
    for name in ("pay", "ship"):
        builder.add_node(name, asking(world, name))
        builder.add_edge(START, name)
    return told(
        kept(builder),
        Turn("r1", ask_both),
        answer("later", picking("ship?"), natively("ship?", "later")),
        answer("now", picking("pay?"), natively("pay?", "now")),
    )


@both
def subgraph_asks_twice(world: World, is_async: bool) -> Scenario:
    """The answer to the first question must never answer the second."""
    inner = in_a_row(
        first=asking(world, "first", is_async),
        between=acting(world, "between", is_async),
        second=asking(world, "second", is_async),
    )
    graph = kept(in_a_row(inner=inner.compile(), after=acting(world, "after", is_async)))
    turns = (
        invoke(BEGIN, is_async=is_async), resume("one", is_async=is_async), resume("two", is_async=is_async)
    )  # fmt: skip
    return told(graph, *turns, is_async=is_async)


@scenario
def called_subgraph_asks(world: World) -> Scenario:
    inner = in_a_row(before=acting(world, "inner before"), ask=asking(world, "ship")).compile()

    def call(state: Any) -> Any:
        return {"log": inner.invoke({"log": ["x"]})["log"]}

    return told(kept(in_a_row(call=call, after=acting(world, "after"))), invoke(BEGIN), resume("yes"))


@scenario
def task_asks(world: World) -> Scenario:
    @task
    def work(name: str) -> str:
        world.effect(name)
        return f"{name} done"

    @entrypoint(checkpointer=InMemorySaver())
    def flow(name: str) -> list[str]:
        drafted = work(name).result()
        said = interrupt(f"send {drafted}?")
        return [drafted, said, work(f"send {said}").result()]

    return told(flow, invoke("draft"), resume("now"))


@both
def approved_tool(world: World, is_async: bool) -> Scenario:
    """LangChain's human in the loop before one of two parallel tools."""
    graph = create_agent(
        Model(world=world, plan=two_tools),
        list(tools_of(world)),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"charge": True})],
        checkpointer=InMemorySaver(),
    )
    approve = {"decisions": [{"type": "approve"}]}
    return told(graph, invoke(ASK, is_async=is_async), resume(approve, is_async=is_async), is_async=is_async)


@scenario
def tool_asks(world: World) -> Scenario:
    """A tool acts, asks, and acts on; its sibling runs beside it."""
    charge, mail = tools_of(world)

    def ask(question: str) -> str:
        """Ask the user."""
        paid = charge.invoke({"amount": 9})
        said = interrupt(question)
        return f"{paid} {said} {mail.invoke({'to': said})}"

    def plan(replies: int, messages: list[BaseMessage]) -> AIMessage:
        if replies == 0:
            return wants(("ask", {"question": "who?"}), ("charge", {"amount": 2}))
        return AIMessage(f"done: {messages[-2].text}")

    graph = create_agent(Model(world=world, plan=plan), [_tool(ask), charge], checkpointer=InMemorySaver())
    return told(graph, invoke(ASK), resume("ann"))


@scenario
def superseded(world: World) -> Scenario:
    """A new input on a thread that waits drops the question."""
    builder = in_a_row(before=acting(world, "before"), ask=asking(world, "ship"))
    graph = kept(builder)
    return told(graph, invoke(BEGIN), invoke({"log": ["again"]}, "r2"), resume("yes", "r2"))


# -- threads of conversation, queues


@both
def two_turns(world: World, is_async: bool) -> Scenario:
    graph = create_agent(
        Model(world=world, plan=_two_tools_per_turn), list(tools_of(world)), checkpointer=InMemorySaver()
    )
    again = {"messages": [("user", "once more")]}
    turns = (invoke(ASK, is_async=is_async), invoke(again, "r2", is_async=is_async))
    return told(graph, *turns, is_async=is_async)


def _two_tools_per_turn(replies: int, messages: list[BaseMessage]) -> AIMessage:
    if messages[-1].type == "human":
        return wants(("charge", {"amount": replies}), ("mail", {"to": f"ann {replies}"}))
    return AIMessage(f"done: {messages[-1].text}")


@scenario
def fifty_messages(world: World) -> Scenario:
    """A conversation that was long before it came here, and two turns more."""
    kinds = ("user", "assistant")
    old = [(kinds[n % 2], f"message {n} " + "word " * 40) for n in range(50)]
    graph = create_agent(
        Model(world=world, plan=_two_tools_per_turn), list(tools_of(world)), checkpointer=InMemorySaver()
    )
    return told(
        graph, invoke({"messages": [*old, ("user", "go on")]}), invoke({"messages": [("user", "more")]}, "r2")
    )


@both
def queued(world: World, is_async: bool) -> Scenario:
    graph = kept(in_a_row(**{name: acting(world, name, is_async) for name in ("a", "b")}))

    def start(app: Any, run_id: str) -> Any:
        run = app.start(BEGIN, THREAD, run_id=run_id)
        return run.aresult(timeout=20) if is_async else run.result(timeout=20)

    return told(graph, Turn("r1", start, native=_call(BEGIN, is_async)), is_async=is_async)


@scenario
def loop(world: World) -> Scenario:
    """A model node and a tool node that call each other, by hand."""
    charge, _ = tools_of(world)
    model = Model(
        world=world, plan=lambda n, messages: wants(("charge", {"amount": n})) if n < 3 else AIMessage("done")
    )

    def think(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    def act(state: Any) -> Any:
        return {"messages": [charge.invoke(call) for call in state["messages"][-1].tool_calls]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("act", act)
    builder.add_edge(START, "think")
    builder.add_conditional_edges(
        "think", lambda state: "act" if state["messages"][-1].tool_calls else END, ["act", END]
    )
    builder.add_edge("act", "think")
    return told(kept(builder), invoke(ASK))
