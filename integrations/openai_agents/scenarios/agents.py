"""Agents that run through: tools, agents as tools, handoffs, structured output, contexts."""

import asyncio
import time
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from agents import Agent, RunConfig, RunContextWrapper, function_tool, handoff
from pydantic import BaseModel

from crashmatrix import Scenario, World, scenario

from .kit import (
    ASK,
    Brain,
    Provider,
    calls,
    charge_and_mail,
    one_tool,
    outputs_named,
    queued,
    run,
    run_sync,
    says,
    scene,
    two_tools,
)


@scenario
def one_tool_agent(world: World) -> Scenario:
    return scene(
        Agent(name="clerk", model=Brain(world, "clerk", one_tool), tools=charge_and_mail(world)), run()
    )


@scenario
def sync_verb(world: World) -> Scenario:
    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", two_tools), tools=charge_and_mail(world))
    return scene(agent, run_sync(), is_async=False)


@scenario
def queued_run(world: World) -> Scenario:
    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", two_tools), tools=charge_and_mail(world))
    return scene(agent, queued())


@scenario
def parallel_tools_and_agent(world: World) -> Scenario:
    """Sync and async tools beside an agent that is a tool; after a crash they arrive the other way round."""

    @function_tool
    async def fast(rank: int) -> str:
        await asyncio.sleep(world.latency(rank, 3))
        world.effect(f"fast {rank}")
        return f"fast {rank} done"

    @function_tool
    def slow(rank: int) -> str:
        time.sleep(world.latency(rank, 3))
        world.effect(f"slow {rank}")
        return f"slow {rank} done"

    def research(outputs: list[Any], items: list[Any]) -> list[Any]:
        return says(f"found {outputs}") if outputs else calls(("fast", {"rank": 0}), ("slow", {"rank": 1}))

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if outputs:
            return says("done: " + " and ".join(map(str, outputs)))
        return calls(("slow", {"rank": 2}), ("research", {"input": "dig"}), ("fast", {"rank": 1}))

    researcher: Any = Agent(name="researcher", model=Brain(world, "researcher", research), tools=[fast, slow])
    tools = [fast, slow, researcher.as_tool("research", "Research.")]
    return scene(Agent(name="clerk", model=Brain(world, "clerk", plan), tools=tools), run())


@scenario
def same_agent_twice(world: World) -> Scenario:
    """An agent that is a tool, called twice at once."""

    def look(outputs: list[Any], items: list[Any]) -> list[Any]:
        what = items[0]["content"]
        return says(f"{what}: {outputs[0]}") if outputs else calls(("charge", {"amount": len(what)}))

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if outputs:
            return says(" | ".join(map(str, outputs)))
        return calls(("look", {"input": "a"}), ("look", {"input": "bcd"}))

    inner: Any = Agent(name="inner", model=Brain(world, "inner", look), tools=charge_and_mail(world))
    return scene(
        Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[inner.as_tool("look", "Look.")]), run()
    )


@scenario
def streamed_agent_tool(world: World) -> Scenario:
    """An agent that is a tool, and whose events are listened to."""
    heard: list[str] = []
    inner: Any = Agent(name="inner", model=Brain(world, "inner", two_tools), tools=charge_and_mail(world))
    tool = inner.as_tool("look", "Look.", on_stream=lambda event: heard.append(event["event"].type))

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        return says(f"done: {outputs[0]}") if outputs else calls(("look", {"input": "x"}))

    return scene(Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[tool]), run())


@scenario
def agent_in_tool(world: World) -> Scenario:
    """A tool whose own code runs an agent, before it acts itself."""
    from agents import Runner

    inner: Any = Agent(name="inner", model=Brain(world, "inner", one_tool), tools=charge_and_mail(world))

    @function_tool
    async def ask(question: str) -> str:
        said = await Runner.run(inner, question)
        world.effect(f"asked {question}")
        return str(said.final_output)

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        return (
            says(f"done: {outputs}")
            if outputs
            else calls(("ask", {"question": "a"}), ("ask", {"question": "b"}))
        )

    return scene(Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[ask]), run())


@scenario
def handoff_cycle(world: World) -> Scenario:
    """Two agents that hand over to each other, with a callback that acts."""
    charge, _ = charge_and_mail(world)

    def triage(outputs: list[Any], items: list[Any]) -> list[Any]:
        if outputs_named(items, "charge"):
            return says("closed")
        return calls(("to_booker", {}))

    def book(outputs: list[Any], items: list[Any]) -> list[Any]:
        if outputs_named(items, "charge"):
            return calls(("transfer_to_triage", {}))
        return calls(("charge", {"amount": 7}))

    booker: Any = Agent(name="booker", model=Brain(world, "booker", book), tools=[charge])

    def handed_over(context: RunContextWrapper[Any]) -> None:
        world.effect("handed over")

    to_booker = handoff(booker, on_handoff=handed_over, tool_name_override="to_booker")
    first: Any = Agent(name="triage", model=Brain(world, "triage", triage), handoffs=[to_booker])
    booker.handoffs.append(first)
    return scene(first, run())


