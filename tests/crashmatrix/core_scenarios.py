"""Scenarios of the core alone: agents that are Python functions."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from crashmatrix import Answer, Retry, Scenario, Turn, World, scenario
from durable_agents import Run, Usage, runs
from durable_agents._core import RUN, astep, emit, step
from plain import Plain, live


class Tools:
    """Steps that act on the world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def model(self, prompt: str) -> str:
        def answer() -> str:
            self.world.effect(f"model {prompt}")
            return f"answer to {prompt}"

        return step(
            "model", "m", answer, input=prompt, usage=lambda text: Usage("fake", len(prompt), len(text))
        )

    def charge(self, amount: int) -> str:
        def call() -> str:
            self.world.effect(f"charge {amount}")
            return f"receipt {amount}"

        return step("tool", "charge", call, input=str(amount))

    async def acharge(self, amount: int, pause: float = 0) -> str:
        async def call() -> str:
            await asyncio.sleep(pause)
            self.world.effect(f"charge {amount}")
            await asyncio.sleep(pause)
            return f"receipt {amount}"

        return await astep("tool", "charge", call, input=str(amount))

    def flaky(self) -> str:
        def call() -> str:
            self.world.effect("flaky")
            if self.world.is_first("flaky"):
                raise ValueError("overloaded")
            return "fine"

        try:
            return step("tool", "flaky", call)
        except ValueError:
            return step("tool", "flaky", call, attempt=2)


def _once(body: Any, is_async: bool = False, may_fail: bool = False) -> Scenario:
    """One run of a body, that is natively the function itself."""
    return Scenario(
        runner=Plain(body),
        turns=[
            Turn(
                "r1",
                lambda app, run_id: app.arun(3, run_id=run_id) if is_async else app.run(3, run_id=run_id),
                native=lambda body: body(3),
            )
        ],
        is_async=is_async,
        native=body,
        may_fail=may_fail,
    )


@scenario
def sequence(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> list[str]:
        return [tools.model("plan"), tools.charge(n), tools.model("report")]

    return _once(body)


@scenario
def async_sequence(world: World) -> Scenario:
    tools = Tools(world)

    async def body(n: int) -> list[str]:
        return [await tools.acharge(1), await tools.acharge(n), await tools.acharge(2)]

    return _once(body, is_async=True)


@scenario
def caller_gives_up(world: World) -> Scenario:
    """The caller is cancelled while tools are under way: they come to their end, and the run goes on without it."""
    tools = Tools(world)
    begun = threading.Event()

    def mail() -> str:
        world.effect("mail")
        begun.set()
        time.sleep(0.02)
        return "sent"

    async def slow() -> str:
        world.effect("slow")
        await asyncio.sleep(0.02)
        return "done"

    async def body(n: int) -> list[str]:
        first = await tools.acharge(n)
        mailing = astep("tool", "mail", lambda: asyncio.to_thread(mail), key="mail")
        both = await asyncio.gather(mailing, astep("tool", "slow", slow, key="slow"))
        return [first, *both, await tools.acharge(4)]

    async def give_up(app: Plain, run_id: str) -> Any:
        calling = asyncio.create_task(app.arun(3, run_id=run_id))
        while not (begun.is_set() or calling.done()):
            await asyncio.sleep(0.002)
        calling.cancel()
        await asyncio.wait((calling,))
        return await asyncio.to_thread(runs.get(run_id).result, 30)

    return Scenario(
        runner=Plain(body),
        turns=[Turn("r1", give_up, native=lambda body: body(3))],
        is_async=True,
        native=body,
    )


@scenario
def nested(world: World) -> Scenario:
    tools = Tools(world)

    def node() -> list[str]:
        world.effect("node begins")
        return [tools.charge(1), tools.charge(2)]

    def body(n: int) -> list[str]:
        return [*step("node", "a", node, leaf=False), *step("node", "b", node, leaf=False), tools.charge(n)]

    return _once(body)


@scenario
def threads(world: World) -> Scenario:
    tools = Tools(world)

    def late(amount: int) -> str:
        time.sleep(world.latency(amount, 3))
        return tools.charge(amount)

    def body(n: int) -> list[str]:
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(copy_context().run, late, amount) for amount in range(3)]
            return [*(future.result() for future in futures), tools.model("report")]

    return _once(body)


