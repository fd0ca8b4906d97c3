"""What the Strands scenarios are made of: scripted models, tools, how agents are called, how results are compared."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from strands import Agent, tool
from strands.agent.agent_result import AgentResult
from strands.models.model import Model
from strands.multiagent.base import MultiAgentResult
from strands.multiagent.graph import GraphResult
from strands.multiagent.swarm import SwarmResult

from crashmatrix import Answer, Resume, Scenario, Turn, World
from crashmatrix.api import Step
from durable_agents.strands import DurableAgent, DurableMultiAgent

Block = dict[str, Any]
Plan = Callable[[int, list[Any]], list[Block]]


def text_of(message: Any) -> str:
    """The text of a message, or of the tool results in it, in order."""
    found = []
    for block in message["content"]:
        if "text" in block:
            found.append(block["text"])
        results = block.get("toolResult", {}).get("content", ())
        found += [str(item.get("text", item.get("json"))) for item in results]
    return " | ".join(found)


def say(text: str) -> list[Block]:
    return [{"text": text}]


def wants(*calls: tuple[str, dict[str, Any]]) -> list[Block]:
    return [
        {"toolUse": {"name": name, "toolUseId": f"{name}-{'-'.join(map(str, args.values()))}", "input": args}}
        for name, args in calls
    ]


class Scripted(Model):
    """Decides from its prompt: `plan` gets the number of its replies in this turn, and the messages.

    It streams its text word by word.
    """

    def __init__(self, world: World, plan: Plan, label: str = "model") -> None:
        self.world, self.plan, self.label = world, plan, label

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {"model_id": self.label, "context_window_limit": 10_000}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def happens(self, replies: int, messages: Any) -> str:
        """The name of the effect that a call has."""
        return f"{self.label} after {replies} replies and {text_of(messages[-1])[-20:]!r}"

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        replies = 0
        for message in reversed(messages):
            if message["role"] == "user" and "toolResult" not in message["content"][0]:
                break
            replies += message["role"] == "assistant"
        await asyncio.sleep(0)
        self.world.effect(self.happens(replies, messages))
        blocks = self.plan(replies, messages)
        yield {"messageStart": {"role": "assistant"}}
        for block in blocks:
            if "text" in block:
                yield {"contentBlockStart": {"start": {}}}
                for word in block["text"].split(" "):
                    yield {"contentBlockDelta": {"delta": {"text": word + " "}}}
            else:
                asked = block["toolUse"]
                start = {"name": asked["name"], "toolUseId": asked["toolUseId"]}
                yield {"contentBlockStart": {"start": {"toolUse": start}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(asked["input"])}}}}
            yield {"contentBlockStop": {}}
        stop = "tool_use" if any("toolUse" in block for block in blocks) else "end_turn"
        yield {"messageStop": {"stopReason": stop}}
        usage = {"inputTokens": 10 * len(messages), "outputTokens": 5, "totalTokens": 10 * len(messages) + 5}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def agent_of(world: World, plan: Plan, tools: Any = (), label: str = "model", **options: Any) -> Agent:
    return Agent(model=Scripted(world, plan, label), tools=list(tools), callback_handler=None, **options)


def tools_of(world: World) -> tuple[Any, Any]:
    """A sync and an async tool."""

    @tool
    def charge(amount: int) -> str:
        """Charge an amount."""
        world.effect(f"charge {amount}")
        return f"receipt {amount}"

    @tool
    async def mail(to: str) -> str:
        """Send a mail."""
        await asyncio.sleep(0)
        world.effect(f"mail {to}")
        return f"mailed {to}"

    return charge, mail


def invoke(prompt: Any = "please", run_id: str = "r1", is_async: bool = False, **options: Any) -> Turn:
    return Turn(run_id, verb(prompt, is_async, **options))


def verb(prompt: Any, is_async: bool = False, **options: Any) -> Callable[..., Any]:
    """`__call__` or `invoke_async` with this prompt."""

    def call(app: Any, **run: Any) -> Any:
        return (app.invoke_async if is_async else app)(prompt, **options, **run)

    return call


def respond(
    value: Any, run_id: str = "r1", name: str | None = None, is_async: bool = False, **options: Any
) -> Resume:
    """Answer the interrupts that are open natively; only the one of this name, if given."""
    asked: dict[int, Any] = {}

    def call(app: Any, **run: Any) -> Any:
        responses = [
            {"interruptResponse": {"interruptId": id, "response": value}}
            for id, interrupt_name in open_interrupts(app)
            if name in (None, interrupt_name)
        ]
        asked[id(app)] = responses
        return (app.invoke_async if is_async else app)(responses, **options, **run)

    return Resume(run_id, call)


def open_interrupts(app: Any) -> list[tuple[str, str]]:
    """Ids and names of the questions that a native agent, or the run of a durable one, waits with."""
    if isinstance(app, DurableAgent | DurableMultiAgent):
        waiting = app.durable.waiting_run(app.durable.session)
        if waiting is None:
            return []
        _, pause = waiting
        return [(pause.state["ids"][question], about["name"]) for question, about in pause.questions.items()]
    return [
        (each.id, each.name) for each in app._interrupt_state.interrupts.values() if each.response is None
    ]


def answer(value: Any, name: str | None = None, run_id: str = "r1") -> Answer:
    """`Run.answer` to the only question, or to that of this name."""

    def pick(questions: dict[str, Any]) -> str:
        return next(q for q, about in questions.items() if about["name"] == name)

    return Answer(run_id, value, pick if name else None, respond(value, name=name).call)


def left_behind(app: Any) -> Any:
    """The conversation and the agent's state."""
    messages = [[message["role"], message["content"]] for message in app.messages]
    return messages, app.state.get()


def told(
    agent: Any,
    *turns: Step,
    is_async: bool = False,
    show: Any = left_behind,
    runner: Any = None,
    **options: Any,
) -> Scenario:
    """The agent, durably and natively, and what is said to it."""
    durable = DurableAgent if isinstance(agent, Agent) else DurableMultiAgent
    return Scenario(
        runner=runner or durable(agent, "agent"),
        native=agent,
        turns=turns,
        is_async=is_async,
        show=show if isinstance(agent, Agent) else None,
        **options,
    )


# What two runs have in common of a result: not the times, and of a node not the whole graph.


def _agent_result(self: AgentResult) -> str:
    usage = self.metrics.accumulated_usage
    tools = {n: (m.call_count, m.success_count) for n, m in sorted(self.metrics.tool_metrics.items())}
    interrupts = sorted((each.name, str(each.reason)) for each in self.interrupts or ())
    content = self.message["content"]
    return f"AgentResult({self.stop_reason}, {content}, {usage}, {tools}, {interrupts}, {self.structured_output!r})"


def _group_result(self: MultiAgentResult) -> str:
    order = [
        node.node_id for node in getattr(self, "execution_order", None) or getattr(self, "node_history", ())
    ]
    results = {name: (node.status.value, node.result) for name, node in self.results.items()}
    asked = sorted((each.name, str(each.reason)) for each in self.interrupts)
    return (
        f"{type(self).__name__}({self.status.value}, {order}, {results}, {self.accumulated_usage}, {asked})"
    )


AgentResult.__repr__ = _agent_result  # type: ignore[method-assign]
for cls in (MultiAgentResult, GraphResult, SwarmResult):
    cls.__repr__ = _group_result  # type: ignore[method-assign]
