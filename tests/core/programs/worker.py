"""worker.py: a worker that drives whatever is queued, and does what the lines of its stdin say, until that ends.

A line is a JSON list [VERB, RUNNER, RUN_ID, THREAD, INPUT], done in a thread of its own; with a sixth item, at this
moment of the monotonic clock, which all processes share. `call` calls the runner's verb, `start` queues the run,
`answer` gives INPUT as the native answer, `answer later` as `Run.answer` does.

HEARTBEAT, GRACE, LEASE, POLL: the liveness. CLOCK: a file that holds how many seconds the wall clock of this process
is off; it may change at any time. GATED: an effect that waits for the test to open the gate. HEALED: what failed works.
DIES: see `mortal.py`.
"""

import ctypes
import json
import logging
import os
import subprocess
import sys
import threading
import time

import clock
import mortal
from effects import effect, gate, say

import durable_agents
from durable_agents._core import RUN, Request, Statement, engine, step
from plain import Plain

logging.basicConfig(level=logging.INFO, stream=sys.stdout)


def steps(input):
    """`count` steps of `seconds` each, of none with BRISK. An effect is the run and the number of the step."""
    run = RUN.get().id
    for number in range(input["count"]):

        def moment(number=number):
            effect(f"{run}/{number}")
            time.sleep(0 if "BRISK" in os.environ else input["seconds"])

        step("tool", "moment", moment)
    return run


def turns(input):
    """Three steps that say when they begin and end; asks a person before the last one when it is told to."""
    run = RUN.get().id
    for number in range(3):
        if number == 2 and input["asks"]:
            RUN.get().wait({"go on?": run})

        def turn(number=number):
            effect(f"begin {run} {number}")
            time.sleep(input["seconds"])
            effect(f"end {run} {number}")

        step("tool", "turn", turn)
    return run


def twice_asking(input):
    """Two questions, one after the other, and an effect for each answer."""
    first = RUN.get().wait({"one": 1})["one"]
    step("tool", "first", lambda: effect(f"first {first}"))
    second = RUN.get().wait({"two": 2})["two"]
    step("tool", "second", lambda: effect(f"second {second}"))
    return [first, second]


def asking(input):
    """A question between two tools."""
    step("tool", "draft", lambda: effect("draft"))
    answer = RUN.get().wait({"approve": {"amount": 3}})["approve"]
    return [answer, step("tool", "send", lambda: gated("send"))]


def failing(input):
    """A tool that fails unless it is healed."""

    def tool():
        if "HEALED" not in os.environ:
            effect("fails")
            raise RuntimeError("not yet")
        return gated("works")

    return step("tool", "tool", tool)


def gated(name):
    effect(name)
    if os.environ.get("GATED") == name:
        gate("open")
    return name


def holding(input):
    """C code that holds the interpreter for `input` seconds: no other thread of this process runs meanwhile."""

    def hold():
        effect("holds")
        ctypes.PyDLL(None).sleep(input)  # unlike others, calls of a PyDLL keep the interpreter's lock
        effect("held")

    return step("tool", "hold", hold)


def parent(input):
    """A tool that leaves two children behind, each for `input` seconds."""

    def fork():
        effect("parent")
        if os.environ.get("BRISK"):
            return
        if (child := os.fork()) == 0:
            time.sleep(input)
            os._exit(0)
        other = subprocess.Popen(["sleep", str(input)], close_fds=False)
        for pid in (child, other.pid):
            effect("child", pid=pid)
        time.sleep(input)

    step("tool", "parent", fork)


class Stateful(Plain):
    """A runner with a table of its own, as an integration has for its framework's state."""

    def attach(self, store):
        store.execute("CREATE TABLE IF NOT EXISTS notes (run TEXT, worker TEXT, note TEXT)")


def noting(input):
    """Steps that each write state: one that returns at once, one that waits for the test, one more."""
    journal = RUN.get().journal

    def note(name):
        worker = engine.current().worker.id
        journal.stage([Statement("INSERT INTO notes VALUES (?, ?, ?)", ((journal.run_id, worker, name),))])

    def held():
        if not input:
            note("before held")
        effect("held")
        gate("open", f"open {os.getpid()}")
        note("after held")

    step("tool", "first", lambda: (note("first"), effect("first"))[1])
    step("tool", "held", held)
    step("tool", "last", lambda: (note("last"), effect("last"))[1])
    return "noted"


RUNNERS = {
    body.__name__: Plain(body) for body in (steps, turns, asking, twice_asking, failing, holding, parent)
}
RUNNERS["noting"] = Stateful(noting, "noting")


def obey(verb, name, run_id, thread, input, moment=0.0):
    runner, came = RUNNERS[name], "done"
    time.sleep(max(0.0, moment - time.monotonic()))
    try:
        if verb == "call":
            came = f"gives {json.dumps(runner.run(input, run_id=run_id, thread=thread))}"
        elif verb == "start":
            runner.start(input, run_id=run_id, thread=thread)
        elif verb == "answer":
            request = Request(None, thread, answers={None: input})
            came = f"gives {json.dumps(runner.call(request, run_id))}"
        elif verb == "answer later":
            durable_agents.runs.get(run_id).answer(input)
    except Exception as error:
        came = f"raises {type(error).__name__}"
    say(f"{run_id} {came}")


def options():
    names = ("heartbeat", "grace", "lease", "poll")
    return {name: float(os.environ[name.upper()]) for name in names if name.upper() in os.environ}


if __name__ == "__main__":
    if "CLOCK" in os.environ:
        clock.shift(os.environ["CLOCK"])
    if "DIES" in os.environ:
        mortal.die(*os.environ["DIES"].split(":"))
    durable_agents.launch(**options())
    say("works")
    for line in sys.stdin:
        threading.Thread(target=obey, args=json.loads(line), daemon=True).start()
    durable_agents.shutdown()