class Reason(BaseModel):
    why: str


@scenario
def handoff_with_input(world: World) -> Scenario:
    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        return calls(("transfer_to_expert", {"why": "too hard"}))

    async def noted(context: RunContextWrapper[dict[str, Any]], reason: Reason) -> None:
        world.effect(f"noted {reason.why}")
        context.context["why"] = reason.why

    def instructed(context: RunContextWrapper[dict[str, Any]], agent: Agent[Any]) -> str:
        return f"because {context.context.get('why')}"

    expert: Any = Agent(
        name="expert",
        model=Brain(world, "expert", lambda outputs, items: says("solved")),
        instructions=instructed,
    )
    first: Any = Agent(
        name="first",
        model=Brain(world, "first", plan),
        handoffs=[handoff(expert, on_handoff=noted, input_type=Reason)],
    )
    return scene(first, run(context=dict))


class Verdict(BaseModel):
    paid: bool
    receipts: list[str]


@scenario
def structured_output(world: World) -> Scenario:
    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if not outputs:
            return calls(("charge", {"amount": 3}))
        return says(Verdict(paid=True, receipts=list(map(str, outputs))).model_dump_json())

    agent: Any = Agent(
        name="clerk", model=Brain(world, "clerk", plan), tools=charge_and_mail(world), output_type=Verdict
    )
    return scene(agent, run())


@dataclass
class Ledger:
    visited: list[str] = field(default_factory=list)
    balance: int = 100


@dataclass
class Desk(Ledger):
    """With something that exists in its own process only."""

    lock: Any = field(default_factory=Lock, repr=False, compare=False)


def _changing(world: World) -> Agent[Any]:
    """Tools that change the user's own object, which the next instructions depend on."""

    @function_tool
    def pay(ledger: RunContextWrapper[Ledger], amount: int) -> str:
        world.effect(f"pay {amount}")
        ledger.context.balance -= amount
        return f"paid {amount}"

    @function_tool
    async def visit(ledger: RunContextWrapper[Ledger], where: str) -> str:
        world.effect(f"visit {where}")
        ledger.context.visited.append(where)
        return f"was in {where}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        steps = [
            calls(("pay", {"amount": 5}), ("visit", {"where": "rome"})),
            calls(("visit", {"where": "bonn"})),
            calls(("pay", {"amount": 7})),
        ]
        turns = sum(
            item.get("type") == "function_call" and item["call_id"] in ("pay-5", "visit-bonn", "pay-7")
            for item in items
        )
        return steps[turns] if turns < 3 else says("done")

    def instructed(ledger: RunContextWrapper[Ledger], agent: Agent[Any]) -> str:
        return f"{ledger.context.balance} left, seen {ledger.context.visited}"

    return Agent[Ledger](
        name="clerk", instructions=instructed, model=Brain(world, "clerk", plan), tools=[pay, visit]
    )


@scenario
def changed_context(world: World) -> Scenario:
    return scene(_changing(world), run(context=Ledger))


@scenario
def changed_live_context(world: World) -> Scenario:
    """Whoever asks again, for a run that is over already, too, gets the changes in the object that they bring."""
    return scene(_changing(world), run(context=Desk), restore=lambda run: {"context": Desk()})


@scenario
def custom_provider(world: World) -> Scenario:
    """Models by name, from a provider of the application's own, which a recovery gets from `restore`."""
    agent: Any = Agent(name="clerk", model="brain", tools=charge_and_mail(world))

    def config() -> RunConfig:
        return RunConfig(model_provider=Provider(world, {"brain": two_tools}), workflow_name="refunds")

    return scene(agent, run(run_config=config), restore=lambda run: {"run_config": config()})


@scenario
def nested_runner(world: World) -> Scenario:
    """A tool that calls another durable runner: a part of this run."""
    from durable_agents.openai_agents import DurableRunner

    inner = DurableRunner(
        Agent(name="inner", model=Brain(world, "inner", two_tools), tools=charge_and_mail(world)), "inner"
    )

    @function_tool
    async def ask(question: str) -> str:
        return str((await inner.run(question)).final_output)

    @function_tool
    def ask_sync(question: str) -> str:
        return str(inner.run_sync(question).final_output)

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if not outputs:
            return calls(("ask", {"question": "a"}), ("ask_sync", {"question": "b"}))
        return says(f"done: {outputs}")

    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[ask, ask_sync])
    return scene(agent, run(ASK))
