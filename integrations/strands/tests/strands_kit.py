"""A model that decides from its prompt, for tests."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from strands import Agent
from strands.models.model import Model

Plan = Callable[[int, list[Any]], Any]


class Scripted(Model):
    """`plan` gets the number of replies in this turn, and the messages; it gives a text, or (tool, arguments) pairs."""

    def __init__(self, plan: Plan, label: str = "scripted") -> None:
        self.plan, self.label, self.calls = plan, label, 0

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {"model_id": self.label}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        self.calls += 1
        plain = [
            n for n, m in enumerate(messages) if m["role"] == "user" and "toolResult" not in m["content"][0]
        ]
        replies = sum(message["role"] == "assistant" for message in messages[plain[-1] :])
        reply = self.plan(replies, messages)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(reply, str):
            yield {"contentBlockStart": {"start": {}}}
            for word in reply.split(" "):
                yield {"contentBlockDelta": {"delta": {"text": word + " "}}}
            yield {"contentBlockStop": {}}
        for name, arguments in reply if not isinstance(reply, str) else ():
            start = {"toolUse": {"name": name, "toolUseId": f"{name}-{replies}"}}
            yield {"contentBlockStart": {"start": start}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(reply, str) else "tool_use"}}
        usage = {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


def agent_of(plan: Plan, *tools: Any, **options: Any) -> Agent:
    return Agent(model=Scripted(plan), tools=list(tools), callback_handler=None, **options)


def told(messages: list[Any]) -> list[tuple[str, list[str]]]:
    """Role and kinds of block of each message."""
    return [(message["role"], [next(iter(block)) for block in message["content"]]) for message in messages]
