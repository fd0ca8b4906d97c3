"""agents.py COMMAND ...: a script with several runners.

work                     only launch, and go on until stdin ends (LEASE: the lease in seconds)
run RUNNER RUN_ID [IN]   call the runner's verb and print its result
start RUNNER RUN_ID [IN] queue a run and end
answer RUN_ID ANSWER     answer a waiting run
"""

import asyncio
import itertools
import json
import logging
import os
import sys
import time

from effects import effect, gate, say

import durable_agents
from durable_agents._core import RUN, astep, emit, engine, scope, step
from durable_agents.errors import RecordedError
from plain import Plain

logging.basicConfig(level=logging.INFO, stream=sys.stdout)


def order(input):
    """Three tools, one after the other."""
    return [step("tool", name, lambda name=name: effect(name)) for name in ("reserve", "charge", "mail")]


async def aorder(input):
    async def tool(name):
        return effect(name)

    return [await astep("tool", name, lambda name=name: tool(name)) for name in ("reserve", "charge", "mail")]


async def fan(input):
    """Three tools of one name at once, of which the first is the slowest."""

    async def lookup(city):
        await asyncio.sleep({"a": 0.3, "b": 0.15, "c": 0.0}[city])
        return effect(f"lookup-{city}", city.upper())

    found = await asyncio.gather(*(astep("tool", "lookup", lambda c=c: lookup(c), input=c) for c in "abc"))
    return [*found, await astep("tool", "mail", lambda: asyncio.to_thread(effect, "mail"))]


def gated(input):
    """A tool that waits for the test in the middle."""
    step("tool", "first", lambda: effect("first"))

    def held():
        effect("held")
        gate("open")
        return "through"

    return [step("tool", "held", held), step("tool", "last", lambda: effect("last"))]


def nested(input):
    """A node with tools inside, in a scope."""
    with scope("agent"):
        return step(
            "node",
            "outer",
            lambda: [step("tool", n, lambda n=n: effect(n)) for n in ("in-1", "in-2")],
            leaf=False,
        )


def retried(input):
    """A tool that the framework tries twice."""

    def charge(attempt):
        effect(f"charge-{attempt}")
        if attempt == 1:
            raise TimeoutError("the provider is slow")
        return attempt

    try:
        return step("tool", "charge", lambda: charge(1))
    except TimeoutError:
        return step("tool", "charge", lambda: charge(2), attempt=2)


def asking(input):
    """A question between two tools."""
    step("tool", "draft", lambda: effect("draft"))
    answers = RUN.get().wait({"approve": {"amount": 3}})
    return [answers["approve"], step("tool", "send", lambda: effect("send"))]


def remember(input):
    """A step whose effects always run again: it acts in memory only."""
    memory = []
    step("state", "handoff", lambda: (memory.append(effect("handoff")), None)[1], effect="rerun")
    step("tool", "charge", lambda: effect("charge"))
    return memory


def interrupted(input):
    """Ctrl-C, or a tool that ends the process, the first time."""
    step("tool", "first", lambda: effect("first"))

    def leave():
        effect("leave")
        if not os.path.exists("left"):
            open("left", "w").close()
            raise {"ctrl-c": KeyboardInterrupt, "exit": SystemExit}[input](3)
        return "stayed"

    return step("tool", "leave", leave)


def long(input):
    """Many small steps."""
    for number in range(input):
        step("tool", "part", lambda last=number == input - 1: (effect("last") if last else "") + "x" * 1000)
    return input


def busy(input):
    """C code that holds the interpreter for two seconds: no other thread of this process runs."""

    def hold():
        effect("busy")
        begun, many = time.perf_counter(), 2_000_000
        sum(itertools.repeat(1, many))
        sum(itertools.repeat(1, int(2.0 / (time.perf_counter() - begun) * many)))
        effect("still here")

    return step("tool", "busy", hold)


def slow(input):
    """Many steps of a moment each."""
    for number in range(60):
        step("tool", "moment", lambda number=number: (effect(f"moment-{number}"), time.sleep(0.05)))


def talking(input):
    """Says something between its steps and in them."""

    def talk(number):
        emit(f"word {number}")
        effect(f"talk-{number}")
        emit(f"words {number}")

    for number in range(40):
        emit(f"turn {number}")
        step("model", "talk", lambda number=number: talk(number))


def careful(input):
    """A charge that runs at most once, between two tools."""
    step("tool", "reserve", lambda: effect("reserve"))
    try:
        charged = step("tool", "charge", lambda: effect("charge"), input="3 EUR")
    except RecordedError as error:
        charged = error.message
    return [charged, step("tool", "mail", lambda: effect("mail"))]


ALL = (order, aorder, fan, gated, nested, retried, asking, remember, interrupted, long, busy, slow)
RUNNERS = {body.__name__: Plain(body) for body in ALL}
RUNNERS["talking"] = Plain(talking)
RUNNERS["careful"] = Plain(careful, at_most_once={"charge"})

if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "work":
        durable_agents.launch(lease=float(os.environ.get("LEASE", 30)))
        say("works")
        sys.stdin.read()
        durable_agents.shutdown()
    elif command == "answer":
        run_id, value = rest
        durable_agents.launch(poll=3600)
        durable_agents.runs.get(run_id).answer(json.loads(value))
    else:
        name, run_id, *given = rest
        runner, value = RUNNERS[name], json.loads(given[0]) if given else None
        if command == "start":
            engine.current().shun(run_id)  # for other processes
            runner.start(value, run_id=run_id)
        elif asyncio.iscoroutinefunction(runner.body):
            say(json.dumps(asyncio.run(runner.arun(value, run_id=run_id))))
        else:
            say(json.dumps(runner.run(value, run_id=run_id)))
        say("done")
