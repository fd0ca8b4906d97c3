"""ending.py RUNNER: a process whose main thread ends while a queued run is being driven."""

import sys
import time

from agents import RUNNERS
from effects import LEDGER, say

import durable_agents

durable_agents.launch()
RUNNERS[sys.argv[1]].start(run_id="r")
while not LEDGER.exists() or len(LEDGER.read_text().splitlines()) < 2:
    time.sleep(0.005)
say("main ends")
