"""A refund agent that survives `kill -9`; see README.md."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

import durable_agents
from durable_agents.adk import DurableRunner

LEDGER = Path("ledger.txt")
TASK = "Refund order 55, then mail the customer. One tool at a time."


def look_up_order(order: int) -> str:
    """What was ordered, what it cost, and the customer's mail address."""
    return f"order {order}: a blue lamp, 84.50 EUR, ada@example.org"


def refund_card(order: int, amount: float) -> str:
    """Pay an amount back to the card an order was paid with."""
    write(f"refunded {amount:.2f} EUR for order {order}, idempotency key {durable_agents.idempotency_key()}")
    return "refunded"


def send_mail(to: str, text: str) -> str:
    """Mail the customer."""
    if "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)  # the refund is done, the mail is not
    write(f"mailed {to}: {text}")
    return "sent"


def write(line: str) -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(line + "\n")


class OfflineModel(BaseLlm):
    """Stands in for a real model. It decides from the conversation, so the same after a crash."""

    model: str = "offline"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        calls = [
            types.FunctionCall(name="look_up_order", args={"order": 55}),
            types.FunctionCall(name="refund_card", args={"order": 55, "amount": 84.5}),
            types.FunctionCall(
                name="send_mail", args={"to": "ada@example.org", "text": "You have your 84.50 EUR back."}
            ),
        ]
        parts = [part for content in llm_request.contents for part in content.parts or []]
        done = sum(part.function_response is not None for part in parts)
        said = types.Part(function_call=calls[done]) if done < 3 else types.Part(text="Order 55 is refunded.")
        yield LlmResponse(content=types.Content(role="model", parts=[said]))


agent = LlmAgent(
    name="refunds",
    model=os.environ.get("MODEL") or OfflineModel(),
    instruction="You work in customer service.",
    tools=[look_up_order, refund_card, send_mail],
)
runner = DurableRunner(agent=agent, app_name="shop", auto_create_session=True)  # the one line


async def main() -> None:
    message = types.Content(role="user", parts=[types.Part(text=TASK)])
    events = runner.run_async(user_id="ada", session_id="order-55", new_message=message, run_id="refund-55")
    async for event in events:
        if event.is_final_response() and event.content and event.content.parts:
            print(event.content.parts[0].text)


if __name__ == "__main__":
    asyncio.run(main())
    print("\nsteps")
    for step in durable_agents.runs.get("refund-55").steps():
        if step.kind in ("model", "tool"):
            print(f"  {step.kind:<5}  {step.name:<13}  by worker {step.worker[:6]}")
    print("\nledger")
    print(LEDGER.read_text(), end="")
