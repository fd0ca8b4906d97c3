"""What the LangGraph scenarios are made of: how graphs are built and called, scripted models, tools."""

import asyncio
import operator
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from crashmatrix import Answer, Resume, Scenario, Turn, World, scenario
from durable_agents.langgraph import DurableGraph

THREAD: Any = {"configurable": {"thread_id": "t"}}
BEGIN: Any = {"log": []}
ASK: Any = {"messages": [("user", "please")]}


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


def invoke(input: Any, run_id: str = "r1", is_async: bool = False) -> Turn:
    return Turn(run_id, verb(input, is_async))


def resume(value: Any, run_id: str = "r1", is_async: bool = False) -> Resume:
    return Resume(run_id, verb(Command(resume=value), is_async))


def answer(
    value: Any,
    pick: Callable[[dict[str, Any]], str] | None = None,
    native: Any = None,
    is_async: bool = False,
) -> Answer:
    native = native or verb(Command(resume=value), is_async)
    return Answer("r1", value, pick, native)


def verb(input: Any, is_async: bool) -> Callable[..., Any]:
    """`invoke` or `ainvoke` with this input."""

    def call(app: Any, **run: Any) -> Any:
        return (app.ainvoke if is_async else app.invoke)(input, THREAD, **run)

    return call


def left_behind(app: Any) -> Any:
    """The thread's state, and its whole history."""
    return _snapshot(app.get_state(THREAD)), [_snapshot(past) for past in app.get_state_history(THREAD)]


def _snapshot(state: Any) -> Any:
    # Not what a task returned: natively it is a race whether its messages have got their ids when they are stored.
    tasks = [(task.name, [asked.value for asked in task.interrupts], task.error) for task in state.tasks]
    at = (state.metadata["source"], state.metadata["step"]) if state.metadata else None
    return at, state.values, state.next, tasks


def told(
    graph: Any, *turns: Turn | Resume | Answer, is_async: bool = False, may_fail: bool = False
) -> Scenario:
    """The graph, durably and natively, and what is said to it."""
    return Scenario(
        runner=DurableGraph(graph, "agent"),
        native=graph,
        turns=turns,
        is_async=is_async,
        show=left_behind,
        may_fail=may_fail,
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


def in_a_row(**nodes: Any) -> Any:
    """A graph of these nodes, one after the other."""
    builder: Any = StateGraph(Log)
    above = START
    for name, body in nodes.items():
        builder.add_node(name, body)
        builder.add_edge(above, name)
        above = name
    return builder


def kept(builder: Any) -> Any:
    return builder.compile(checkpointer=InMemorySaver())


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
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        last = AIMessageChunk(
            content="", usage_metadata=reply.usage_metadata, response_metadata=reply.response_metadata
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

    return as_tool(charge), as_tool(mail)


def as_tool(function: Callable[..., str]) -> BaseTool:
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
