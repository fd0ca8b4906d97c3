"""CrewAI keeps the contract of all integrations, with a crew and with a flow that kicks off a crew.

A crew has no conversation, and does not ask before it uses a tool: waits and threads are the flow's. Neither streams
yet.
"""

import re
from typing import Any

from crewai import Agent, Crew, Task
from crewai.crews.crew_output import CrewOutput
from crewai.flow.async_feedback.types import HumanFeedbackPending
from crewai.flow.flow import Flow, listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.llms.base_llm import BaseLLM
from crewai.tools.base_tool import Tool as CrewTool
from pydantic import create_model

from contract import Contract, Framework, Tool
from durable_agents import Run
from durable_agents.crewai import DurableCrew, DurableFlow


class Model(BaseLLM):
    """Charges each number of what it is asked to do, then tells what came of it."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self._track_token_usage_internal({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9})
        told = "\n".join(str(message["content"]) for message in messages)
        asked = re.findall(r"charge: (.*?)\n", told)[-1]
        amounts = re.findall(r"\d+", asked)
        replies = "\n".join(str(m["content"]) for m in messages if m["role"] == "assistant")
        done = re.findall(r"Observation: (.*)", replies)
        if left := amounts[len(done) :][:1]:
            return f'Thought: next\nAction: charge\nAction Input: {{"amount": {left[0]}}}'
        return f"Thought: I now can give a great answer\nFinal Answer: done: {done[-1]}"

    async def acall(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        return self.call(messages)


def crew_of(charge: Tool) -> Crew:
    schema = create_model("Charge", amount=(int, ...))
    tool = CrewTool(name="charge", description="Charge.", func=charge, args_schema=schema)
    clerk = Agent(
        role="clerk", goal="to charge", backstory="long", llm=Model(model="fake/charging"), tools=[tool]
    )
    task = Task(description="charge: {text}\n", expected_output="a text", agent=clerk)
    return Crew(agents=[clerk], tasks=[task])


def flow_of(charge: Tool, asks: bool) -> type[Flow[Any]]:
    crew = crew_of(charge)

    class Charging(Flow[dict[str, Any]]):
        suppress_flow_events: bool = True
        _skip_auto_memory: bool = True  # it opens a vector database for each flow

        @start()
        def begin(self) -> str:
            return str(self.state["text"])

        @listen(begin)
        def charged(self, text: str) -> str:
            return str(crew.copy().kickoff({"text": text}).raw)

    class Asking(Charging):
        @start()
        @human_feedback(message="Charge it?")
        def begin(self) -> str:
            return str(self.state["text"])

        @listen(begin)
        def charged(self, result: Any) -> str:
            return str(crew.copy().kickoff({"text": result.output}).raw)

    return Asking if asks else Charging


class OfCrew(Framework):
    runner: type = DurableCrew
    result: type = CrewOutput
    tool_errors = False
    streams = False

    def agent(self, charge: Tool, *, asks: bool = False) -> Any:
        return crew_of(charge)

    def durable(self, agent: Any, name: str, **options: Any) -> Any:
        return DurableCrew(agent, name, **options)

    def native(self, agent: Any, text: str) -> Any:
        return agent.kickoff({"text": text})

    def _inputs(self, text: str, thread: str | None) -> dict[str, Any]:
        return {"text": text}

    def call(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return runner.kickoff(self._inputs(text, thread), run_id=run_id)

    async def acall(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Any:
        return await runner.akickoff(self._inputs(text, thread), run_id=run_id)

    def start(self, runner: Any, text: str, run_id: str, thread: str | None = None) -> Run:
        return runner.start(self._inputs(text, thread), run_id=run_id)  # type: ignore[no-any-return]

    def said(self, result: Any) -> str:
        return str(result.raw)

    def is_asking(self, result: Any) -> bool:
        raise NotImplementedError("a crew does not ask before it uses a tool")

    def approve(self, runner: Any, result: Any, thread: str) -> Any:
        raise NotImplementedError("a crew does not ask before it uses a tool")


class OfFlow(OfCrew):
    runner = DurableFlow
    result = str
    approval = "yes"

    def agent(self, charge: Tool, *, asks: bool = False) -> Any:
        return flow_of(charge, asks)

    def durable(self, agent: Any, name: str, **options: Any) -> Any:
        return DurableFlow(agent, name, **options)

    def native(self, agent: Any, text: str) -> Any:
        return agent().kickoff({"text": text})

    def _inputs(self, text: str, thread: str | None) -> dict[str, Any]:
        return {"text": text} | ({"id": thread} if thread else {})

    def said(self, result: Any) -> str:
        return str(result)

    def is_asking(self, result: Any) -> bool:
        return isinstance(result, HumanFeedbackPending)

    def approve(self, runner: Any, result: Any, thread: str) -> Any:
        return runner.from_pending(result.context.flow_id).resume("yes")


class TestCrew(Contract):
    framework = OfCrew()

    test_a_wait_outlives_its_process_and_is_answered_from_anywhere = None  # a crew asks before no tool
    test_a_wait_is_answered_natively = None
    test_a_queued_run_waits_too = None
    test_runs_on_one_thread_come_one_after_the_other = None  # a crew has no conversations


class TestFlow(Contract):
    framework = OfFlow()
