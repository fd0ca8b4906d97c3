"""The OpenAI Agents SDK keeps the contract of all integrations."""

import asyncio
import re
from pathlib import Path
from typing import Any

from agents import Agent, Runner, RunResult, SQLiteSession, UserError, function_tool

from contract import Contract, Framework, Tool
from durable_agents import Run
from durable_agents.openai_agents import DurableRunner

from .kit import Brain, calls, says


def charging(outputs: list[Any], items: list[Any]) -> list[Any]:
    """Charges each number of what the user said last, then tells what came of it."""
    asked = max(n for n, item in enumerate(items) if item.get("role") == "user")
    done = [item["output"] for item in items[asked:] if item.get("type") == "function_call_output"]
    left = re.findall(r"\d+", str(items[asked]["content"]))[len(done) :]
    return calls(("charge", {"amount": int(left[0])})) if left else says(f"done: {done[-1]}")


class OpenAIAgents(Framework):
    runner = DurableRunner
    result = RunResult
    tool_error = UserError

    def __init__(self) -> None:
        self.sessions: dict[str, SQLiteSession] = {}

    def agent(self, charge: Tool, *, asks: bool = False) -> Any:
        tool = function_tool(charge, name_override="charge", needs_approval=asks, failure_error_function=None)
        return Agent(name="cashier", model=Brain(charging), tools=[tool])

    def durable(self, agent: Any, name: str, **options: Any) -> Any:
        return DurableRunner(agent, name, **{"restore": lambda run: {"session": None}, **options})

    def native(self, agent: Any, text: str) -> Any:
        return Runner.run_sync(agent, text)

    def call(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return runner.run_sync(text, run_id=run_id)

    async def acall(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return await runner.run(text, run_id=run_id)

    def start(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Run:
        options = {"session": self._session(thread)} if thread else {}
        return runner.start(text, run_id=run_id, **options)  # type: ignore[no-any-return]

    def _session(self, thread: str) -> SQLiteSession:
        return self.sessions.setdefault(thread, SQLiteSession(thread, str(self.home / "sessions.sqlite")))

    def said(self, result: Any) -> str:
        return str(result.final_output)

    def is_asking(self, result: Any) -> bool:
        return bool(result.interruptions)

    def approve(self, runner: Any, result: Any, thread: str) -> Any:
        state = result.to_state()
        state.approve(result.interruptions[0])
        return runner.run_sync(state)

    def stream(self, agent: Any, text: str, **run: Any) -> list[str]:
        async def heard() -> list[str]:
            streamed = agent.run_streamed(text, **run) if run else Runner.run_streamed(agent, text)
            return [event.type async for event in streamed.stream_events()]

        return asyncio.run(heard())


class TestContract(Contract):
    framework = OpenAIAgents()

    def test_runs_on_one_thread_come_one_after_the_other(self, tmp_path: Path) -> None:  # type: ignore[override]
        self.framework.home = tmp_path  # type: ignore[attr-defined]
        super().test_runs_on_one_thread_come_one_after_the_other()
