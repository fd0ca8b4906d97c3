"""Tools that need approval: before, during and after."""

from typing import Any

from agents import Agent, RunContextWrapper, function_tool

from crashmatrix import Scenario, World, scenario

from .kit import Brain, answer, calls, charge_and_mail, decide, run, says, scene


def _asking(world: World) -> Agent[Any]:
    """A tool that runs at once beside two that wait, and one more afterwards."""
    charge, mail = charge_and_mail(world)

    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        world.effect(f"refund {order}")
        return f"refunded {order}"

    @function_tool(needs_approval=True)
    async def close(account: str) -> str:
        world.effect(f"close {account}")
        return f"closed {account}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if not outputs:
            return calls(("charge", {"amount": 1}), ("refund", {"order": 55}), ("close", {"account": "ann"}))
        if len(outputs) == 3:
            return calls(("mail", {"to": "ann"}))
        return says("done: " + ", ".join(map(str, outputs)))

    return Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[charge, mail, refund, close])


@scenario
def approved_natively(world: World) -> Scenario:
    return scene(_asking(world), run(), decide({"refund": True, "close": "too early"}), remembers=True)


@scenario
def approved_one_by_one(world: World) -> Scenario:
    """Two answers to one pause: the run asks again for what is still open."""
    turns = (run(), answer("refund", True), answer("close", {"approve": False, "message": "no"}))
    return scene(_asking(world), *turns, remembers=True)


@scenario
def approved_from_outside(world: World) -> Scenario:
    return scene(_asking(world), run(), answer("close", False), decide({"refund": True}), remembers=True)


@scenario
def approval_in_agent_tool(world: World) -> Scenario:
    """The tool that waits belongs to an agent that is a tool itself, called twice at once."""
    charge, _ = charge_and_mail(world)

    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        world.effect(f"refund {order}")
        return f"refunded {order}"

    def inner_plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if not outputs:
            return calls(("charge", {"amount": 2}))
        return says(f"refunds: {outputs}") if len(outputs) > 1 else calls(("refund", {"order": 7}))

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        return (
            says(f"done: {outputs}")
            if outputs
            else calls(("desk", {"input": "x"}), ("charge", {"amount": 1}))
        )

    inner: Any = Agent(name="inner", model=Brain(world, "inner", inner_plan), tools=[charge, refund])
    tools = [charge, inner.as_tool("desk", "The desk.")]
    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", plan), tools=tools)
    return scene(agent, run(), answer("refund", True), remembers=True)


@scenario
def approval_with_context(world: World) -> Scenario:
    """What the context was when the run stopped is what it goes on with."""

    @function_tool
    def note(context: RunContextWrapper[dict[str, Any]], text: str) -> str:
        world.effect(f"note {text}")
        context.context.setdefault("notes", []).append(text)
        return f"noted {text}"

    async def is_large(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments["order"] > 50)

    @function_tool(needs_approval=is_large)
    def refund(context: RunContextWrapper[dict[str, Any]], order: int) -> str:
        world.effect(f"refund {order}")
        context.context["refunded"] = [*context.context.get("refunded", []), order]
        return f"refunded {order} knowing {context.context['notes']}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        if len(outputs) == 0:
            return calls(("note", {"text": "first"}))
        if len(outputs) == 1:
            return calls(("refund", {"order": 7}), ("refund", {"order": 55}))
        return says("done: " + ", ".join(map(str, outputs)))

    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[note, refund])
    return scene(agent, run(context=dict), answer("refund", True), remembers=True)
