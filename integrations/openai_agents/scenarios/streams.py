"""Streamed runs."""

from typing import Any

from agents import Agent, handoff

from crashmatrix import Scenario, World, scenario

from .kit import Brain, calls, charge_and_mail, outputs_named, run_streamed, says, scene, two_tools


@scenario
def streamed_run(world: World) -> Scenario:
    agent: Any = Agent(
        name="clerk", model=Brain(world, "clerk", two_tools), tools=list(charge_and_mail(world))
    )
    return scene(agent, run_streamed())


@scenario
def streamed_handoff(world: World) -> Scenario:
    charge, mail = charge_and_mail(world)

    def first(outputs: list[Any], items: list[Any]) -> list[Any]:
        return calls(("transfer_to_expert", {})) if outputs else calls(("charge", {"amount": 1}))

    def second(outputs: list[Any], items: list[Any]) -> list[Any]:
        return says("all is well now") if outputs_named(items, "mail") else calls(("mail", {"to": "ann"}))

    expert: Any = Agent(name="expert", model=Brain(world, "expert", second), tools=[mail])
    over = handoff(expert, on_handoff=lambda context: world.effect("handed over"))
    return scene(
        Agent(name="clerk", model=Brain(world, "clerk", first), tools=[charge], handoffs=[over]),
        run_streamed(),
    )
