"""Flows: both kinds of state, parallel methods, joins, routers, loops, races, nested crews and flows."""

import asyncio
import time
from typing import Any

from crewai.flow.flow import Flow, and_, listen, or_, router, start
from crewai.flow.persistence import persist
from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
from pydantic import BaseModel

from crashmatrix import Retry, Scenario, World, scenario
from durable_agents.crewai import DurableFlow

from .kit import Model, agent, charging, crew, final, kickoff, of_flow, task, two_charges


class Quiet(Flow[dict[str, Any]]):
    """Without the panels that tell of methods, and without memory: its vector database does not survive a fork."""

    suppress_flow_events: bool = True
    _skip_auto_memory: bool = True


@scenario
def one_call_flow(world: World) -> Scenario:
    model = Model(model="fake/m", world=world)

    class Story(Quiet):
        @start()
        def tell(self) -> str:
            self.state["told"] = model.call("a story")
            return self.state["told"]

    return of_flow(world, Story)


class Order(BaseModel):
    """State of a flow."""

    topic: str = ""
    log: list[str] = []
    rounds: int = 0
    receipts: dict[str, str] = {}


@scenario
def pydantic_state(world: World) -> Scenario:
    """A loop by a router, state in a model, methods that act themselves."""
    charge = charging(world)

    class Rounds(Flow[Order]):
        suppress_flow_events: bool = True
        _skip_auto_memory: bool = True

        @start()
        def plan(self) -> str:
            world.effect("plan")
            self.state.topic = "cats"
            return "planned"

        @router(or_(plan, "again"))
        def gate(self) -> str:
            world.effect(f"gate {self.state.rounds}")
            self.state.rounds += 1
            self.state.receipts[f"r{self.state.rounds}"] = charge.run(amount=self.state.rounds)
            return "again" if self.state.rounds < 3 else "enough"

        @listen("enough")
        def end(self) -> str:
            world.effect("end")
            self.state.log.append(f"ended after {self.state.rounds}")
            return f"{self.state.topic} {self.state.log} {self.state.receipts}"

    return of_flow(world, Rounds)


def _side_by_side(world: World) -> type[Flow[Any]]:
    charge = charging(world)
    clerk = agent(world, two_charges, [charge])

    class Sides(Quiet):
        @start()
        def plan(self) -> str:
            self.state["log"], self.state["sum"], self.state["by"] = ["plan"], 0, {}
            return "planned"

        @listen(plan)
        def left(self, plan: str) -> str:
            self.state["log"].append("left before")
            time.sleep(world.latency(0, 3))
            world.effect("left")
            self.state["log"].append("left")
            self.state["sum"] += 1
            self.state["by"]["left"] = plan
            return "L"

        @listen(plan)
        async def right(self) -> str:
            self.state["log"].append("right before")
            await asyncio.sleep(world.latency(1, 3))
            world.effect("right")
            self.state["sum"] += 2
            self.state["by"]["right"] = "R"
            return "R"

        @listen(plan)
        def middle(self) -> str:
            self.state["sum"] += 3
            return crew([clerk], [task("middle", clerk)]).kickoff().raw

        @listen(right)
        def after_right(self) -> str:
            world.effect("after right")
            self.state["by"]["after"] = sorted(self.state["by"])[-1]
            return "AR"

        @router(and_(left, after_right, middle))
        def gate(self) -> str:
            world.effect("gate")
            return "go"

        @listen("go")
        def end(self) -> Any:
            world.effect("end")
            return sorted(self.state["log"]), self.state["sum"], sorted(self.state["by"].items())

    return Sides


def _sorted_left(app: Any) -> Any:
    state = dict(app.state("r1"))
    return {**state, "log": sorted(state["log"]), "by": sorted(state["by"].items())}


@scenario
def parallel_listeners(world: World) -> Scenario:
    return of_flow(world, _side_by_side(world), show=_sorted_left)


@scenario
def async_parallel_listeners(world: World) -> Scenario:
    return of_flow(world, _side_by_side(world), kickoff("kickoff_async"), is_async=True, show=_sorted_left)


@scenario
def parallel_starts(world: World) -> Scenario:
    """Two start methods, and a listener that either of them triggers, once for each."""
    model = Model(model="fake/m", world=world)

    class Starts(Quiet):
        @start()
        def one(self) -> str:
            time.sleep(world.latency(0, 2))
            world.effect("one")
            return model.call("one")

        @start()
        def two(self) -> str:
            time.sleep(world.latency(1, 2))
            world.effect("two")
            return model.call("two")

        @listen(one)
        def after_one(self, said: str) -> str:
            world.effect(f"after {said}")
            self.state["one"] = said
            return said

        @listen(two)
        def after_two(self, said: str) -> str:
            world.effect(f"after {said}")
            self.state["two"] = said
            return said

        @listen(and_(after_one, after_two))
        def end(self) -> Any:
            world.effect("end")
            return self.state["one"], self.state["two"]

    return of_flow(world, Starts)


