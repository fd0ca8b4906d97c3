"""Kill a process at every boundary of an agent's run, or freeze it, and prove that the run ends as if nothing had been.

A *scenario* is an unchanged agent in its durable runner, with models that decide from their input and tools that act on
a `World`. It runs once uncrashed, which gives its boundaries: just before and after each effect and each record, the
staging of state, the run's row, an answer, a pause, the end. Then, for each boundary, a new process with a database of
its own is killed or frozen there, another one goes on with its runs, and what comes of them is compared. How the other
one comes to it is told in `ways`: it starts afterwards, or it is alive all the time and finds out by itself.

    python -m crashmatrix --all
    python -m crashmatrix --scenario chain --db sqlite --point 17 --how takeover --mode strict

Scenarios live in `integrations/<framework>/scenarios`; `api.py` is what they are written with.
"""

from .api import Answer, Resume, Retry, Scenario, Turn, scenario
from .world import World

__all__ = ["Answer", "Resume", "Retry", "Scenario", "Turn", "World", "scenario"]
