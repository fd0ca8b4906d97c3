"""Failures that are part of the course, and runs that fail."""

import asyncio
from dataclasses import replace
from typing import Any

from agents import (
    Agent,
    RunContextWrapper,
    RunErrorHandlerResult,
    function_tool,
)

from crashmatrix import Retry, Scenario, World, scenario

from .kit import Brain, calls, charge_and_mail, one_tool, run, run_streamed, says, scene


def _told(context: RunContextWrapper[Any], error: Exception) -> str:
    return f"the tool says: {error}"


@scenario
def handled_failures(world: World) -> Scenario:
    """Tools that fail and whose failure the model hears of: as the SDK says it, as the agent does, and by time."""

    @function_tool
    def fail(what: str) -> str:
        world.effect(f"fail {what}")
        raise LookupError(f"no such {what}")

    @function_tool(failure_error_function=_told)
    async def refuse(what: str) -> str:
        world.effect(f"refuse {what}")
        raise PermissionError(f"not {what}")

    @function_tool(timeout=0.05)
    async def hang(what: str) -> str:
        world.effect(f"hang {what}")
        await asyncio.sleep(30)
        return "never"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if outputs:
            return says("heard: " + " / ".join(map(str, outputs)))
        return calls(("fail", {"what": "order"}), ("refuse", {"what": "you"}), ("hang", {"what": "on"}))

    return scene(Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[fail, refuse, hang]), run())


def _broken(world: World) -> Agent[Any]:
    charge, _ = charge_and_mail(world)

    @function_tool(failure_error_function=None)
    def ship(order: int) -> str:
        world.effect(f"ship {order}")
        if not world.is_mended:
            raise LookupError(f"no such order: {order}")
        return f"shipped {order}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if not outputs:
            return calls(("charge", {"amount": 1}))
        return says(f"done: {outputs}") if len(outputs) > 1 else calls(("ship", {"order": 55}))

    return Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[charge, ship])


@scenario
def tool_raises(world: World) -> Scenario:
    """A tool whose error ends the run."""
    return scene(_broken(world), run(), may_fail=True)


@scenario
def streamed_tool_raises(world: World) -> Scenario:
    return scene(_broken(world), run_streamed(), may_fail=True)


@scenario
def resumed_after_failure(world: World) -> Scenario:
    async def again(app: Any) -> Any:
        from .kit import ASK, told

        world.mend()
        return told(await app.run(ASK))

    return Scenario(
        runner=scene(_broken(world)).runner, turns=[run(), Retry("r1", again)], is_async=True, may_fail=True
    )


@scenario
def max_turns(world: World) -> Scenario:
    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        return calls(("charge", {"amount": len(outputs)}))

    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", plan), tools=list(charge_and_mail(world)))
    return scene(agent, run(max_turns=2), may_fail=True)


@scenario
def max_turns_handled(world: World) -> Scenario:
    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        return calls(("charge", {"amount": len(outputs)}))

    def handlers() -> Any:
        return {"max_turns": lambda data: RunErrorHandlerResult(final_output="enough")}

    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", plan), tools=list(charge_and_mail(world)))
    return scene(
        agent, run(max_turns=2, error_handlers=handlers), restore=lambda run: {"error_handlers": handlers()}
    )


@scenario
def model_raises(world: World) -> Scenario:
    class Down(Brain):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            await super().get_response(*args, **kwargs)
            raise ConnectionError("down")

    return scene(Agent(name="clerk", model=Down(world, "down", one_tool)), run(), may_fail=True)


@scenario
def at_most_once(world: World) -> Scenario:
    """A tool that may not run twice: what became of it is put to a person."""

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if not outputs:
            return calls(("charge", {"amount": 1}))
        return says(f"done: {outputs}") if len(outputs) > 1 else calls(("mail", {"to": "ann"}))

    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", plan), tools=list(charge_and_mail(world)))

    def looked_up(asked: dict[str, Any]) -> Any:
        """A person looks whether the card was charged."""
        charged = any(effect.name == "charge 1" for effect in world.effects())
        return {"result": "receipt 1"} if charged else "run again"

    # Whoever is thawed while the question is open is told that the run waits.
    turn = replace(run(), attaches=False)
    return scene(agent, turn, at_most_once={"charge"}, once=["charge 1"], settle=looked_up)
