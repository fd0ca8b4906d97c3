"""Crews: ReAct and native calling, delegation, guardrails, asynchronous tasks, tools that fail."""

import json
import time
from typing import Any

from crewai import Crew, Process
from crewai.tools import tool
from pydantic import BaseModel

from crashmatrix import Scenario, World, scenario
from durable_agents.crewai import DurableCrew

from .kit import act, agent, calls, charging, crew, final, kickoff, of_crew, task, two_charges


class Report(BaseModel):
    """What a task gives."""

    title: str
    total: int


def one_model_call(world: World) -> Crew:
    clerk = agent(world, lambda done, told: final("hello"))
    return crew([clerk], [task("greet", clerk)])


def two_react_tasks(world: World) -> Crew:
    clerk = agent(world, two_charges, [charging(world)])
    return crew([clerk], [task("first", clerk), task("second", clerk)])


def three_parallel_calls(world: World) -> Crew:
    def plan(done: int, told: str) -> Any:
        if done == 0:
            return calls(*[("charge", {"amount": n}) for n in range(3)])
        return calls(("charge", {"amount": 3})) if done == 3 else f"done: {told.count('receipt')}"

    clerk = agent(world, plan, [charging(world, late=4)], is_native=True)
    return crew([clerk], [task("charge", clerk)])


def calls_of_one_id(world: World) -> Crew:
    """The model gives its calls one id, or none; two of them are equal, and both are meant."""

    def plan(done: int, told: str) -> Any:
        if done:
            return f"done: {told.count('receipt')}"
        wanted = calls(*[("charge", {"amount": n}) for n in (0, 1, 2, 2)])
        return [{**call, "id": "charge"} for call in wanted[:2]] + [{**call, "id": ""} for call in wanted[2:]]

    clerk = agent(world, plan, [charging(world, late=3)], is_native=True)
    return crew([clerk], [task("charge", clerk)], cache=False)


def hierarchical(world: World) -> Crew:
    def manage(done: int, told: str) -> Any:
        names = ("delegate_work_to_coworker", "ask_question_to_coworker")
        if done == 0:
            return act(names[0], task="charge it", context="soon", coworker="clerk")
        if done == 1:
            return act(names[1], question="how", context="now", coworker="clerk")
        return final("managed")

    clerk = agent(world, two_charges, [charging(world)])
    manager = agent(world, manage, role="manager", allow_delegation=True)
    return crew([clerk], [task("work")], process=Process.hierarchical, manager_agent=manager)


def guarded(world: World) -> Crew:
    """A guardrail sends the first answer back."""

    def plan(done: int, told: str) -> Any:
        if "too short" in told:
            return final("a long answer AGAIN")
        return act("charge", amount=1) if done == 0 else final("no")

    def long_enough(output: Any) -> tuple[bool, Any]:
        world.effect(f"judge {output.raw}")
        return (True, output.raw.upper()) if len(output.raw) > 5 else (False, "too short")

    clerk = agent(world, plan, [charging(world)])
    return crew([clerk], [task("answer", clerk, guardrail=long_enough)])


def parallel_tasks(world: World) -> Crew:
    """Two tasks side by side, and one that joins them."""

    def plan(done: int, told: str) -> Any:
        amount = 1 if "do left" in told else 2
        time.sleep(world.latency(amount, 3))
        if "do join" in told:
            return final(f"joined {told.count('charged')}")
        return act("charge", amount=amount) if done == 0 else final(f"charged {amount}")

    clerks = [agent(world, plan, [charging(world)], role=role) for role in ("ann", "bob", "joe")]
    sides = [
        task(name, clerk, async_execution=True)
        for name, clerk in zip(["left", "right"], clerks[:2], strict=True)
    ]
    return crew(clerks, [*sides, task("join", clerks[2], context=sides)])


