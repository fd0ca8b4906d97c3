"""What the CrewAI scenarios are made of: scripted models, tools, and how crews and flows are called."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from crewai import Agent, Crew, Process, Task
from crewai.flow.async_feedback.types import HumanFeedbackPending
from crewai.flow.flow import Flow
from crewai.flow.flow_config import flow_config
from crewai.flow.persistence.base import FlowPersistence
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool, tool

from crashmatrix import Scenario, Turn, World, scenario
from durable_agents.crewai import DurableCrew, DurableFlow

logging.getLogger("crewai.llms.base_llm").setLevel(logging.ERROR)  # that it counts tokens by guessing

Plan = Callable[[int, str], Any]


class Model(BaseLLM):
    """Decides from its prompt: `plan` gets the number of tool results in it, and the prompt's text."""

    world: Any = None
    label: str = "model"
    plan: Any = None
    is_native: bool = False

    def supports_function_calling(self) -> bool:
        return self.is_native

    def _reply(self, messages: Any, from_task: Any) -> Any:
        listed = messages if isinstance(messages, list) else [{"role": "user", "content": messages}]
        told = "\n".join(str(message.get("content")) for message in listed)
        done = sum(
            message["role"] == "tool"
            or (message["role"] == "assistant" and "Observation:" in str(message.get("content")))
            for message in listed
        )
        about = (from_task.name or from_task.description[:12]) if from_task is not None else told[:12]
        self.world.effect(f"{self.label} {done} for {about}" + (" again" if "AGAIN" in told else ""))
        used = 10 * len(listed)
        self._track_token_usage_internal(
            {"prompt_tokens": used, "completion_tokens": 5, "total_tokens": used + 5}
        )
        return (self.plan or (lambda _, told: f"reply to {told[:20]}"))(done, told)

    def call(
        self,
        messages: Any,
        tools: Any = None,
        callbacks: Any = None,
        available_functions: Any = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        return self._reply(messages, from_task)

    async def acall(
        self,
        messages: Any,
        tools: Any = None,
        callbacks: Any = None,
        available_functions: Any = None,
        from_task: Any = None,
        from_agent: Any = None,
        response_model: Any = None,
    ) -> Any:
        await asyncio.sleep(0)
        return self._reply(messages, from_task)


def act(name: str, **arguments: Any) -> str:
    """A ReAct step."""
    return f"Thought: next\nAction: {name}\nAction Input: {json.dumps(arguments)}"


def final(text: str) -> str:
    return f"Thought: I now can give a great answer\nFinal Answer: {text}"


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Native tool calls."""
    return [
        {
            "id": f"{name}-{'-'.join(map(str, arguments.values()))}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for name, arguments in wanted
    ]


def two_charges(done: int, told: str) -> str:
    return act("charge", amount=done + 1) if done < 2 else final(f"done with {told.count('receipt')}")


def charging(world: World, late: int = 0) -> BaseTool:
    """The tool `charge`; with `late` that many parallel calls arrive the other way round after a crash."""

    @tool("charge")
    def charge(amount: int) -> str:
        """Charge an amount."""
        if late:
            time.sleep(world.latency(amount, late))
        world.effect(f"charge {amount}")
        return f"receipt {amount}"

    return charge


def agent(world: World, plan: Plan, tools: Any = (), role: str = "clerk", **options: Any) -> Agent:
    is_native = options.pop("is_native", False)
    model = Model(model="fake/scripted", world=world, label=role, plan=plan, is_native=is_native)
    return Agent(
        role=role, goal="to serve", backstory="long", llm=model, tools=list(tools), verbose=False, **options
    )


def task(name: str, agent: Agent | None = None, **options: Any) -> Task:
    return Task(name=name, description=f"do {name}", expected_output="a text", agent=agent, **options)


def crew(agents: Any, tasks: Any, **options: Any) -> Crew:
    options.setdefault("process", Process.sequential)
    return Crew(agents=list(agents), tasks=list(tasks), verbose=False, **options)


def kickoff(verb: str, inputs: Any = None, run_id: str = "r1") -> Turn:
    return Turn(run_id, lambda app, **run: getattr(app, verb)(inputs, **run))


def of_crew(build: Callable[[World], Crew], **options: Any) -> None:
    """Register a crew as a scenario, called with each of its verbs."""

    def named(verb: str, name: str) -> None:
        def built(world: World) -> Scenario:
            made = build(world)
            return Scenario(
                runner=DurableCrew(made, "crew"),
                native=made if options.get("native", True) else None,
                turns=[kickoff(verb, options.get("inputs"))],
                is_async=verb != "kickoff",
            )

        built.__name__ = name
        scenario(built)

    for verb in options.get("verbs", ("kickoff", "akickoff")):
        named(verb, build.__name__ if verb == "kickoff" else f"{verb}_{build.__name__}")


class Asking:
    """Natively feedback that does not block: what a web application would do."""

    def request_feedback(self, context: Any, flow: Any) -> str:
        raise HumanFeedbackPending(context)


class Kept(FlowPersistence):
    """Keeps what waits for feedback, in memory."""

    pending: Any = None

    def init_db(self) -> None: ...

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None: ...

    def load_state(self, flow_uuid: str) -> Any: ...

    def save_pending_feedback(self, flow_uuid: str, context: Any, state_data: Any) -> None:
        self.pending = dict(state_data), context

    def load_pending_feedback(self, flow_uuid: str) -> Any:
        return self.pending


class Native:
    """A native flow as an application holds one: made, kicked off, resumed."""

    def __init__(self, flow: type[Flow[Any]]) -> None:
        self._class, self._kept = flow, Kept()
        self._flow: Any = None

    def _made(self) -> Any:
        flow_config.hitl_provider = Asking()
        self._flow = self._class(persistence=self._kept)
        self._flow._stamp_state_id("r1")
        return self._flow

    def kickoff(self, inputs: Any = None) -> Any:
        return self._made().kickoff(inputs)

    async def kickoff_async(self, inputs: Any = None) -> Any:
        return await self._made().kickoff_async(inputs)

    def resume(self, feedback: str) -> Any:
        self._flow = self._class.from_pending("r1", self._kept)
        return self._flow.resume(feedback)

    def state(self, run_id: str) -> Any:
        return self._flow.state


def of_flow(
    world: World, flow: type[Flow[Any]], *turns: Any, native: bool = True, **options: Any
) -> Scenario:
    """A flow, durably and natively."""
    return Scenario(
        runner=DurableFlow(flow, "flow", **options.pop("durable", {})),
        native=Native(flow) if native else None,
        turns=turns or [kickoff("kickoff")],
        show=options.pop("show", left),
        **options,
    )


def left(app: Any) -> Any:
    """The state that the run has left, if it is over."""
    state = app.state("r1")
    fields = state if isinstance(state, dict) else state.model_dump()
    return sorted(fields.items())


def asked(result: Any) -> Any:
    """What a person is asked, or the flow's output."""
    if isinstance(result, HumanFeedbackPending):
        context = result.context
        return "asked", context.method_name, context.message, context.method_output, context.flow_id
    return result
