"""forking.py [only launch]: a run whose tool forks a child that stays."""

import os
import sys
import time
from pathlib import Path

from effects import effect, say

import durable_agents
from durable_agents._core import step
from plain import Plain


def body(input):
    def tool():
        ledger = Path(os.environ["LEDGER"])
        if ledger.exists() and "child" in ledger.read_text():
            return "second worker"
        if os.fork() == 0:
            effect("child")
            time.sleep(60)
            os._exit(0)
        time.sleep(60)

    return step("tool", "forks", tool)


runner = Plain(body, "forking")
if sys.argv[1:]:
    durable_agents.launch()
    say("works")
    sys.stdin.read()
else:
    runner.run(run_id="f")