@scenario
def gather(world: World) -> Scenario:
    tools = Tools(world)

    async def late(amount: int) -> str:
        await asyncio.sleep(world.latency(amount, 3))
        return await tools.acharge(amount, pause=0.002)

    async def body(n: int) -> list[str]:
        receipts = await asyncio.gather(*[late(amount) for amount in range(n)])
        return [*receipts, await tools.acharge(n)]

    return _once(body, is_async=True)


@scenario
def retry(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> list[str]:
        return [tools.charge(n), tools.flaky(), tools.model("report")]

    return _once(body)


@scenario
def failing(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> None:
        tools.charge(n)
        raise LookupError("no such order")

    return _once(body, may_fail=True)


@scenario
def two_questions(world: World) -> Scenario:
    tools = Tools(world)

    def ask(question: str) -> Any:
        run = RUN.get()
        assert run is not None
        return run.wait({question: f"{question}?"})[question]

    def body(n: int) -> list[Any]:
        return [tools.charge(1), ask("approve"), tools.charge(2), ask("ship"), tools.charge(n)]

    return Scenario(
        runner=Plain(body),
        turns=[
            Turn("r1", lambda app, run_id: app.run(3, run_id=run_id), attaches=False),
            Answer("r1", "yes"),
            Answer("r1", "no"),
        ],
    )


@scenario
def two_runs_on_a_thread(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> list[str]:
        return [tools.charge(n), tools.model(f"report {n}")]

    return Scenario(
        runner=Plain(body),
        turns=[
            Turn("r1", lambda app, run_id: app.run(1, run_id=run_id, thread="t")),
            Turn("r2", lambda app, run_id: app.run(2, run_id=run_id, thread="t")),
        ],
    )


@scenario
def queued(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> list[str]:
        return [tools.charge(n), tools.model("report")]

    def wait(run: Run) -> Any:
        return run.result(timeout=20)

    return Scenario(
        runner=Plain(body), turns=[Turn("r1", lambda app, run_id: wait(app.start(3, run_id=run_id)))]
    )


@scenario
def async_queued(world: World) -> Scenario:
    tools = Tools(world)

    async def body(n: int) -> list[str]:
        return await asyncio.gather(*[tools.acharge(amount) for amount in range(n)])

    async def wait(run: Run) -> Any:
        return await run.aresult(timeout=20)

    return Scenario(
        runner=Plain(body),
        turns=[Turn("r1", lambda app, run_id: wait(app.start(3, run_id=run_id)))],
        is_async=True,
    )


@scenario
def slow_siblings(world: World) -> Scenario:
    """Three threads whose effects are unrecorded for a while: where strict and hard kills differ."""
    tools = Tools(world)

    def slow(amount: int) -> str:
        def call() -> str:
            world.effect(f"slow {amount}")
            time.sleep(0.03)
            return f"slow receipt {amount}"

        return step("tool", "slow", call, input=str(amount))

    def body(n: int) -> list[str]:
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(copy_context().run, slow, amount) for amount in range(3)]
            return [*(future.result() for future in futures), tools.charge(n)]

    return _once(body)


@scenario
def async_slow_siblings(world: World) -> Scenario:
    """The same on one event loop, which a strict kill must leave to the siblings."""

    async def slow(amount: int) -> str:
        async def call() -> str:
            world.effect(f"slow {amount}")
            await asyncio.sleep(0.03)
            return f"slow receipt {amount}"

        return await astep("tool", "slow", call, input=str(amount))

    async def body(n: int) -> list[str]:
        return await asyncio.gather(*[slow(amount) for amount in range(n)])

    return _once(body, is_async=True)


@scenario
def runs_inside_a_run(world: World) -> Scenario:
    """A runner called in a run is a part of it; one started there is a run of its own, and started once."""
    tools = Tools(world)

    def order(n: int) -> list[str]:
        return [tools.charge(n), tools.model(f"report {n}")]

    called, started = Plain(order, "called"), Plain(order, "started")

    def body(n: int) -> list[Any]:
        first = called.run(1)
        child = started.start(2).id
        return [first, called.run(n), child, tools.charge(4)]

    return Scenario(
        runner=Plain(body, "runs_inside_a_run"),
        turns=[Turn("r1", lambda app, run_id: app.run(3, run_id=run_id))],
    )


@scenario
def fork(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> list[str]:
        return [tools.charge(n), tools.model("plan"), tools.charge(1)]

    def forked(app: Any, run_id: str) -> Any:
        return runs.get("r1").fork("model:m", run_id=run_id).result(timeout=20)

    return Scenario(
        runner=Plain(body, "fork"),
        turns=[Turn("r1", lambda app, run_id: app.run(3, run_id=run_id)), Turn("r2", forked)],
    )


@scenario
def events(world: World) -> Scenario:
    """What readers get is the same, wherever the run was cut off."""
    tools = Tools(world)

    def talk(n: int) -> str:
        def call() -> str:
            emit(f"word {n}")
            world.effect(f"talk {n}")
            emit(f"words {n}")
            return f"said {n}"

        return step("model", "talk", call, input=str(n))

    def body(n: int) -> list[str]:
        said = []
        for turn in range(n):
            emit(f"turn {turn}")
            said.append(talk(turn))
        emit("pay")
        return [*said, tools.charge(n)]

    return Scenario(
        runner=Plain(body, "events"),
        turns=[Turn("r1", lambda app, run_id: app.run(3, run_id=run_id))],
        show=lambda app: [(event.cursor, event.data) for event in runs.get("r1").stream()],
    )


@scenario
def live_arguments(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> list[str]:
        return [tools.charge(n), str(live("customer")), tools.charge(1)]

    runner = Plain(body, "live_arguments", restore=lambda run: {"customer": "ann"})
    call = Turn("r1", lambda app, run_id: app.run(3, run_id=run_id, live={"customer": "ann"}))
    return Scenario(runner=runner, turns=[call])


@scenario
def retried_run(world: World) -> Scenario:
    """A run that fails, and goes on once the cause is mended."""
    tools = Tools(world)

    def fragile() -> str:
        world.effect("fragile")
        if not world.is_mended:
            raise ConnectionError("down")
        return "fine"

    def body(n: int) -> list[str]:
        return [tools.charge(n), tools.flaky(), step("tool", "fragile", fragile), tools.charge(1)]

    return Scenario(
        runner=Plain(body, "retried_run"),
        turns=[Turn("r1", lambda app, run_id: app.run(3, run_id=run_id), attaches=False), Retry("r1")],
        may_fail=True,
    )


def _look_up(world: World) -> Any:
    """What somebody says of a charge that was cut off, who has looked into the ledger."""

    def settle(asked: dict[str, Any]) -> Any:
        amount = asked["arguments"]
        happened = any(effect.name == f"charge {amount}" for effect in world.effects())
        return {"result": f"receipt {amount}"} if happened else "run again"

    return settle


@scenario
def at_most_once(world: World) -> Scenario:
    tools = Tools(world)

    def body(n: int) -> list[str]:
        return [tools.charge(n), tools.model("plan"), tools.charge(1)]

    return Scenario(
        runner=Plain(body, "at_most_once", at_most_once={"charge"}),
        turns=[
            Turn(
                "r1",
                lambda app, run_id: app.run(3, run_id=run_id),
                native=lambda body: body(3),
                attaches=False,
            )
        ],
        native=body,
        settle=_look_up(world),
        once=["charge 3", "charge 1"],
    )


@scenario
def async_at_most_once(world: World) -> Scenario:
    tools = Tools(world)

    async def body(n: int) -> list[str]:
        return [*await asyncio.gather(tools.acharge(1), tools.acharge(2)), await tools.acharge(n)]

    return Scenario(
        runner=Plain(body, "async_at_most_once", at_most_once={"charge"}),
        turns=[Turn("r1", lambda app, run_id: app.arun(3, run_id=run_id), attaches=False)],
        is_async=True,
        settle=_look_up(world),
        once=["charge 3", "charge 2", "charge 1"],
    )