def failing_tool(world: World) -> Crew:
    """A tool that fails: CrewAI tries it again, then tells the model."""

    @tool("refund")
    def refund(amount: int) -> str:
        """Pay back."""
        world.effect(f"refund {amount}")
        raise ConnectionError("the bank is closed")

    def plan(done: int, told: str) -> Any:
        if done == 0:
            return act("refund", amount=5)
        return act("charge", amount=1) if done == 1 else final("sorry")

    clerk = agent(world, plan, [refund, charging(world)])
    return crew([clerk], [task("pay back", clerk)])


def failing_native_tool(world: World) -> Crew:
    @tool("refund")
    def refund(amount: int) -> str:
        """Pay back."""
        world.effect(f"refund {amount}")
        raise ConnectionError("the bank is closed")

    def plan(done: int, told: str) -> Any:
        if done == 0:
            return calls(("refund", {"amount": 5}), ("charge", {"amount": 1}))
        return "sorry"

    clerk = agent(world, plan, [refund, charging(world)], is_native=True)
    return crew([clerk], [task("pay back", clerk)])


@scenario
def careful_tool(world: World) -> Scenario:
    """A tool that may not run twice: somebody looks whether it has charged."""

    def settle(asked: dict[str, Any]) -> Any:
        amount = json.loads(asked["arguments"])["amount"]
        happened = any(effect.name == f"charge {amount}" for effect in world.effects())
        return {"result": f"receipt {amount}"} if happened else "run again"

    clerk = agent(world, two_charges, [charging(world)])
    made = crew([clerk], [task("charge", clerk)])
    return Scenario(
        runner=DurableCrew(made, "crew", at_most_once={"charge"}),
        native=made,
        turns=[kickoff("kickoff")],
        settle=settle,
        once=["charge 1", "charge 2"],
    )


def retried_task(world: World) -> Crew:
    """The model fails after a tool has acted: the task is tried again, and natively the tool acts again."""

    def plan(done: int, told: str) -> Any:
        if done == 1 and world.is_first("clerk 1 for charge"):
            raise ConnectionError("overloaded")
        return act("charge", amount=1) if done == 0 else final("done")

    clerk = agent(world, plan, [charging(world)])
    return crew([clerk], [task("charge", clerk)])


def structured(world: World) -> Crew:
    def plan(done: int, told: str) -> Any:
        return act("charge", amount=1) if done == 0 else final('{"title": "sum", "total": 7}')

    clerk = agent(world, plan, [charging(world)])
    return crew([clerk], [task("report", clerk, output_pydantic=Report), task("more", clerk)])


def with_callbacks(world: World) -> Crew:
    """Inputs, callbacks, a tool with a limit."""

    @tool("charge", max_usage_count=2)
    def charge(amount: int) -> str:
        """Charge an amount."""
        world.effect(f"charge {amount}")
        return f"receipt {amount}"

    def plan(done: int, told: str) -> Any:
        return act("charge", amount=done) if done < 3 else final(f"{told.count('usage limit')} {topic(told)}")

    def topic(told: str) -> str:
        return "cats" if "about cats" in told else "nothing"

    def before(inputs: Any) -> Any:
        return {**inputs, "more": "and dogs"}

    def after(result: Any) -> Any:
        result.raw += "!"
        return result

    clerk = agent(world, plan, [charge])
    return Crew(
        agents=[clerk],
        tasks=[task("write about {topic} {more}", clerk)],
        before_kickoff_callbacks=[before],
        after_kickoff_callbacks=[after],
        verbose=False,
    )


of_crew(one_model_call, verbs=("kickoff", "kickoff_async", "akickoff"))
of_crew(two_react_tasks, verbs=("kickoff", "kickoff_async", "akickoff"))
of_crew(three_parallel_calls)
of_crew(calls_of_one_id)
of_crew(hierarchical)
of_crew(guarded)
of_crew(parallel_tasks)
of_crew(failing_tool)
of_crew(failing_native_tool)
of_crew(retried_task, native=False)
of_crew(structured)
of_crew(with_callbacks, inputs={"topic": "cats"})
