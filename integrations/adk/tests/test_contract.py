"""Google ADK keeps the contract of all integrations."""

import asyncio
import re
import uuid
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool
from google.genai import types

from contract import Contract, Framework, Tool
from durable_agents import Run
from durable_agents.adk import DurableRunner

from .kit import Model, calls, responded, said, text

CONFIRMATION = "adk_request_confirmation"


def charging(results: int, contents: list[types.Content]) -> list[types.Part]:
    """Charges each number of what the user said last, then tells what came of it."""
    spoken = [n for n, c in enumerate(contents) if c.role == "user" and any(p.text for p in c.parts or [])]
    parts = [part for content in contents[spoken[-1] :] for part in content.parts or []]
    done = [part.function_response for part in parts if part.function_response]
    left = re.findall(r"\d+", str(parts[0].text))[len(done) :]
    if left:
        return calls(("charge", {"amount": int(left[0])}))
    return text(f"done: {(done[-1].response or {})['result']}")


class ADK(Framework):
    runner = DurableRunner
    result = list
    deaths = (RuntimeError,)  # the sync verb's thread tells of it so

    def __init__(self) -> None:
        self.approval = {"confirmed": True}

    def agent(self, charge: Tool, *, asks: bool = False) -> Any:
        def named(amount: int) -> str:
            return charge(amount)

        named.__name__, named.__doc__ = "charge", "Charge an amount."
        tool = FunctionTool(named, require_confirmation=asks)
        return LlmAgent(name="cashier", model=Model(plan=charging), tools=[tool])

    def durable(self, agent: Any, name: str, **options: Any) -> Any:
        return DurableRunner(agent=agent, app_name="shop", name=name, auto_create_session=True, **options)

    def native(self, agent: Any, words: str) -> Any:
        runner = InMemoryRunner(agent=agent, app_name="shop")
        runner.auto_create_session = True
        return list(runner.run(user_id="u", session_id=uuid.uuid4().hex, new_message=said(words)))

    def call(self, runner: Any, words: str, run_id: str, thread: str | None = None) -> Any:
        session = thread or run_id
        return list(runner.run(user_id="u", session_id=session, new_message=said(words), run_id=run_id))

    async def acall(self, runner: Any, words: str, run_id: str, thread: str | None = None) -> Any:
        events = runner.run_async(
            user_id="u", session_id=thread or run_id, new_message=said(words), run_id=run_id
        )
        return [event async for event in events]

    def start(self, runner: Any, words: str, run_id: str, thread: str | None = None) -> Run:
        session = thread or run_id
        return runner.start(user_id="u", session_id=session, new_message=said(words), run_id=run_id)  # type: ignore[no-any-return]

    def said(self, result: Any) -> str:
        return next(part.text for event in reversed(result) for part in event.content.parts if part.text)

    def is_asking(self, result: Any) -> bool:
        return bool(self._asked(result))

    def _asked(self, result: Any) -> list[Any]:
        asked = [call for event in result for call in event.get_function_calls()]
        return [call for call in asked if call.name == CONFIRMATION]

    def approve(self, runner: Any, result: Any, thread: str) -> Any:
        reply = responded(CONFIRMATION, self._asked(result)[0].id, {"confirmed": True})
        return list(runner.run(user_id="u", session_id=thread, new_message=reply))

    def stream(self, agent: Any, words: str, **run: Any) -> list[str]:
        async def heard() -> list[str]:
            if run:
                events = agent.run_async(user_id="u", session_id="streamed", new_message=said(words), **run)
            else:
                runner = InMemoryRunner(agent=agent, app_name="shop")
                runner.auto_create_session = True
                events = runner.run_async(user_id="u", session_id="streamed", new_message=said(words))
            return [f"{event.author} {event.content.role}" async for event in events]

        return asyncio.run(heard())


class TestContract(Contract):
    framework = ADK()
