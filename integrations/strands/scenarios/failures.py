"""What fails: tools, models, retries, tools that may not run again."""

from typing import Any

from strands import tool
from strands.event_loop._retry import ModelRetryStrategy
from strands.hooks import AfterToolCallEvent
from strands.types.exceptions import ModelThrottledException

from crashmatrix import Retry, Scenario, Turn, World, scenario
from durable_agents.strands import DurableAgent

from .agents import one_tool_plan
from .kit import Scripted, agent_of, invoke, say, text_of, told, tools_of, wants


@scenario
def tool_error_told_to_the_model(world: World) -> Scenario:
    @tool
    def refuse(amount: int) -> str:
        """Refuse."""
        world.effect(f"refuse {amount}")
        raise ZeroDivisionError("no funds")

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("refuse", {"amount": 1}))
        if replies == 1:
            return wants(("charge", {"amount": 2}))
        return say(f"done: {text_of(messages[-1])}")

    return told(agent_of(world, plan, [refuse, *tools_of(world)]), invoke())


@scenario
def tool_retried_by_a_hook(world: World) -> Scenario:
    """Each try is a step; all have one idempotency key."""

    @tool
    def shaky(amount: int) -> str:
        """Fail at first."""
        world.effect("shaky")
        if world.is_first("shaky"):
            raise ConnectionError("try again")
        return "held"

    agent = agent_of(
        world,
        lambda n, messages: (
            wants(("shaky", {"amount": 1})) if n == 0 else say(f"done: {text_of(messages[-1])}")
        ),
        [shaky],
    )

    def again(event: AfterToolCallEvent) -> None:
        event.retry = isinstance(event.exception, ConnectionError)

    agent.add_hook(again, AfterToolCallEvent)
    return told(agent, invoke())


class Throttled(Scripted):
    """Is throttled at first."""

    async def stream(self, *args: Any, **kwargs: Any) -> Any:
        self.world.effect("asked")
        if self.world.is_first("asked"):
            raise ModelThrottledException("slow down")
        async for chunk in super().stream(*args, **kwargs):
            yield chunk


@scenario
def model_retried(world: World) -> Scenario:
    agent = agent_of(
        world,
        one_tool_plan,
        tools_of(world),
        retry_strategy=ModelRetryStrategy(max_attempts=3, initial_delay=0.01, max_delay=0.02),
    )
    agent.model = Throttled(world, one_tool_plan)
    return told(agent, invoke())


@scenario
def mended_model(world: World) -> Scenario:
    """A run that fails, and goes on once its cause is mended."""

    class Broken(Scripted):
        async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if len(messages) > 2 and not world.is_mended:
                world.effect("broken")
                raise ConnectionError("overloaded")
            async for chunk in super().stream(messages, *args, **kwargs):
                yield chunk

    agent = agent_of(world, one_tool_plan, tools_of(world))
    agent.model = Broken(world, one_tool_plan)
    runner = DurableAgent(agent, "agent")
    return Scenario(runner=runner, turns=[invoke(), Retry("r1")], may_fail=True)


@scenario
def failed_turn(world: World) -> Scenario:
    """After a turn that failed the conversation goes on from what was said in it, as natively."""

    def plan(replies: int, messages: Any) -> Any:
        if text_of(messages[-1]) == "fail":
            raise ConnectionError("overloaded")
        return say(f"heard {len(messages)}")

    agent = agent_of(world, plan)
    return told(agent, invoke("one"), invoke("fail", "r2"), invoke("three", "r3"), may_fail=True)


@scenario
def at_most_once(world: World) -> Scenario:
    agent = agent_of(world, one_tool_plan, tools_of(world))
    runner = DurableAgent(agent, "agent", at_most_once={"charge"})

    def settle(about: dict[str, Any]) -> Any:
        happened = any(effect.name == "charge 1" for effect in world.effects())
        return {"result": "receipt 1"} if happened else "run again"

    return Scenario(
        runner=runner,
        turns=[Turn("r1", lambda app, **run: app.start("please", **run).id)],
        settle=settle,
        once=["charge 1"],
    )
