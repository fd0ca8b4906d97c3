"""ending.py: a process whose main thread has ended while a run is still being driven."""

from agents import RUNNERS

import durable_agents

durable_agents.launch()
RUNNERS["gated"].start(run_id="gated")
while durable_agents.runs.get("gated").status != "running" or not durable_agents.runs.get("gated").steps():
    pass
print("main ends", flush=True)
