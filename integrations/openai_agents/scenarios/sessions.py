"""Sessions, which nothing is appended to twice."""

import asyncio
from typing import Any

from agents import Agent, SQLiteSession, function_tool

from crashmatrix import Scenario, World, scenario

from .kit import ASK, Brain, answer, calls, charge_and_mail, run, run_streamed, says, scene


def _session_for(world: World) -> Any:
    """Opens the conversation, in a file beside the world's ledger; the native agent has one of its own."""
    return lambda: SQLiteSession("ann", world._ledger.with_name("sessions.sqlite"))


def _plan(outputs: list[Any], items: list[Any]) -> list[Any]:
    """Per turn of the user: both tools, with what was said so far as arguments; then the answer."""
    last = items[-1]
    turns = sum(item.get("role") == "user" for item in items)
    if last.get("role") == "user":
        return calls(("charge", {"amount": turns}), ("mail", {"to": f"ann {turns}"}))
    return says(f"turn {turns} is done: {outputs[-2:]}")


def _left(world: World) -> Any:
    """What the conversation holds at the end."""

    def show(app: Any) -> Any:

        session = _session_for(world)()
        try:
            return asyncio.run(session.get_items())
        finally:
            session.close()

    return show


def _clerk(world: World) -> Agent[Any]:
    return Agent(name="clerk", model=Brain(world, "clerk", _plan), tools=list(charge_and_mail(world)))


@scenario
def three_turns(world: World) -> Scenario:
    """The user says the same three times."""
    session = _session_for(world)
    turns = [run(ASK, f"r{number}", session=session) for number in (1, 2, 3)]
    return scene(_clerk(world), *turns, show=_left(world))


@scenario
def streamed_turns(world: World) -> Scenario:
    session = _session_for(world)
    turns = (run_streamed(ASK, "r1", session=session), run_streamed(ASK, "r2", session=session))
    return scene(_clerk(world), *turns, show=_left(world))


@scenario
def approval_in_session(world: World) -> Scenario:
    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        world.effect(f"refund {order}")
        return f"refunded {order}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        turns = sum(item.get("role") == "user" for item in items)
        if items[-1].get("role") == "user":
            return calls(("refund", {"order": turns}))
        return says(f"turn {turns}: {outputs[-1]}")

    session = _session_for(world)
    agent: Any = Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[refund])
    turns = (
        run(ASK, "r1", session=session), answer("refund", True, "r1", session=session),
        run(ASK, "r2", session=session), answer("refund", False, "r2", session=session),
    )  # fmt: skip
    return scene(agent, *turns, remembers=True, show=_left(world))
