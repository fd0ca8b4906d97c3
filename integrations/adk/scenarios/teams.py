"""Several agents: in sequence, in parallel, in a loop, as tools, by transfer, and an agent of one's own."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import BaseAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from crashmatrix import Scenario, World, scenario

from .kit import agent, calls, charging, first, in_turn, last, mailing, results, send, text, told


@scenario
def sequence(world: World) -> Scenario:
    one = agent(world, "one", first(("charge", {"amount": 1})), [charging(world)], output_key="one")
    two = agent(world, "two", first(("mail", {"to": "ann"})), [mailing(world)], instruction="{one}")
    return told(SequentialAgent(name="both", sub_agents=[one, two]), send("please"))


def _pair(world: World) -> list[Any]:
    """Two agents whose calls arrive the other way round after a crash, and which write one key of the state."""
    return [
        agent(
            world, name, in_turn(("charge", {"amount": n}), ("charge", {"amount": n + 2})), [charging(world, 2)],
            output_key=name, rank=(n, 2),
        )
        for n, name in enumerate(("left", "right"))
    ]  # fmt: skip


@scenario
def parallel(world: World) -> Scenario:
    return told(ParallelAgent(name="both", sub_agents=_pair(world)), send("please"))


@scenario
def parallel_then_tool_agent(world: World) -> Scenario:
    """Two in parallel, then one that asks an expert, who has a tool: also killed inside of the expert."""
    expert = agent(
        world, "expert", in_turn(("charge", {"amount": 10}), ("charge", {"amount": 11})), [charging(world)],
        description="Knows.", output_key="advice",
    )  # fmt: skip
    asking = agent(
        world, "asking", in_turn(("expert", {"request": "how"}), ("mail", {"to": "ann"})),
        [AgentTool(expert), mailing(world)], output_key="asked", brief=True,
    )  # fmt: skip
    both = ParallelAgent(name="both", sub_agents=_pair(world))
    return told(SequentialAgent(name="all", sub_agents=[both, asking]), send("please"))


@scenario
def two_experts_at_once(world: World) -> Scenario:
    """Two calls of one agent tool in parallel."""

    def plan(n: int, contents: Any) -> Any:
        return (
            calls(("charge", {"amount": int(last(contents)[-1])}))
            if n == 0
            else text(f"paid {last(contents)}")
        )

    expert = agent(world, "expert", plan, [charging(world, 2)], description="Knows.")
    asking = first(("expert", {"request": "about 0"}), ("expert", {"request": "about 1"}))
    return told(agent(world, "asking", asking, [AgentTool(expert)]), send("please"))


@scenario
def single_turn_agents(world: World) -> Scenario:
    """Two calls at once of a sub-agent that works in its parent's session."""

    def plan(n: int, contents: Any) -> Any:
        return (
            calls(("charge", {"amount": int(last(contents)[-1])}))
            if n == 0
            else text(f"paid {last(contents)}")
        )

    expert = agent(world, "expert", plan, [charging(world, 2)], description="Knows.", mode="single_turn")
    asking = first(("expert", {"request": "about 0"}), ("expert", {"request": "about 1"}))
    return told(agent(world, "asking", asking, sub_agents=[expert]), send("please"))


@scenario
def loop(world: World) -> Scenario:
    """A writer and a critic, who ends the loop in the third round."""

    def improve(draft: int, tool_context: Any) -> dict[str, Any]:
        """Improve the draft."""
        world.effect(f"improve {draft}")
        tool_context.state["draft"] = draft + 1
        return {"draft": draft + 1}

    def stop(tool_context: Any) -> str:
        """End the loop."""
        world.effect("stop")
        tool_context.actions.escalate = True
        tool_context.actions.skip_summarization = True
        return "stopped"

    def write(n: int, contents: Any) -> Any:
        drafts = sum(part.function_response is not None for c in contents for part in c.parts or ())
        ours = last(contents).startswith("improve")
        return text("written") if ours else calls(("improve", {"draft": drafts}))

    def judge(n: int, contents: Any) -> Any:
        good = sum("written" in str(part.text) for c in contents for part in c.parts or ()) >= 3
        return calls(("stop", {})) if good else text("again")

    writer, critic = agent(world, "writer", write, [improve]), agent(world, "critic", judge, [stop])
    return told(LoopAgent(name="round", sub_agents=[writer, critic], max_iterations=5), send("please"))


@scenario
def transfer(world: World) -> Scenario:
    """The desk hands over to billing, which hands back; the next turn goes to whoever spoke last."""

    def desk(n: int, contents: Any) -> Any:
        if "billed" in str(contents):
            return text(f"desk: {last(contents)}")
        return calls(("transfer_to_agent", {"agent_name": "billing"}))

    def bill(n: int, contents: Any) -> Any:
        if "charge" not in last(contents) and "receipt" not in str(contents[-2:]):
            return calls(("charge", {"amount": len(contents)}))
        return text(f"billed {last(contents)}")

    billing = agent(world, "billing", bill, [charging(world)], description="Bills.")
    return told(agent(world, "desk", desk, sub_agents=[billing]), send("please"), send("and again", "r2"))


@scenario
def own_agent(world: World) -> Scenario:
    """A class derived from `BaseAgent` that runs its sub-agents as it likes, and sends events of its own."""

    class Router(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            yield Event(
                author=self.name, invocation_id=ctx.invocation_id, actions=EventActions(state_delta={"way": "left"}),
            )  # fmt: skip
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
            for round in range(2):
                async for event in self.sub_agents[1].run_async(ctx):
                    yield event
                content = types.Content(role="model", parts=text(f"round {round}"))
                yield Event(author=self.name, invocation_id=ctx.invocation_id, content=content)
                await asyncio.sleep(0)

    def once_more(n: int, contents: Any) -> Any:
        return (
            calls(("mail", {"to": f"ann {results(contents)}"}))
            if last(contents)[:4] != "mail"
            else text("mailed")
        )

    one = agent(world, "one", first(("charge", {"amount": 1})), [charging(world)])
    two = agent(world, "two", once_more, [mailing(world)])
    return told(Router(name="router", sub_agents=[one, two]), send("please"))
