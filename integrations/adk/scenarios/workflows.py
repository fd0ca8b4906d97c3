"""Workflows: functions, tools and agents as nodes, fan-out and join, loops, nodes that run nodes."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.tools.function_tool import FunctionTool
from google.adk.workflow import JoinNode, Workflow, node

from crashmatrix import Scenario, World, scenario

from .kit import agent, charging, first, send, told


def acting(world: World, name: str, rank: tuple[int, int] = (0, 1)) -> Any:
    async def act(node_input: Any) -> str:
        await asyncio.sleep(world.latency(*rank))
        world.effect(name)
        return f"{name} after {node_input}"

    act.__name__ = name
    return act


def start(node_input: str) -> str:
    return f"<{node_input}>"


@scenario
def fan_out_and_join(world: World) -> Scenario:
    ways = tuple(acting(world, name, (n, 3)) for n, name in enumerate(("a", "b", "c")))
    end = acting(world, "end")
    joined = JoinNode(name="joined")

    def collect(node_input: Any) -> str:
        world.effect("collect")
        return str(sorted(node_input.items()))

    return told(Workflow(name="flow", edges=[("START", start, ways, joined, collect, end)]), send("go"))


@scenario
def routed_loop(world: World) -> Scenario:
    """A node is entered again until another one lets it pass."""

    def build(ctx: Context) -> int:
        tries = ctx.state.get("tries", 0) + 1
        world.effect(f"build {tries}")
        ctx.state["tries"] = tries
        return tries

    def check(node_input: int) -> Event:
        world.effect(f"check {node_input}")
        return Event(output=node_input, route="good" if node_input == 3 else "bad")

    def ship(node_input: int) -> str:
        world.effect("ship")
        return f"shipped {node_input}"

    edges = [("START", build, check), (check, {"bad": build, "good": ship})]
    return told(Workflow(name="flow", edges=edges), send("go"))


@scenario
def racing_branches(world: World) -> Scenario:
    """Two branches enter one node without a join: in the order in which they arrive."""
    left, right = acting(world, "left", (0, 2)), acting(world, "right", (1, 2))

    def pack(node_input: str, ctx: Context) -> None:
        world.effect(f"pack {node_input}")
        ctx.state[f"packed {node_input}"] = True

    def label(ctx: Context) -> None:
        world.effect("label")

    return told(Workflow(name="flow", edges=[("START", (left, right), pack)]), send("go"))


@scenario
def agents_and_tools_as_nodes(world: World) -> Scenario:
    def prepare(node_input: str) -> dict[str, Any]:
        world.effect("prepare")
        return {"amount": 5}

    tool = FunctionTool(charging(world))
    writer = agent(world, "writer", first(("charge", {"amount": 2})), [charging(world)], output_key="letter")
    return told(Workflow(name="flow", edges=[("START", prepare, tool, writer)]), send("go"))


@scenario
def node_that_runs_nodes(world: World) -> Scenario:
    """A function that runs other nodes, some at once, and acts itself before and after."""
    step, other = (
        node(acting(world, "step")),
        agent(world, "helper", first(("charge", {"amount": 1})), [charging(world)]),
    )

    @node(rerun_on_resume=True)
    async def conductor(ctx: Context, node_input: str) -> str:
        world.effect("conduct")
        one = await ctx.run_node(step, node_input="one")
        two, three = await asyncio.gather(
            ctx.run_node(step, node_input="two", use_sub_branch=True),
            ctx.run_node(other, node_input="three", use_sub_branch=True),
        )
        world.effect("conducted")
        return f"{one}, {two}, {three}"

    return told(Workflow(name="flow", edges=[("START", conductor, acting(world, "end"))]), send("go"))


@scenario
def node_that_yields(world: World) -> Scenario:
    async def several(node_input: str, ctx: Context) -> AsyncGenerator[Any, None]:
        world.effect("first")
        ctx.state["at"] = 1
        yield Event(message="working")
        ctx.state["at"] = 2
        world.effect("second")
        yield Event(message="still working")
        ctx.state["at"] = 3
        yield f"all of {node_input}"

    def alike(node_input: str) -> Any:
        world.effect("third")
        yield Event(message="nearly")
        world.effect("fourth")
        yield f"then {node_input}"

    return told(Workflow(name="flow", edges=[("START", several, alike)]), send("go"))


@scenario
def parallel_worker(world: World) -> Scenario:
    """One node for each item of a list, all at once."""

    def items(node_input: str) -> list[int]:
        return [0, 1, 2]

    @node(parallel_worker=True)
    async def work(node_input: int) -> int:
        await asyncio.sleep(world.latency(node_input, 3))
        world.effect(f"work {node_input}")
        return node_input * 10

    return told(Workflow(name="flow", edges=[("START", items, work, acting(world, "end"))]), send("go"))
