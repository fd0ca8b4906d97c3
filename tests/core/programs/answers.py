"""answers.py RUN_ID ANSWER ["before commit"]: answers a waiting run as soon as the test says go."""

import json
import sys

from effects import die, effect, gate, say

import durable_agents
from durable_agents._core.store import runs as rows

durable_agents.launch(poll=3600)
run = durable_agents.runs.get(sys.argv[1])
if sys.argv[3:]:
    reopen = rows.reopen

    def torn(*given):
        reopen(*given)
        die()

    rows.reopen = torn
say("ready")
gate("go")
try:
    run.answer(json.loads(sys.argv[2]))
except durable_agents.DurableError as error:
    say(type(error).__name__)
else:
    effect("answer")
    say("accepted")
