"""LangGraph keeps the contract of all integrations."""

import re
import uuid
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from contract import Contract, Framework, Tool
from durable_agents import Run
from durable_agents.langgraph import DurableGraph


class Model(BaseChatModel):
    """Charges each number of what the user said last, then tells what came of it."""

    @property
    def _llm_type(self) -> str:
        return "charging"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        asked = max(i for i, message in enumerate(messages) if message.type == "human")
        amounts = re.findall(r"\d+", messages[asked].text)
        done = [message for message in messages[asked:] if isinstance(message, ToolMessage)]
        calls = [
            ToolCall(name="charge", args={"amount": int(n)}, id=f"{asked}-{n}")
            for n in amounts[len(done) :][:1]
        ]
        message = AIMessage("" if calls else f"done: {done[-1].text}", tool_calls=calls)
        message.usage_metadata = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
        return ChatResult(generations=[ChatGeneration(message=message)])


def config(thread: str | None) -> Any:
    return {"configurable": {"thread_id": thread}} if thread else None


def asked(text: str) -> Any:
    return {"messages": [("user", text)]}


class LangGraph(Framework):
    runner = DurableGraph
    result = dict
    approval = "yes"

    def agent(self, charge: Tool, *, asks: bool = False) -> Any:
        def asking(amount: int) -> str:
            return charge(amount) if interrupt(f"charge {amount}?") == "yes" else "refused"

        tool = StructuredTool.from_function(asking if asks else charge, name="charge", description="Charge.")
        return create_agent(Model(), [tool], checkpointer=InMemorySaver())

    def durable(self, agent: Any, name: str, **options: Any) -> Any:
        return DurableGraph(agent, name, **options)

    def native(self, agent: Any, text: str) -> Any:
        return agent.invoke(asked(text), config(uuid.uuid4().hex))

    def call(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return runner.invoke(asked(text), config(thread), run_id=run_id)

    async def acall(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return await runner.ainvoke(asked(text), config(thread), run_id=run_id)

    def start(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Run:
        return runner.start(asked(text), config(thread), run_id=run_id)  # type: ignore[no-any-return]

    def said(self, result: Any) -> str:
        return str(result["messages"][-1].text)

    def is_asking(self, result: Any) -> bool:
        return "__interrupt__" in result

    def approve(self, runner: Any, result: Any, thread: str) -> Any:
        return runner.invoke(Command(resume="yes"), config(thread))

    def stream(self, agent: Any, text: str, **run: Any) -> list[str]:
        thread = None if run else config(uuid.uuid4().hex)
        events = agent.stream(asked(text), thread, stream_mode="updates", **run)
        return [f"{node} {update['messages'][-1].text}" for event in events for node, update in event.items()]


class TestContract(Contract):
    framework = LangGraph()