@scenario
def race(world: World) -> Scenario:
    """The first of two methods to end triggers the next; the other one is cancelled."""

    class Race(Quiet):
        @start()
        def begin(self) -> None:
            world.effect("begin")

        @listen(begin)
        async def slow(self) -> str:
            await asyncio.sleep(30)
            return "slow"

        @listen(begin)
        async def fast(self) -> str:
            await asyncio.sleep(0.01)
            world.effect("fast")
            return "fast"

        @listen(or_(slow, fast))
        def end(self, first: str) -> str:
            world.effect(f"end by {first}")
            self.state["first"] = first
            return first

    return of_flow(world, Race)


@scenario
def nested(world: World) -> Scenario:
    """A flow in a method, a crew in that flow, an agent on its own."""
    clerk = agent(world, two_charges, [charging(world)])
    alone = agent(world, lambda done, told: final("alone"), role="hermit")

    class Inner(Quiet):
        @start()
        def first(self) -> str:
            world.effect(f"inner first {self.state['n']}")
            self.state["of"] = "inner"
            return "i"

        @listen(first)
        def second(self, said: str) -> str:
            return said + crew([clerk], [task(f"inner {self.state['n']}", clerk)]).kickoff().raw

    class Outer(Quiet):
        @start()
        def call_flows(self) -> str:
            found = [Inner().kickoff({"n": n}) for n in range(2)]
            self.state["found"] = found
            return "".join(found)

        @listen(call_flows)
        async def call_agent(self) -> str:
            said = await alone.kickoff_async("hello")
            return said.raw

        @listen(call_agent)
        async def call_flow(self, said: str) -> str:
            return said + await Inner().kickoff_async({"n": 2})

    return of_flow(world, Outer)


@scenario
def gather_in_method(world: World) -> Scenario:
    model = Model(model="fake/m", world=world)

    async def late(rank: int) -> str:
        await asyncio.sleep(world.latency(rank, 3))
        return str(await model.acall(f"question {rank}"))

    class Gather(Quiet):
        @start()
        async def ask(self) -> list[str]:
            self.state["said"] = await asyncio.gather(*map(late, range(3)))
            return [*self.state["said"], model.call("and now")]

        @listen(ask)
        def end(self, said: list[str]) -> str:
            world.effect("end")
            return f"{len(said)} said"

    return of_flow(world, Gather, kickoff("kickoff_async"), is_async=True)


@scenario
def mended_method(world: World) -> Scenario:
    """A method fails, after another beside it has acted; its cause is mended, and the run goes on."""

    class Failing(Quiet):
        @start()
        def begin(self) -> str:
            world.effect("begin")
            self.state["log"] = ["begin"]
            return "b"

        @listen(begin)
        def broken(self) -> str:
            self.state["log"].append("broken")
            world.effect("broken")
            if not world.is_mended:
                raise ConnectionError("not yet")
            return "mended"

        @listen(broken)
        def end(self, said: str) -> str:
            world.effect("end")
            return f"{said} {self.state['log']}"

    return of_flow(world, Failing, kickoff("kickoff"), Retry("r1"), native=False, may_fail=True)


@scenario
def ordered_methods(world: World) -> Scenario:
    """Methods one after the other, with events and hooks as ever: the order is the native one."""

    class Row(Flow[dict[str, Any]]):
        _skip_auto_memory: bool = True

        @start()
        def a(self) -> str:
            world.effect("a")
            return "a"

        @router(a)
        def b(self, said: str) -> str:
            world.effect("b")
            self.state["said"] = said
            return "c or d"

        @listen("c or d")
        async def c(self) -> str:
            world.effect("c")
            return "c"

        @listen(c)
        def d(self) -> dict[str, Any]:
            world.effect("d")
            return {"id": self.state["id"], "said": self.state["said"]}

    return of_flow(world, Row, kickoff("kickoff", {"given": 1}), ordered=True)


@scenario
def persisted_thread(world: World) -> Scenario:
    """Two runs on one state, which CrewAI keeps in a file and loads at each kickoff."""

    @persist(SQLiteFlowPersistence(str(world._ledger.with_name("flows.sqlite"))))
    class Chat(Quiet):
        @start()
        def hear(self) -> None:
            world.effect(f"hear {self.state['said']}")
            self.state.setdefault("log", []).append(f"heard {self.state['said']}")

        @listen(hear)
        async def reply(self) -> list[str]:
            world.effect(f"reply to {self.state['said']}")
            self.state["log"].append(f"replied to {self.state['said']}")
            return list(self.state["log"])

    class Natively:
        def kickoff(self, inputs: Any) -> Any:
            return Chat().kickoff(inputs)

    return Scenario(
        runner=DurableFlow(Chat, "flow"),
        native=Natively(),
        turns=[kickoff("kickoff", {"id": "chat", "said": said}, run_id=said) for said in ("one", "two")],
    )
