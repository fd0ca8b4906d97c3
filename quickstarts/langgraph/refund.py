"""A refund agent that survives `kill -9`; see README.md."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import durable_agents
from durable_agents.langgraph import DurableGraph

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


class OfflineModel(BaseChatModel):
    """Stands in for a real model. It decides from the conversation, so the same after a crash."""

    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("look_up_order", {"order": 55}),
            ("refund_card", {"order": 55, "amount": 84.5}),
            ("send_mail", {"to": "ada@example.org", "text": "You have your 84.50 EUR back."}),
        ]
        done = sum(isinstance(message, ToolMessage) for message in messages)
        tool_calls = [ToolCall(name=name, args=args, id=name) for name, args in calls[done : done + 1]]
        message = AIMessage("" if tool_calls else "Order 55 is refunded.", tool_calls=tool_calls)
        return ChatResult(generations=[ChatGeneration(message=message)])


model = init_chat_model(os.environ["MODEL"]) if "MODEL" in os.environ else OfflineModel()
agent = create_agent(model, [look_up_order, refund_card, send_mail])
app = DurableGraph(agent)  # the one line

if __name__ == "__main__":
    result = app.invoke({"messages": [("user", TASK)]}, run_id="refund-55")
    print(result["messages"][-1].text)
    print("\nsteps")
    for step in durable_agents.runs.get("refund-55").steps():
        if step.kind in ("model", "tool"):
            print(f"  {step.kind:<5}  {step.name:<13}  by worker {step.worker[:6]}")
    print("\nledger")
    print(LEDGER.read_text(), end="")
