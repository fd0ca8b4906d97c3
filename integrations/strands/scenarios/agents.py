"""Models and tools: one, several at once, agents as tools, turns of a conversation, streams, structured output."""

import asyncio
import time
from typing import Any

from pydantic import BaseModel
from strands import Agent, ToolContext, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    MessageAddedEvent,
)
from strands.types.exceptions import ContextWindowOverflowException
from strands.vended_tools.stop import stop

from crashmatrix import Scenario, Turn, World, scenario
from durable_agents.strands import DurableAgent

from .kit import Scripted, agent_of, invoke, left_behind, say, text_of, told, tools_of, wants


def one_tool_plan(replies: int, messages: Any) -> Any:
    if replies == 0:
        return wants(("charge", {"amount": 1}))
    return say(f"done: {text_of(messages[-1])}")


@scenario
def one_tool(world: World) -> Scenario:
    return told(agent_of(world, one_tool_plan, tools_of(world)), invoke())


@scenario
def async_one_tool(world: World) -> Scenario:
    return told(agent_of(world, one_tool_plan, tools_of(world)), invoke(is_async=True), is_async=True)


@scenario
def queued(world: World) -> Scenario:
    agent = agent_of(world, one_tool_plan, tools_of(world))
    turn = Turn(
        "r1", lambda app, **run: app.start("please", **run).id, native=lambda app: (app("please"), "r1")[1]
    )
    return told(agent, turn)


@scenario
def three_parallel_tools(world: World) -> Scenario:
    @tool
    async def slow(rank: int) -> str:
        """Take time."""
        await asyncio.sleep(world.latency(rank, 3))
        world.effect(f"slow {rank}")
        return f"slow {rank} done"

    @tool
    def sync(rank: int) -> str:
        """Take time in a thread."""
        time.sleep(world.latency(rank, 3))
        world.effect(f"sync {rank}")
        return f"sync {rank} done"

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("slow", {"rank": 0}), ("sync", {"rank": 1}), ("slow", {"rank": 2}))
        return say(f"done: {text_of(messages[-1])}")

    return told(agent_of(world, plan, [slow, sync]), invoke())


@scenario
def async_agents_as_tools(world: World) -> Scenario:
    return _agents_as_tools(world, True)


@scenario
def agents_as_tools(world: World) -> Scenario:
    """Two agents that are tools, at once."""
    return _agents_as_tools(world, False)


def _agents_as_tools(world: World, is_async: bool) -> Scenario:
    charge, mail = tools_of(world)

    def inner(amount: int) -> Any:
        def plan(replies: int, messages: Any) -> Any:
            if replies == 0:
                return wants(("charge", {"amount": amount}))
            return say(f"expert {amount} has {text_of(messages[-1])}")

        return plan

    experts = [
        agent_of(world, inner(n), [charge], label=f"expert {n}", name=f"expert{n}").as_tool() for n in (1, 2)
    ]

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(
                ("expert1", {"input": "how"}), ("expert2", {"input": "why"}), ("mail", {"to": "ann"})
            )
        return say(f"they say {text_of(messages[-1])}")

    return told(agent_of(world, plan, [*experts, mail]), invoke(is_async=is_async), is_async=is_async)


@scenario
def expert_with_memory(world: World) -> Scenario:
    """An agent as a tool that remembers what it was asked before, over three turns."""
    expert = agent_of(
        world, lambda n, messages: say(f"asked {len(messages)} so far"), label="expert", name="expert"
    )

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("expert", {"input": text_of(messages[-1])}))
        return say(f"they say {text_of(messages[-1])}")

    agent = agent_of(world, plan, [expert.as_tool(preserve_context=True)])
    return told(agent, invoke("one"), invoke("two", "r2"), invoke("three", "r3"))


@scenario
def three_turns(world: World) -> Scenario:
    """A conversation: each turn knows those before."""

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("charge", {"amount": len(messages)}), ("mail", {"to": text_of(messages[-1])}))
        return say(f"turn with {len(messages)} messages: {text_of(messages[-1])}")

    agent = agent_of(world, plan, tools_of(world))
    return told(agent, invoke("ann"), invoke("ben", "r2"), invoke("cid", "r3"))


