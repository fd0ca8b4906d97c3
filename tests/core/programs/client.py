"""client.py RUN_ID CURSOR: print the events of a run behind the cursor, each as `[cursor, data]`."""

import json
import sys
import time

from effects import say

import durable_agents
from durable_agents.errors import RunNotFound

durable_agents.launch(poll=3600)
run_id, after = sys.argv[1], int(sys.argv[2])
while True:
    try:
        run = durable_agents.runs.get(run_id)
        break
    except RunNotFound:
        time.sleep(0.01)
for event in run.stream(after=after):
    say(json.dumps([event.cursor, event.data]))
