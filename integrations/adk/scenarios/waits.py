"""Questions to people, and their answers: confirmations, long-running tools, requests for input."""

from typing import Any

from google.adk.apps.app import ResumabilityConfig
from google.adk.events.request_input import RequestInput
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.workflow import Workflow

from crashmatrix import Scenario, World, scenario

from .kit import agent, answer, asked, charging, first, in_turn, mailing, reply, responded, send, told

CONFIRM, INPUT = "adk_request_confirmation", "adk_request_input"


def confirming(app: Any, yes: bool = True, which: int = 0) -> Any:
    async def message() -> Any:
        return responded(CONFIRM, await asked(app, CONFIRM, which), {"confirmed": yes})

    return message()


def _cashier(world: World) -> Any:
    """One tool that runs at once, and one that wants to be confirmed."""
    charge = FunctionTool(charging(world), require_confirmation=True)
    plan = in_turn(("mail", {"to": "ann"}), ("charge", {"amount": 5}))
    return agent(world, "cashier", plan, [charge, mailing(world)], output_key="said")


@scenario
def confirmed(world: World) -> Scenario:
    return told(_cashier(world), send("please"), reply(confirming))


@scenario
def confirmed_from_elsewhere(world: World) -> Scenario:
    return told(_cashier(world), send("please"), answer({"confirmed": True}, confirming))


@scenario
def rejected(world: World) -> Scenario:
    return told(_cashier(world), send("please"), reply(lambda app: confirming(app, yes=False)))


@scenario
def confirmed_in_resumable_app(world: World) -> Scenario:
    app = {"resumability_config": ResumabilityConfig(is_resumable=True)}
    return told(_cashier(world), send("please"), reply(confirming), app=app)


@scenario
def confirmation_beside_a_call(world: World) -> Scenario:
    """Two calls at once, of which one wants to be confirmed: the other one has run by then."""
    charge = FunctionTool(charging(world), require_confirmation=True)
    plan = first(("mail", {"to": "ann"}), ("charge", {"amount": 5}))
    return told(agent(world, "cashier", plan, [charge, mailing(world)]), send("please"), reply(confirming))


@scenario
def long_running(world: World) -> Scenario:
    """A tool that hands in a ticket; somebody else says later what came of it."""

    def file_request(what: str) -> dict[str, Any]:
        """File a request."""
        world.effect(f"file {what}")
        return {"status": "pending", "ticket": 7}

    async def done(app: Any) -> Any:
        return responded("file_request", await asked(app, "file_request"), {"status": "approved"})

    root = agent(
        world, "clerk", first(("file_request", {"what": "leave"})), [LongRunningFunctionTool(file_request)]
    )
    return told(root, send("please"), reply(done), send("thanks", "r2"))


@scenario
def workflow_asks(world: World) -> Scenario:
    """A node asks for input between two that act."""

    def before(node_input: str) -> str:
        world.effect("before")
        return f"before {node_input}"

    def ask(node_input: str) -> Any:
        world.effect("ask")
        yield RequestInput(message="ship?", payload={"about": node_input})

    def after(node_input: Any) -> str:
        world.effect(f"after {node_input}")
        return f"after {node_input}"

    async def yes(app: Any) -> Any:
        return responded(INPUT, await asked(app, INPUT), {"result": "yes"})

    return told(Workflow(name="flow", edges=[("START", before, ask, after)]), send("go"), reply(yes))


@scenario
def asked_twice(world: World) -> Scenario:
    """Two confirmations, one after the other."""
    charge = FunctionTool(charging(world), require_confirmation=True)
    plan = in_turn(("charge", {"amount": 5}), ("charge", {"amount": 6}))
    root = agent(world, "cashier", plan, [charge])
    return told(root, send("please"), reply(confirming), reply(lambda app: confirming(app, which=1)))


@scenario
def superseded(world: World) -> Scenario:
    """Somebody says something else instead of confirming: the run that waits is over."""
    return told(_cashier(world), send("please"), send("never mind", "r2"))
