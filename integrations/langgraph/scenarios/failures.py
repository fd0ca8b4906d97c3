"""Failures that are part of the course: retries, fallbacks, and a run that fails."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

from crashmatrix import Scenario, World, scenario

from .kit import (
    ASK,
    BEGIN,
    Log,
    Model,
    acting,
    as_tool,
    in_a_row,
    invoke,
    kept,
    told,
    tools_of,
    two_tools,
)


@scenario
def retry_policy(world: World) -> Scenario:
    """A node that fails at its first attempt."""
    charge, _ = tools_of(world)

    def act(state: Any) -> Any:
        paid = charge.invoke({"amount": 1})
        world.effect("flaky")
        if world.is_first("flaky"):
            raise ConnectionError("overloaded")
        return {"log": [paid]}

    builder = in_a_row(before=acting(world, "before"))
    policy = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3)
    builder.add_node("act", act, retry_policy=policy)
    builder.add_edge("before", "act")
    return told(kept(builder), invoke(BEGIN))


@scenario
def retried_tool(world: World) -> Scenario:
    """A node whose tool fails at its first call; the retry policy runs the node again."""
    charge, _ = tools_of(world)

    def flaky(question: str) -> str:
        """Fail at first."""
        world.effect("flaky")
        if world.is_first("flaky"):
            raise ConnectionError("overloaded")
        return f"fine {question}"

    flaky_tool = as_tool(flaky)

    def act(state: Any) -> Any:
        return {"log": [charge.invoke({"amount": 1}), flaky_tool.invoke({"question": "how"})]}

    builder: Any = StateGraph(Log)
    builder.add_node(
        "act", act, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=3)
    )
    builder.add_edge(START, "act")
    return told(kept(builder), invoke(BEGIN))


@scenario
def model_fallback(world: World) -> Scenario:
    charge, _ = tools_of(world)
    broken, good = Model(world=world, label="broken", broken=True), Model(world=world, label="good")
    model = broken.with_fallbacks([good])

    def act(state: Any) -> Any:
        return {
            "log": [model.invoke("first").text, charge.invoke({"amount": 1}), model.invoke("second").text]
        }

    return told(kept(in_a_row(act=act)), invoke(BEGIN))


@scenario
def fallback_agent(world: World) -> Scenario:
    broken = Model(world=world, label="broken", broken=True)
    good = Model(world=world, label="good", plan=two_tools)
    graph: Any = create_agent(
        broken,
        list(tools_of(world)),
        middleware=[ModelFallbackMiddleware(good)],
        checkpointer=InMemorySaver(),
    )
    return told(graph, invoke(ASK))


@scenario
def failing(world: World) -> Scenario:
    """The run fails, and stays failed."""

    def fail(state: Any) -> Any:
        world.effect("fail")
        raise LookupError("no such order")

    return told(kept(in_a_row(before=acting(world, "before"), fail=fail)), invoke(BEGIN), may_fail=True)
