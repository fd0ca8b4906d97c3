"""Strands keeps the contract of all integrations."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent, ToolContext, tool
from strands.agent.agent_result import AgentResult
from strands.models.model import Model

from contract import Contract, Framework, Tool
from durable_agents import Run
from durable_agents.strands import DurableAgent


class Charging(Model):
    """Charges each number of what the user said last, then tells what came of it."""

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {"model_id": "charging"}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        asked = max(n for n, message in enumerate(messages) if "text" in message["content"][0] and n % 2 == 0)
        amounts = re.findall(r"\d+", messages[asked]["content"][0]["text"])
        done = [m["content"][0]["toolResult"] for m in messages[asked:] if "toolResult" in m["content"][0]]
        yield {"messageStart": {"role": "assistant"}}
        for amount in amounts[len(done) :][:1]:
            start = {"toolUse": {"name": "charge", "toolUseId": f"{asked}-{amount}"}}
            yield {"contentBlockStart": {"start": start}}
            yield {
                "contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"amount": int(amount)})}}}
            }
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
            break
        else:
            yield {"contentBlockStart": {"start": {}}}
            for word in ("done: ", done[-1]["content"][0]["text"]):
                yield {"contentBlockDelta": {"delta": {"text": word}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
        usage = {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}


class Strands(Framework):
    runner = DurableAgent
    result = AgentResult
    approval = "yes"
    tool_errors = False

    def agent(self, charge: Tool, *, asks: bool = False) -> Any:
        @tool(name="charge")
        def charging(amount: int) -> str:
            """Charge an amount."""
            return charge(amount)

        @tool(name="charge", context=True)
        def asking(amount: int, tool_context: ToolContext) -> str:
            """Charge an amount."""
            said = tool_context.interrupt("approval", reason=f"charge {amount}?")
            return charge(amount) if said == "yes" else "refused"

        return Agent(model=Charging(), tools=[asking if asks else charging], callback_handler=None)

    def durable(self, agent: Any, name: str, **options: Any) -> Any:
        return DurableAgent(agent, name, **options)

    def native(self, agent: Any, text: str) -> Any:
        return agent(text)

    def call(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return runner(text, run_id=run_id, session_id=thread)

    async def acall(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return await runner.invoke_async(text, run_id=run_id, session_id=thread)

    def start(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Run:
        return runner.start(text, run_id=run_id, session_id=thread)  # type: ignore[no-any-return]

    def said(self, result: Any) -> str:
        return str(result).removesuffix("\n")

    def is_asking(self, result: Any) -> bool:
        return bool(result.stop_reason == "interrupt")

    def approve(self, runner: Any, result: Any, thread: str) -> Any:
        response = {"interruptId": result.interrupts[0].id, "response": "yes"}
        return runner([{"interruptResponse": response}], session_id=thread)

    def stream(self, agent: Any, text: str, **run: Any) -> list[str]:
        async def heard() -> list[str]:
            return [
                str(event.get("data") or sorted(event)) async for event in agent.stream_async(text, **run)
            ]

        return asyncio.run(heard())


class TestContract(Contract):
    framework = Strands()
