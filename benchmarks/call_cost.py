"""What a model or tool call of an agent costs: alone, kept natively, with DBOS's integration, and durably.

    python benchmarks/call_cost.py FRAMEWORK [--quick]     langgraph, openai_agents, adk, strands or crewai

The agent is the one of the shared contract: its model answers at once and calls a tool again and again. A *call* is a
model call or a tool call of it, whether or not a variant records it. What a run costs however short it is, is told
apart by runs of two lengths: each figure is the difference of the two, per call.

All variants run in one process, interleaved round by round, since a shared machine is never quiet. The figures are of
the best run of each length; beside them the median, as a sign of how quiet it was. CPU is that of the whole process
with all its threads; PostgreSQL's server is another one. Garbage is collected between the runs, not in them.
"""

import argparse
import gc
import importlib
import logging
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import floor  # noqa: E402 - after the path
from fresh import databases  # noqa: E402
from variant import Setting, Variant, one_loop  # noqa: E402

import durable_agents  # noqa: E402
from durable_agents._core import engine  # noqa: E402

FRAMEWORKS = {
    "langgraph": "langgraph", "openai_agents": "openai-agents", "adk": "google-adk", "strands": "strands-agents",
    "crewai": "crewai",
}  # fmt: skip
"""Our name → the distribution's."""
AWAITED = ("openai_agents", "adk")
"""Where all variants are called by the verb that is awaited, on one event loop: the other starts one for each run."""
SHORT, LONG = 1, 9
"""Tool calls of a run; each comes after a model call. Ten model calls are what some frameworks allow."""
CALLS = 2 * (LONG - SHORT)
"""Calls that a long run has more than a short one."""
RUNS = 4
"""Of each length, in a round."""


def text_of(length: int) -> str:
    """What the agent is told, to use its tool so often."""
    return " and ".join(map(str, range(1, length + 1)))


class Measured:
    """The times of one variant: wall and CPU in seconds, of every run."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.times: dict[int, list[tuple[float, float]]] = {SHORT: [], LONG: []}
        self.steps: float | None = None

    def warm_up(self) -> None:
        """Run it as it will be measured; the durable steps per call are counted here."""
        with self.variant.around():
            runs = [self.variant.run(text_of(length)) for length in (SHORT, LONG)]
            if count := self.variant.steps:
                self.steps = (count(runs[1]) - count(runs[0])) / CALLS

    def round(self) -> None:
        with self.variant.around():
            self.variant.run(text_of(SHORT))  # what is opened at the first use
            for _ in range(RUNS):
                for length, times in self.times.items():
                    times.append(self._time(text_of(length)))

    def _time(self, text: str) -> tuple[float, float]:
        gc.collect()
        gc.disable()
        try:
            wall, cpu = time.perf_counter(), time.process_time()
            self.variant.run(text)
            return time.perf_counter() - wall, time.process_time() - cpu
        finally:
            gc.enable()

    def per_call(self, which: int, of: Any = min) -> float:
        """Milliseconds of wall time (0) or CPU (1) per call."""
        long, short = (of([run[which] for run in self.times[length]]) for length in (LONG, SHORT))
        return float(long - short) / CALLS * 1000


def framework_of(name: str) -> Any:
    """How the framework's agents are made and called: what the integration's contract test says."""
    sys.path.insert(0, str(ROOT / "integrations" / name))
    contract, module = importlib.import_module("contract"), importlib.import_module("tests.test_contract")
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    adopted = [cls for cls in classes if issubclass(cls, contract.Contract) and cls is not contract.Contract]
    return adopted[0].framework


@contextmanager
def launched(url: str) -> Iterator[None]:
    durable_agents.launch(url, poll=3600)
    try:
        yield
    finally:
        durable_agents.shutdown()


def steps(run: str) -> int:
    return len(durable_agents.runs.get(run).steps())


def durable(setting: Setting, is_awaited: bool) -> list[Variant]:
    """Ours, on each database."""
    framework = setting.framework
    runner = framework.durable(setting.agent(), "measured")

    def call(text: str, run: str) -> None:
        if is_awaited:
            setting.awaited(framework.acall(runner, text, run))
        else:
            framework.call(runner, text, run)

    return [
        Variant(f"durable, {database}", call, lambda url=url: launched(url), steps)  # type: ignore[misc]
        for database, url in setting.urls.items()
    ]


def record_size(variant: Variant) -> int:
    """Bytes of a stored record, on the average of a run."""
    with variant.around():
        run = variant.run(text_of(LONG))
        sql = "SELECT avg(length(output)) FROM operation_outputs WHERE workflow_uuid = ?"
        return int(engine.current().store.query(sql, (run,))[0][0])


def floors(setting: Setting, size: int) -> list[Variant]:
    """As many rows as a run has calls, each inserted and committed."""
    found = []
    for database, url in setting.urls.items():
        insert = floor.inserter(url, size, setting.closing)
        name = f"bare INSERT + commit, {database}"
        found.append(Variant(name, lambda text, run, insert=insert: insert(run, text.count(" and ") * 2 + 3)))  # type: ignore[misc]
    return found


def report(name: str, measured: list[Measured], rounds: int, size: int) -> None:
    packages = [FRAMEWORKS[name], "durable-runners", "dbos", "dbos-openai-agents", "dbos-google-adk"]
    print(", ".join(f"{package} {found}" for package in packages if (found := installed(package))))
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}; {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; {rounds} rounds of {RUNS} runs with {2 * SHORT + 1} calls and {RUNS} with "
        f"{2 * LONG + 1}; rows and records of {size} bytes on the average"
    )
    print("ms per model or tool call, of the best run (median)\n")
    print(
        f"{'':44}{'wall':>15}{'CPU':>15}{'CPU above alone':>17}{'steps per call':>16}{'above, per step':>17}"
    )
    alone = measured[0].per_call(1), measured[0].per_call(1, statistics.median)
    for each in measured:
        best, median = each.per_call(1), each.per_call(1, statistics.median)
        line = f"{each.variant.name:44}{each.per_call(0):7.2f} ({each.per_call(0, statistics.median):5.2f})"
        line += f"{best:7.2f} ({median:5.2f})"
        if not each.variant.name.startswith("bare"):
            line += f"{best - alone[0]:9.2f} ({median - alone[1]:5.2f})"
        if each.steps:
            line += f"{each.steps:16.2f}{(best - alone[0]) / each.steps:17.2f}"
        print(line)


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args()
    rounds = 3 if chosen.quick else 11
    logging.disable(logging.WARNING)

    def charge(amount: int) -> str:
        """Charge an amount."""
        return f"receipt {amount}"

    with databases() as urls, tempfile.TemporaryDirectory() as folder, ExitStack() as closing:
        framework = framework_of(chosen.framework)
        setting = Setting(framework, charge, urls, Path(folder), one_loop(closing), closing)
        alone, *natives = importlib.import_module(f"peers_{chosen.framework}").peers(setting)
        ours = durable(setting, chosen.framework in AWAITED)
        size = record_size(ours[0])
        measured = [Measured(each) for each in (alone, *ours, *natives, *floors(setting, size))]
        for each in measured:
            each.warm_up()
        for _ in range(rounds):
            for each in measured:
                each.round()
    report(chosen.framework, measured, rounds, size)


if __name__ == "__main__":
    main()
