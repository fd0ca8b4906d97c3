"""Sessions, which nothing is appended to twice."""

import asyncio
from pathlib import Path
from typing import Any

from agents import Agent, RunContextWrapper, SessionSettings, SQLiteSession, function_tool
from agents.memory import SessionABC

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


def _refunding(world: World) -> Agent[Any]:
    """Per turn of the user: a refund that somebody has to approve."""

    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        world.effect(f"refund {order}")
        return f"refunded {order}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        turns = sum(item.get("role") == "user" for item in items)
        if items[-1].get("role") == "user":
            return calls(("refund", {"order": turns}))
        return says(f"turn {turns}: {outputs[-1]}")

    return Agent(name="clerk", model=Brain(world, "clerk", plan), tools=[refund])


@scenario
def approval_in_session(world: World) -> Scenario:
    session = _session_for(world)
    turns = (
        run(ASK, "r1", session=session), answer("refund", True, "r1", session=session),
        run(ASK, "r2", session=session), answer("refund", False, "r2", session=session),
    )  # fmt: skip
    return scene(_refunding(world), *turns, remembers=True, show=_left(world))


class Tenants(SessionABC):
    """A conversation for each tenant, whom the context names. It takes nobody else, and is read six items back."""

    session_id = "shared"
    session_settings = SessionSettings(limit=6)

    def __init__(self, file: Path) -> None:
        self.file = file

    def of(self, wrapper: RunContextWrapper[Any] | None) -> SQLiteSession:
        if wrapper is None:
            raise PermissionError("a session was used without the context that says whose it is")
        return SQLiteSession(wrapper.context["tenant"], self.file)

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[Any]:
        if limit is None or limit > 6:
            raise ValueError(f"{limit} items are more than may be read")
        session = self.of(wrapper)
        try:
            return list(await session.get_items(limit))
        finally:
            session.close()

    async def add_items(self, items: list[Any], *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        session = self.of(wrapper)
        try:
            await session.add_items(items)
        finally:
            session.close()

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> Any:
        raise NotImplementedError

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        raise NotImplementedError


@scenario
def tenants_in_session(world: World) -> Scenario:
    """Two tenants, one session object: each is told by the context, before an answer and behind it."""
    file = world._ledger.with_name("sessions.sqlite")

    def session() -> Any:
        return Tenants(file)

    def left(app: Any) -> Any:
        found = {}
        for tenant in ("acme", "bolt"):
            kept = SQLiteSession(tenant, file)
            found[tenant] = asyncio.run(kept.get_items())
            kept.close()
        return found

    turns = []
    for number, (tenant, approved) in enumerate([("acme", True), ("bolt", False), ("acme", True)], 1):
        options = {"session": session, "context": lambda tenant=tenant: {"tenant": tenant}}
        turns += [run(ASK, f"r{number}", **options), answer("refund", approved, f"r{number}", **options)]
    restore = lambda run: {"session": session()}  # noqa: E731
    return scene(_refunding(world), *turns, remembers=True, restore=restore, show=left)
