"""Failures that are part of the course: tools that raise, callbacks that handle it, limits, unknown outcomes."""

from typing import Any

from google.adk.agents.run_config import RunConfig
from google.adk.workflow import RetryConfig, Workflow

from crashmatrix import Retry, Scenario, World, scenario

from .kit import agent, charging, first, in_turn, send, told


def failing(world: World, error: type[Exception] = ConnectionError) -> Any:
    def fail(why: str, tool_context: Any) -> str:
        """Fail."""
        world.effect(f"fail {why}")
        tool_context.state["tried"] = why
        raise error(f"no connection: {why}")

    return fail


@scenario
def handled_tool_error(world: World) -> Scenario:
    """A callback turns the tool's error into an answer."""

    def on_error(tool: Any, args: Any, tool_context: Any, error: Exception) -> Any:
        return {"error": f"{type(error).__name__}: {error}"}

    plan = in_turn(("fail", {"why": "x"}), ("charge", {"amount": 2}))
    root = agent(world, "cashier", plan, [failing(world), charging(world)], on_tool_error_callback=on_error)
    return told(root, send("please"))


@scenario
def tool_raises(world: World) -> Scenario:
    """Nobody handles the error: it leaves the run, which has failed."""
    plan = in_turn(("charge", {"amount": 1}), ("fail", {"why": "x"}))
    return told(
        agent(world, "cashier", plan, [charging(world), failing(world)]), send("please"), may_fail=True
    )


@scenario
def resumed_failure(world: World) -> Scenario:
    """The cause is mended, and the failed run goes on; natively a failed call is never tried again."""

    def deliver(what: str) -> str:
        """Deliver."""
        world.effect(f"deliver {what}")
        if not world.is_mended:
            raise ConnectionError("the road is closed")
        return f"delivered {what}"

    plan = in_turn(("charge", {"amount": 1}), ("deliver", {"what": "lamp"}))
    return told(
        agent(world, "shop", plan, [charging(world), deliver]),
        send("please", attaches=False),  # one that was frozen has had the failure's event, and gets the rest
        Retry("r1"),
        may_fail=True,
        compared=False,
    )


@scenario
def limited_calls(world: World) -> Scenario:
    """The third model call is one too many."""
    plan = in_turn(("charge", {"amount": 1}), ("charge", {"amount": 2}), ("charge", {"amount": 3}))
    root = agent(world, "cashier", plan, [charging(world)])
    return told(root, send("please", config=RunConfig(max_llm_calls=2)), may_fail=True)


@scenario
def at_most_once(world: World) -> Scenario:
    """A tool that is never run again: of one that was cut off somebody says what became."""
    plan = in_turn(("charge", {"amount": 1}), ("mail", {"to": "ann"}))

    def mail(to: str) -> str:
        """Send a mail."""
        world.effect(f"mail {to}")
        return f"mailed {to}"

    def charge(amount: int) -> dict[str, Any]:
        """Charge an amount."""
        world.effect(f"charge {amount}")
        return {"receipt": amount}

    def settle(about: dict[str, Any]) -> Any:
        happened = any(effect.name == "charge 1" for effect in world.effects())
        return {"result": {"receipt": 1}} if happened else "run again"

    root = agent(world, "cashier", plan, [charge, mail])
    return told(root, send("please"), at_most_once={"charge"}, settle=settle, once=["charge 1"])


@scenario
def node_retried(world: World) -> Scenario:
    """A node of a workflow that fails at its first attempt."""

    def flaky(node_input: str) -> str:
        world.effect("flaky")
        if world.is_first("flaky"):
            raise ConnectionError("overloaded")
        return f"fine {node_input}"

    from google.adk.workflow import FunctionNode

    node = FunctionNode(func=flaky, retry_config=RetryConfig(max_attempts=3, initial_delay=0.001, jitter=0.0))

    def after(node_input: str) -> str:
        world.effect("after")
        return f"after {node_input}"

    return told(Workflow(name="shop", edges=[("START", node, after)]), send("please"))


@scenario
def error_in_parallel(world: World) -> Scenario:
    """Of two calls at once one fails and is handled."""

    def on_error(tool: Any, args: Any, tool_context: Any, error: Exception) -> Any:
        return {"error": str(error)}

    plan = first(("fail", {"why": "x"}), ("charge", {"amount": 1}))
    root = agent(
        world, "cashier", plan, [failing(world), charging(world, 2)], on_tool_error_callback=on_error
    )
    return told(root, send("please"))
