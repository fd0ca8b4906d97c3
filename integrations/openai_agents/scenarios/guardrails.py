"""Guardrails of each kind, that pass, reject and trip."""

import asyncio
from datetime import date
from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolGuardrailFunctionOutput,
    function_tool,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from pydantic import BaseModel

from crashmatrix import Scenario, World, scenario

from .kit import Brain, calls, charge_and_mail, run, run_streamed, says, scene, two_tools


class Checked(BaseModel):
    is_fine: bool


def _guarded(world: World, trips: str = "") -> Agent[Any]:
    """An agent with guardrails before, beside and after it; one of them may trip."""
    judge: Any = Agent(
        name="judge", output_type=Checked,
        model=Brain(world, "judge", lambda outputs, items: says(Checked(is_fine=True).model_dump_json())),
    )  # fmt: skip

    @input_guardrail(run_in_parallel=False)
    def before(context: RunContextWrapper[Any], agent: Agent[Any], input: Any) -> GuardrailFunctionOutput:
        world.effect("before")
        return GuardrailFunctionOutput({"seen": {1, 2}, "on": date(2026, 1, 2)}, trips == "before")

    @input_guardrail
    async def beside(
        context: RunContextWrapper[Any], agent: Agent[Any], input: Any
    ) -> GuardrailFunctionOutput:
        """Asks an agent of its own."""
        verdict = (await Runner.run(judge, input)).final_output
        world.effect("beside")
        return GuardrailFunctionOutput({"fine": verdict.is_fine}, trips == "beside")

    @input_guardrail(name="beside")
    async def twin(context: RunContextWrapper[Any], agent: Agent[Any], input: Any) -> GuardrailFunctionOutput:
        await asyncio.sleep(world.latency(1, 2))
        world.effect("twin")
        return GuardrailFunctionOutput("twin", False)

    @output_guardrail
    async def after(
        context: RunContextWrapper[Any], agent: Agent[Any], output: Any
    ) -> GuardrailFunctionOutput:
        world.effect(f"after {output}")
        return GuardrailFunctionOutput(len(output), trips == "after")

    return Agent(
        name="clerk", model=Brain(world, "clerk", two_tools), tools=list(charge_and_mail(world)),
        input_guardrails=[before, beside, twin], output_guardrails=[after],
    )  # fmt: skip


@scenario
def guardrails_pass(world: World) -> Scenario:
    return scene(_guarded(world), run())


@scenario
def streamed_guardrails(world: World) -> Scenario:
    return scene(_guarded(world), run_streamed())


@scenario
def input_guardrail_trips(world: World) -> Scenario:
    return scene(_guarded(world, trips="before"), run(), may_fail=True)


@scenario
def output_guardrail_trips(world: World) -> Scenario:
    return scene(_guarded(world, trips="after"), run(), may_fail=True)


@scenario
def tool_guardrails(world: World) -> Scenario:
    """One tool's input is rejected before a sibling is through; another one's output is replaced."""

    @tool_input_guardrail
    def allowed(data: Any) -> ToolGuardrailFunctionOutput:
        world.effect(f"allowed {data.context.tool_call_id}")
        if "-99" in data.context.tool_call_id:
            return ToolGuardrailFunctionOutput.reject_content("too much", output_info="limit")
        return ToolGuardrailFunctionOutput.allow("fine")

    @tool_output_guardrail
    async def hidden(data: Any) -> ToolGuardrailFunctionOutput:
        await asyncio.sleep(0)
        world.effect(f"hidden {data.context.tool_call_id}")
        if data.output == "secret":
            return ToolGuardrailFunctionOutput.reject_content("not for you")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_input_guardrails=[allowed], tool_output_guardrails=[hidden])
    def pay(amount: int) -> str:
        world.effect(f"pay {amount}")
        return f"paid {amount}"

    @function_tool(tool_output_guardrails=[hidden])
    async def tell(what: str) -> str:
        await asyncio.sleep(world.latency(1, 2))
        world.effect(f"tell {what}")
        return "secret"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if outputs:
            return says(f"done: {outputs}")
        return calls(("pay", {"amount": 99}), ("tell", {"what": "all"}), ("pay", {"amount": 1}))

    return scene(Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[pay, tell]), run())


@scenario
def tool_guardrail_raises(world: World) -> Scenario:
    @tool_output_guardrail
    def stop(data: Any) -> ToolGuardrailFunctionOutput:
        world.effect("stop")
        return ToolGuardrailFunctionOutput.raise_exception("bad")

    @function_tool(tool_output_guardrails=[stop])
    def pay(amount: int) -> str:
        world.effect(f"pay {amount}")
        return f"paid {amount}"

    agent: Any = Agent(
        name="clerk",
        model=Brain(world, "clerk", lambda outputs, items: calls(("pay", {"amount": 1}))),
        tools=[pay],
    )
    return scene(agent, run(), may_fail=True)


@scenario
def guardrails_of_the_run(world: World) -> Scenario:
    @input_guardrail
    def checked(context: RunContextWrapper[Any], agent: Agent[Any], input: Any) -> GuardrailFunctionOutput:
        world.effect("checked")
        return GuardrailFunctionOutput("ok", False)

    def config() -> RunConfig:
        return RunConfig(input_guardrails=[checked])

    agent: Any = Agent(
        name="clerk", model=Brain(world, "clerk", two_tools), tools=list(charge_and_mail(world))
    )
    return scene(agent, run(run_config=config), restore=lambda run: {"run_config": config()})
