"""What a model or tool call of an agent costs: alone, kept natively, with DBOS's integration, and durably.

    python benchmarks/call_cost.py FRAMEWORK [--quick]     langgraph, openai_agents, adk, strands or crewai

The agent is the one of the shared contract: its model answers at once and calls a tool again and again. A *call* is a
model call or a tool call of it, whether or not a variant records it. What a run costs however short it is, is told
apart by runs of two lengths: each figure is the difference of the two, per call.

All variants run in one process, interleaved round by round, since a shared machine is never quiet. Each run is cut
where the tool is called, and the best time of each piece counts: pieces of a few milliseconds find a quiet moment where
no whole run does. Beside it stands the median of whole runs, as a sign of how quiet it was. CPU is that of the process
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
from itertools import pairwise
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


Moment = tuple[float, float]
"""Wall and CPU, in seconds."""

MOMENTS: list[Moment] = []
"""When the tool was called, in the run that is measured."""


def now() -> Moment:
    return time.perf_counter(), time.process_time()


def charge(amount: int) -> str:
    """Charge an amount."""
    MOMENTS.append(now())
    return f"receipt {amount}"


def text_of(length: int) -> str:
    """What the agent is told, to use its tool so often."""
    return " and ".join(map(str, range(1, length + 1)))


class Measured:
    """The times of one variant: the pieces of each run, as wall time and CPU."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.runs: dict[int, list[list[Moment]]] = {SHORT: [], LONG: []}
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
                for length, runs in self.runs.items():
                    runs.append(self._pieces(text_of(length)))

    def _pieces(self, text: str) -> list[Moment]:
        gc.collect()
        gc.disable()
        MOMENTS.clear()
        try:
            begun = now()
            self.variant.run(text)
            moments = [begun, *MOMENTS, now()]
        finally:
            gc.enable()
        return [(later[0] - sooner[0], later[1] - sooner[1]) for sooner, later in pairwise(moments)]

    def best(self, which: int) -> float:
        """Milliseconds of wall time (0) or CPU (1) per call, of the best pieces."""
        long, short = (
            sum(min(piece[which] for piece in pieces) for pieces in zip(*self.runs[length], strict=True))
            for length in (LONG, SHORT)
        )
        return (long - short) / CALLS * 1000

    def median(self, which: int) -> float:
        """The same of the median run."""
        long, short = (
            statistics.median(sum(piece[which] for piece in pieces) for pieces in self.runs[length])
            for length in (LONG, SHORT)
        )
        return (long - short) / CALLS * 1000


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
        # Each on a thread of its own: else the runs of an agent that is a conversation would grow longer and longer.
        if is_awaited:
            setting.awaited(framework.acall(runner, text, run, run))
        else:
            framework.call(runner, text, run, run)

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
    print("ms per model or tool call: best pieces (median run)\n")
    print(
        f"{'':46}{'wall':>15}{'CPU':>15}{'CPU above alone':>17}{'steps per call':>16}{'above, per step':>17}"
    )
    alone = measured[0]
    for each in measured:
        line = f"{each.variant.name:46}{each.best(0):7.2f} ({each.median(0):5.2f})"
        line += f"{each.best(1):7.2f} ({each.median(1):5.2f})"
        above = each.best(1) - alone.best(1)
        if not each.variant.name.startswith("bare"):
            line += f"{above:9.2f} ({each.median(1) - alone.median(1):5.2f})"
        if each.steps:
            line += f"{each.steps:16.2f}{above / each.steps:17.2f}"
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