@scenario
def two_sessions(world: World) -> Scenario:
    """Two conversations with one agent, turn by turn."""

    def plan(replies: int, messages: Any) -> Any:
        return say(f"{len(messages)} messages, the first {text_of(messages[0])!r}")

    def started(text: str, session: str, run_id: str) -> Turn:
        return Turn(run_id, lambda app, **run: str(app(text, session_id=session, **run)))

    def show(app: DurableAgent) -> Any:
        return [[text_of(message) for message in app.messages_of(session)] for session in ("a", "b")]

    turns = [started("ann", "a", "r1"), started("ben", "b", "r2"), started("and ann again", "a", "r3")]
    return Scenario(runner=DurableAgent(agent_of(world, plan), "agent"), turns=turns, show=show)


@scenario
def changed_state(world: World) -> Scenario:
    """Tools at once that change the agent's state, one of them what the other has just changed."""

    @tool(context=True)
    async def note(rank: int, tool_context: ToolContext) -> str:
        """Note a number."""
        await asyncio.sleep(world.latency(rank, 2))
        world.effect(f"note {rank}")
        tool_context.agent.state.set(f"note {rank}", rank)
        tool_context.invocation_state.setdefault("request_state", {})[f"seen {rank}"] = True
        return "noted"

    @tool(context=True)
    def count(tool_context: ToolContext) -> str:
        """Count."""
        state = tool_context.agent.state
        state.set("count", (state.get("count") or 0) + 1)
        state.delete("note 1")
        world.effect(f"count {state.get('count')}")
        return f"count {state.get('count')}"

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("note", {"rank": 0}), ("note", {"rank": 1}))
        if replies < 3:
            return [{"toolUse": {"name": "count", "toolUseId": "the-same", "input": {}}}]
        return say(f"done: {text_of(messages[-1])}")

    agent = agent_of(world, plan, [note, count], state={"count": 5})

    def seen(app: Any, **run: Any) -> Any:
        result = app("please", **run)
        return result, sorted(result.state)

    return told(agent, Turn("r1", seen), invoke("again", "r2"))


@scenario
def streamed(world: World) -> Scenario:
    """The events of a streamed run; a replay is silent about nothing."""

    @tool
    async def progress(steps: int) -> Any:
        """Stream progress."""
        for number in range(steps):
            yield f"step {number}"
        world.effect("progress")
        yield f"all {steps} steps"

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return [*say("I will see to it"), *wants(("progress", {"steps": 3}))]
        return say(f"done with {text_of(messages[-1])}")

    async def events(app: Any, **run: Any) -> Any:
        return [_shown(event) async for event in app.stream_async("please", **run)]

    return told(agent_of(world, plan, [progress]), Turn("r1", events, attaches=False), is_async=True)


def _shown(event: Any) -> Any:
    for kind in ("data", "tool_stream_event", "result"):
        if kind in event:
            return kind, event[kind]
    return sorted(event)


@scenario
def callbacks(world: World) -> Scenario:
    """The callback handler hears the same."""
    agent = agent_of(world, one_tool_plan, tools_of(world))

    def heard(app: Any, **run: Any) -> Any:
        words: list[Any] = []
        agent.callback_handler = lambda **event: words.append(event.get("data"))
        result = app("please", **run)
        return result, [word for word in words if word]

    return told(agent, Turn("r1", heard, attaches=False))


class Bill(BaseModel):
    total: int
    items: list[str]


def _bill_plan(replies: int, messages: Any) -> Any:
    if replies == 0:
        return wants(("charge", {"amount": 3}))
    if replies == 1:
        return wants(("Bill", {"total": "no number", "items": []}))
    if replies == 2:
        return [{"toolUse": {"name": "Bill", "toolUseId": "bill", "input": {"total": 3, "items": ["lamp"]}}}]
    return say("never said")


@scenario
def structured_output(world: World) -> Scenario:
    """The model's first try does not fit the schema."""
    agent = agent_of(world, _bill_plan, tools_of(world), structured_output_model=Bill)
    return told(agent, invoke())


@scenario
def structured_output_of_a_call(world: World) -> Scenario:
    agent = agent_of(world, _bill_plan, tools_of(world))
    runner = DurableAgent(agent, "agent", types=[Bill])
    return told(agent, invoke(structured_output_model=Bill), runner=runner)


@scenario
def forced_structured_output(world: World) -> Scenario:
    """The model has to be asked a second time."""

    def plan(replies: int, messages: Any) -> Any:
        if "structured output" in text_of(messages[-1]):
            return wants(("Bill", {"total": 1, "items": ["a"]}))
        return one_tool_plan(replies, messages)

    return told(agent_of(world, plan, tools_of(world), structured_output_model=Bill), invoke())


