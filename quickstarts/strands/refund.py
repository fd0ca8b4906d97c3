"""A refund agent that survives `kill -9`; see README.md."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models.model import Model

import durable_agents
from durable_agents.strands import DurableAgent

LEDGER = Path("ledger.txt")
TASK = "Refund order 55, then mail the customer. One tool at a time."


@tool
def look_up_order(order: int) -> str:
    """What was ordered, what it cost, and the customer's mail address."""
    return f"order {order}: a blue lamp, 84.50 EUR, ada@example.org"


@tool
def refund_card(order: int, amount: float) -> str:
    """Pay an amount back to the card an order was paid with."""
    write(f"refunded {amount:.2f} EUR for order {order}, idempotency key {durable_agents.idempotency_key()}")
    return "refunded"


@tool
def send_mail(to: str, text: str) -> str:
    """Mail the customer."""
    if "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # the refund is done, the mail is not
    write(f"mailed {to}: {text}")
    return "sent"


def write(line: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")


class OfflineModel(Model):
    """Stands in for a real model. It decides from the conversation, so the same after a crash."""

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {"model_id": "offline"}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("look_up_order", {"order": 55}),
            ("refund_card", {"order": 55, "amount": 84.5}),
            ("send_mail", {"to": "ada@example.org", "text": "You have your 84.50 EUR back."}),
        ]
        done = sum("toolResult" in block for message in messages for block in message["content"])
        start: dict[str, Any] = {}
        delta: dict[str, Any] = {"text": "Order 55 is refunded."}
        if done < len(calls):
            name, arguments = calls[done]
            start, delta = (
                {"toolUse": {"name": name, "toolUseId": name}},
                {"toolUse": {"input": json.dumps(arguments)}},
            )
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if start else "end_turn"}}


def model() -> Model | str:
    """The model that `MODEL` names: `openai:gpt-4o-mini`, or the id of one on Bedrock."""
    name = os.environ.get("MODEL")
    if name is None:
        return OfflineModel()
    if name.startswith("openai:"):
        from strands.models.openai import OpenAIModel

        return OpenAIModel(model_id=name.removeprefix("openai:"))
    return name


agent = Agent(model=model(), tools=[look_up_order, refund_card, send_mail], callback_handler=None)
app = DurableAgent(agent)  # the one line

if __name__ == "__main__":
    result = app(TASK, run_id="refund-55")
    print(result, end="")
    print("\nsteps")
    for step in durable_agents.runs.get("refund-55").steps():
        if step.kind in ("model", "tool"):
            print(f"  {step.kind:<5}  {step.name:<13}  by worker {step.worker[:6]}")
    print("\nledger")
    print(LEDGER.read_text(), end="")
