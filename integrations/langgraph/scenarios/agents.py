"""Models and tools: in nodes, in agents, streamed, in turns of a conversation."""

import asyncio
import time
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from crashmatrix import Scenario, Turn, World, scenario

from .kit import (
    ASK,
    BEGIN,
    THREAD,
    Model,
    StreamingModel,
    acting,
    both,
    in_a_row,
    invoke,
    kept,
    told,
    tools_of,
    two_tools,
    wants,
)


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
    graph: Any = create_agent(
        Model(world=world, plan=two_tools), list(tools_of(world)), checkpointer=InMemorySaver()
    )
    return told(graph, invoke(ASK, is_async=is_async), is_async=is_async)


@both
def agent_as_tool(world: World, is_async: bool) -> Scenario:
    charge, mail = tools_of(world)
    inner: Any = create_agent(Model(world=world, label="inner", plan=two_tools), [charge, mail])

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
    graph: Any = create_agent(
        Model(world=world, label="outer", plan=plan), tools, checkpointer=InMemorySaver()
    )
    return told(graph, invoke(ASK, is_async=is_async), is_async=is_async)


@scenario
def gather_in_node(world: World) -> Scenario:
    charge, _ = tools_of(world)
    model = Model(world=world)

    async def late(rank: int, call: Any, *args: Any) -> Any:
        await asyncio.sleep(world.latency(rank, 3))
        return await call(*args)

    async def act(state: Any) -> Any:
        replies = await asyncio.gather(*[late(n, model.ainvoke, f"question {n}") for n in range(3)])
        receipts = await asyncio.gather(*[late(n, charge.ainvoke, {"amount": n}) for n in range(3)])
        return {"log": [*(reply.text for reply in replies), *receipts]}

    graph = kept(in_a_row(act=act, after=acting(world, "after", is_async=True)))
    return told(graph, invoke(BEGIN, is_async=True), is_async=True)


@scenario
def threads_in_node(world: World) -> Scenario:
    charge, mail = tools_of(world)

    def late(amount: int) -> Any:
        time.sleep(world.latency(amount, 3))
        return charge.invoke({"amount": amount})

    def act(state: Any) -> Any:
        with ContextThreadPoolExecutor(3) as pool:
            receipts = list(pool.map(late, range(3)))
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
    graph: Any = create_agent(model, [], checkpointer=InMemorySaver())

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


@both
def two_turns(world: World, is_async: bool) -> Scenario:
    graph: Any = create_agent(
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
    graph: Any = create_agent(
        Model(world=world, plan=_two_tools_per_turn), list(tools_of(world)), checkpointer=InMemorySaver()
    )
    return told(
        graph, invoke({"messages": [*old, ("user", "go on")]}), invoke({"messages": [("user", "more")]}, "r2")
    )