class Overflowing(Scripted):
    """A model that takes no more than six messages."""

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if len(messages) > 6 and "summarize" not in text_of(messages[-1]):
            self.world.effect(f"overflow of {len(messages)}")
            raise ContextWindowOverflowException("too long")
        async for chunk in super().stream(messages, *args, **kwargs):
            yield chunk


@scenario
def summarised(world: World) -> Scenario:
    """The conversation manager asks the model itself for a summary, in another thread and loop."""

    def plan(replies: int, messages: Any) -> Any:
        if "summarize" in text_of(messages[-1]):
            return say(f"summary of {len(messages) - 1}")
        if replies < 2:
            return wants(("charge", {"amount": len(messages)}))
        return say(f"done: {text_of(messages[-1])}")

    manager = SummarizingConversationManager(summary_ratio=0.5, preserve_recent_messages=2)
    agent = Agent(
        model=Overflowing(world, plan),
        tools=list(tools_of(world)),
        callback_handler=None,
        conversation_manager=manager,
    )
    return told(agent, invoke("one"), invoke("two", "r2"))


@scenario
def summarised_by_an_agent(world: World) -> Scenario:
    summary = agent_of(world, lambda n, messages: say(f"summary of {len(messages)}"), label="summariser")

    def plan(replies: int, messages: Any) -> Any:
        if replies < 2:
            return wants(("charge", {"amount": len(messages)}))
        return say(f"done: {text_of(messages[-1])}")

    manager = SummarizingConversationManager(
        summary_ratio=0.5, preserve_recent_messages=2, summarization_agent=summary
    )
    agent = Agent(
        model=Overflowing(world, plan),
        tools=list(tools_of(world)),
        callback_handler=None,
        conversation_manager=manager,
    )
    return told(agent, invoke("one"), invoke("two", "r2"))


@scenario
def stopped_by_a_tool(world: World) -> Scenario:
    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("charge", {"amount": 1}), ("stop", {"message": "enough"}))
        return say("never said")

    charge, _ = tools_of(world)
    return told(agent_of(world, plan, [charge, stop]), invoke(), invoke("again", "r2"))


@scenario
def hooks_in_order(world: World) -> Scenario:
    """All hooks, each an effect; they run again in a replay, so they are only compared with the native run."""
    agent = agent_of(world, one_tool_plan, tools_of(world))
    heard: list[str] = []
    events = (
        BeforeInvocationEvent, AfterInvocationEvent, BeforeModelCallEvent, AfterModelCallEvent, BeforeToolCallEvent,
        AfterToolCallEvent, MessageAddedEvent,
    )  # fmt: skip
    for event_type in events:
        agent.add_hook(lambda event: heard.append(type(event).__name__), event_type)

    def call(app: Any, **run: Any) -> Any:
        heard.clear()
        return app("please", **run), list(heard)

    return told(agent, Turn("r1", call, attaches=False), ordered=True)


@scenario
def renamed_by_hooks(world: World) -> Scenario:
    """Hooks that change a tool's arguments, cancel another one, and rewrite a result."""
    agent = agent_of(
        world,
        lambda n, messages: (
            wants(("charge", {"amount": 1}), ("mail", {"to": "eve"}))
            if n == 0
            else say(f"done: {text_of(messages[-1])}")
        ),
        tools_of(world),
    )

    def before(event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] == "mail":
            event.cancel_tool = "no mail to eve"
        else:
            event.tool_use = {**event.tool_use, "input": {"amount": 50}}

    def after(event: AfterToolCallEvent) -> None:
        event.result["content"][0]["text"] += " (checked)"

    agent.add_hook(before, BeforeToolCallEvent)
    agent.add_hook(after, AfterToolCallEvent)
    return told(agent, invoke())


@scenario
def durable_agent_in_a_tool(world: World) -> Scenario:
    """A tool that calls another durable agent: that is a part of this run."""
    charge, mail = tools_of(world)
    clerk = DurableAgent(agent_of(world, one_tool_plan, [charge], label="clerk"), "clerk")

    @tool
    def ask_clerk(question: str) -> str:
        """Ask the clerk."""
        answer = str(clerk(question)).strip()
        world.effect("asked")
        return answer

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("ask_clerk", {"question": "how"}), ("mail", {"to": "ann"}))
        return say(f"clerk: {text_of(messages[-1])}")

    runner = DurableAgent(agent_of(world, plan, [ask_clerk, mail]), "agent")
    return Scenario(runner=runner, turns=[invoke()], show=left_behind)
