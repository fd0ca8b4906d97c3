"""What the scripts `shop.py` and `support.py` share: an agent that was given no name."""

import sys

from effects import effect, say

import durable_agents
from durable_agents._core import engine, step


def agent_of(script):
    def agent(input):
        return step("tool", "answer", lambda: effect(f"{script} does the work of {input}"))

    return agent


def main(runner, script):
    """Queue four runs, and drive them until stdin ends; with an argument, only queue four more."""
    durable_agents.launch(poll=0.05)
    for number in range(4):
        run_id = "-".join([script, *sys.argv[1:], str(number)])
        if sys.argv[1:]:
            engine.current().shun(run_id)
        runner.start(script, run_id=run_id)
    say(runner.name)
    if not sys.argv[1:]:
        sys.stdin.read()
