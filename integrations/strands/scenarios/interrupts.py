"""Interrupts: from tools, from hooks, from agents that are tools; answered natively and by `Run.answer`."""

from typing import Any

from strands import ToolContext, tool
from strands.hooks import BeforeToolCallEvent

from crashmatrix import Scenario, Turn, World, scenario

from .kit import agent_of, answer, invoke, respond, say, text_of, told, tools_of, wants


def asking_tool(world: World, name: str = "ask") -> Any:
    @tool(name=name, context=True)
    def ask(question: str, tool_context: ToolContext) -> str:
        """Ask the user."""
        world.effect(f"{question} is asked")
        said = tool_context.interrupt(question, reason={"about": question})
        world.effect(f"{question} is answered {said}")
        return f"{question} {said}"

    return ask


def _ask_and_charge(replies: int, messages: Any) -> Any:
    if replies == 0:
        return wants(("charge", {"amount": 1}), ("ask", {"question": "ship"}), ("mail", {"to": "ann"}))
    if replies == 1:
        return wants(("charge", {"amount": 2}))
    return say(f"done: {text_of(messages[-1])}")


@scenario
def tool_asks(world: World) -> Scenario:
    """A tool asks, two others run beside it and are not run again."""
    agent = agent_of(world, _ask_and_charge, [asking_tool(world), *tools_of(world)])
    return told(agent, invoke(), respond("yes"))


@scenario
def async_tool_asks(world: World) -> Scenario:
    agent = agent_of(world, _ask_and_charge, [asking_tool(world), *tools_of(world)])
    return told(agent, invoke(is_async=True), respond("yes", is_async=True), is_async=True)


@scenario
def tool_asks_and_is_answered_from_anywhere(world: World) -> Scenario:
    agent = agent_of(world, _ask_and_charge, [asking_tool(world), *tools_of(world)])
    return told(agent, invoke(), answer("no"), invoke("again", "r2"), respond("yes", "r2"))


@scenario
def hook_asks_each_time(world: World) -> Scenario:
    """The same hook asks before two calls, one after the other."""

    def plan(replies: int, messages: Any) -> Any:
        if replies < 2:
            return wants(("charge", {"amount": replies}))
        return say(f"done: {text_of(messages[-1])}")

    agent = agent_of(world, plan, tools_of(world))

    def approve(event: BeforeToolCallEvent) -> None:
        if event.interrupt("approve", reason=event.tool_use["input"]) != "yes":
            event.cancel_tool = "refused"

    agent.add_hook(approve, BeforeToolCallEvent)
    return told(agent, invoke(), respond("yes"), answer("no"))


@scenario
def two_questions(world: World) -> Scenario:
    """Two tools ask at once, and are answered one by one."""

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("ask", {"question": "ship"}), ("ask", {"question": "pay"}))
        return say(f"done: {text_of(messages[-1])}")

    agent = agent_of(world, plan, [asking_tool(world)])
    return told(agent, invoke(), answer("later", "ship"), answer("now", "pay"))


@scenario
def expert_asks(world: World) -> Scenario:
    """A tool of an agent that is a tool asks."""

    def inner(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("charge", {"amount": 7}))
        if replies == 1:
            return wants(("ask", {"question": "ship"}))
        return say(f"expert: {text_of(messages[-1])}")

    charge, mail = tools_of(world)
    expert = agent_of(world, inner, [asking_tool(world), charge], label="expert", name="expert")

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return wants(("expert", {"input": "how"}), ("mail", {"to": "ann"}))
        return say(f"they say {text_of(messages[-1])}")

    return told(agent_of(world, plan, [expert.as_tool(), mail]), invoke(), respond("yes"))


@scenario
def queued_and_answered(world: World) -> Scenario:
    agent = agent_of(world, _ask_and_charge, [asking_tool(world), *tools_of(world)])
    turn = Turn(
        "r1", lambda app, **run: app.start("please", **run).id, native=lambda app: (app("please"), "r1")[1]
    )
    return told(agent, turn, answer("yes"))
