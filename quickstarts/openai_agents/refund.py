"""A refund agent that survives `kill -9`; see README.md."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents import Agent, Model, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.testing import assistant_message, function_call
from agents.usage import Usage

import durable_agents
from durable_agents.openai_agents import DurableRunner

LEDGER = Path("ledger.txt")
TASK = "Refund order 55, then mail the customer. One tool at a time."


@function_tool
def look_up_order(order: int) -> str:
    """What was ordered, what it cost, and the customer's mail address."""
    return f"order {order}: a blue lamp, 84.50 EUR, ada@example.org"


@function_tool
def refund_card(order: int, amount: float) -> str:
    """Pay an amount back to the card an order was paid with."""
    write(f"refunded {amount:.2f} EUR for order {order}, idempotency key {durable_agents.idempotency_key()}")
    return "refunded"


@function_tool
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

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("look_up_order", {"order": 55}),
            ("refund_card", {"order": 55, "amount": 84.5}),
            ("send_mail", {"to": "ada@example.org", "text": "You have your 84.50 EUR back."}),
        ]
        done = sum(item.get("type") == "function_call_output" for item in input)
        wanted = [function_call(name, args, call_id=name) for name, args in calls[done : done + 1]]
        output: list[Any] = wanted or [assistant_message("Order 55 is refunded.")]
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


if "OPENAI_API_KEY" not in os.environ:
    set_tracing_disabled(True)  # the SDK's traces go to OpenAI
model: Any = os.environ["MODEL"] if "MODEL" in os.environ else OfflineModel()
agent = Agent(name="refunds", model=model, tools=[look_up_order, refund_card, send_mail])
app = DurableRunner(agent)  # the one line

if __name__ == "__main__":
    result = app.run_sync(TASK, run_id="refund-55")
    print(result.final_output)
    print("\nsteps")
    for step in durable_agents.runs.get("refund-55").steps():
        print(f"  {step.kind:<5}  {step.name:<13}  by worker {step.worker[:6]}")
    print("\nledger")
    print(LEDGER.read_text(), end="")
