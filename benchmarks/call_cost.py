"""What a model or tool call of an agent costs, durably and in the framework alone.

    python benchmarks/call_cost.py FRAMEWORK [--quick]     langgraph, openai_agents, adk, strands or crewai

The agent is the one of the shared contract: its model answers at once and calls a tool again and again. All variants
run in one process, interleaved round by round, since a shared machine is never quiet; of each the best round counts. A
step is a model call or a tool call. What a run costs however short it is, is told apart by runs of two lengths. CPU is
that of the whole process; PostgreSQL's server is another one.
"""

import argparse
import importlib
import logging
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fresh import databases  # noqa: E402

import durable_agents  # noqa: E402 - after the path

SHORT, LONG = 1, 9
"""Tool calls of a run; each comes after a model call. Ten calls are what some frameworks allow."""

Times = dict[tuple[str, int], list[tuple[float, float]]]
"""Variant and length of the run → seconds of wall time and of CPU, round by round."""


def framework_of(name: str) -> Any:
    """How the framework's agents are made and called: what the integration's contract test says."""
    sys.path.insert(0, str(ROOT / "integrations" / name))
    contract, module = importlib.import_module("contract"), importlib.import_module("tests.test_contract")
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    adopted = [cls for cls in classes if issubclass(cls, contract.Contract) and cls is not contract.Contract]
    return adopted[0].framework


def measure(times: Times, name: str, call: Callable[[str], Any]) -> None:
    for length in (SHORT, LONG):
        text = " and ".join(map(str, range(1, length + 1)))
        wall, cpu = time.perf_counter(), time.process_time()
        call(text)
        times[name, length].append((time.perf_counter() - wall, time.process_time() - cpu))


def per_step(times: Times, name: str) -> tuple[float, float]:
    """Milliseconds of wall time and of CPU."""
    wall, cpu = (
        (min(each[which] for each in times[name, LONG]) - min(each[which] for each in times[name, SHORT]))
        / (2 * (LONG - SHORT))
        * 1000
        for which in (0, 1)
    )
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("framework", choices=["langgraph", "openai_agents", "adk", "strands", "crewai"])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)
    framework = framework_of(chosen.framework)

    def charge(amount: int) -> str:
        """Charge an amount."""
        return f"receipt {amount}"

    native, runner = framework.agent(charge), framework.durable(framework.agent(charge), "measured")
    times: Times = defaultdict(list)
    with databases() as urls:
        for _ in range(3 if chosen.quick else 9):
            measure(times, "alone", lambda text: framework.native(native, text))
            for database, url in urls.items():
                durable_agents.launch(url, poll=3600)
                measure(times, database, lambda text: framework.call(runner, text, uuid.uuid4().hex))
                durable_agents.shutdown()
    print(
        f"{chosen.framework:14} {'wall ms':>8} {'CPU ms':>8} {'CPU above alone':>16}   per model or tool call"
    )
    alone = per_step(times, "alone")
    for name in ("alone", *urls):
        wall, cpu = per_step(times, name)
        print(f"{name:14} {wall:8.2f} {cpu:8.2f} {cpu - alone[1]:16.2f}")


if __name__ == "__main__":
    main()
