"""Kill a process with SIGKILL at every boundary of an agent's run, and prove that the run ends as if nothing had been.

A *scenario* is an unchanged agent in its durable runner, with models that decide from their input and tools that act on
a `World`. It runs once uncrashed, which gives its boundaries: just before and after each effect, just after each
record, the run's row, an answer, a pause, before and after the end. Then, for each boundary, a new process with a
database of its own is killed there, another one only launches the library, and what comes of the run is compared.

    python -m crashmatrix --all
    python -m crashmatrix --scenario chain --db sqlite --point 17 --mode strict

Scenarios live in `integrations/<framework>/scenarios`; `api.py` is what they are written with.
"""

from .api import Answer, Resume, Scenario, Turn, scenario
from .world import World

__all__ = ["Answer", "Resume", "Scenario", "Turn", "World", "scenario"]
