"""A refund crew that survives `kill -9`; see README.md."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool

import durable_agents
from durable_agents.crewai import DurableCrew

LEDGER = Path("ledger.txt")


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


class OfflineModel(BaseLLM):
    """Stands in for a real model. It decides from the conversation, so the same after a crash."""

    def supports_function_calling(self) -> bool:
        return True

    def get_input_tokens_count(self, *_: Any, **__: Any) -> int:
        return 0

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("look_up_order", {"order": 55}),
            ("refund_card", {"order": 55, "amount": 84.5}),
            ("send_mail", {"to": "ada@example.org", "text": "You have your 84.50 EUR back."}),
        ]
        done = sum(message["role"] == "tool" for message in messages)
        wanted = [
            {"id": name, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for name, arguments in calls[done : done + 1]
        ]
        return wanted or "Order 55 is refunded."


model = LLM(model=os.environ["MODEL"]) if "MODEL" in os.environ else OfflineModel(model="offline")
clerk = Agent(
    role="refund clerk",
    goal="Refund orders and tell the customers.",
    backstory="You do one thing at a time, with one tool at a time.",
    llm=model,
    tools=[look_up_order, refund_card, send_mail],
)
refund = Task(
    name="refund",
    description="Refund order {order}, then mail the customer. One tool at a time.",
    expected_output="one sentence",
    agent=clerk,
)
app = DurableCrew(Crew(name="refunds", agents=[clerk], tasks=[refund]))  # the one line

if __name__ == "__main__":
    result = app.kickoff({"order": 55}, run_id="refund-55")
    print(result.raw)
    print("\nsteps")
    for step in durable_agents.runs.get("refund-55").steps():
        if step.kind in ("model", "tool"):
            print(f"  {step.kind:<5}  {step.name:<13}  by worker {step.worker[:6]}")
    print("\nledger")
    print(LEDGER.read_text(), end="")
