"""What the children do: live through a scenario (and die in it), recover it, or run the agent natively.

Each leaves a JSON file with what it saw, which the harness compares.
"""

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Awaitable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import durable_agents
from durable_agents._core import engine, journal
from durable_agents._core.record import ANSWER, FLUSH
from durable_agents._core.store import open_store, runs

from . import hooks
from .api import Answer, Build, Scenario, Step, Turn
from .boundaries import Boundaries, Point, stable
from .databases import Database
from .world import World

LAUNCH: Any = {"heartbeat": 0.02, "grace": 0.04, "poll": 0.01, "lease": 20.0}
"""A death is noticed in a tenth of a second; the lease is for a machine under load, where nobody dies."""
_LOOK_SECONDS = 0.005


def live(build: Build, folder: Path, database: Database, url: str, kill: Point | None, strict: bool) -> None:
    """Go through the whole scenario in a fresh database, to the end or to the kill."""
    imported = set(sys.modules)
    hooks.skip_migration()
    database.clear(url)
    boundaries = Boundaries(folder / "death", kill, strict)
    hooks.install(boundaries)
    play = Play(build(World(folder, boundaries)))
    durable_agents.launch(url, **LAUNCH)
    turns = play.turns(0)
    points = [asdict(point) for point in boundaries.passed]
    left = play.left()
    lived = {"turns": turns, "points": points, "may_fail": play.may_fail, **left}
    _save(folder / "lived", {**lived, "imported": sorted(set(sys.modules) - imported)})


def recover(build: Build, folder: Path, database: Database, url: str) -> None:
    """Launch after a kill, wait until the runs have come to rest, and go on with what the user had not yet said."""
    hooks.skip_migration()
    database.settle(url)
    at_kill = _records(url)
    play = Play(build(World(folder, recovers=True)))
    durable_agents.launch(url, **LAUNCH)
    play.rest()
    done = play.landed(at_kill)
    turns = {}
    if done:
        turns[str(done - 1)] = {**play.at_rest(done - 1), **play.attached(done - 1)}
    turns |= play.turns(done)
    _save(folder / "recovered", {"at_kill": at_kill, "turns": turns, **play.left()})


def native(build: Build, folder: Path) -> None:
    """Give the unwrapped agent the same turns."""
    scenario = build(World(folder))
    if scenario.native is None:
        _save(folder / "native", {"turns": {}})
        return
    play = Play(scenario, native=True)
    _save(folder / "native", {"turns": play.turns(0), "state": play.state()})


class Play:
    """A scenario in this process."""

    def __init__(self, scenario: Scenario, native: bool = False) -> None:
        self._scenario, self._native = scenario, native
        self._app = scenario.native if native else scenario.runner
        self.may_fail = scenario.may_fail

    def turns(self, first: int) -> dict[str, Any]:
        """Take the turns from this one on; number → what came of it."""
        steps = list(enumerate(self._scenario.turns))[first:]
        if self._scenario.is_async:
            return asyncio.run(self._aturns(steps))
        return {str(number): {**self._said(step), **self.at_rest(number)} for number, step in steps}

    async def _aturns(self, steps: list[tuple[int, Step]]) -> dict[str, Any]:
        found = {}
        for number, step in steps:
            said = await self._asaid(step)
            found[str(number)] = {**said, **await asyncio.to_thread(self.at_rest, number)}
        return found

    def _said(self, step: Step) -> dict[str, Any]:
        try:
            if isinstance(step, Answer) and not self._native:
                return self._answer(step)
            return {"returned": shown(self._say(step))}
        except Exception as error:
            return {"returned": _raised(error)}

    async def _asaid(self, step: Step) -> dict[str, Any]:
        try:
            if isinstance(step, Answer) and not self._native:
                return await asyncio.to_thread(self._answer, step)
            said = self._say(step)
            return {"returned": shown(await said if inspect.isawaitable(said) else said)}
        except Exception as error:
            return {"returned": _raised(error)}

    def _say(self, step: Step) -> Any | Awaitable[Any]:
        if self._native and step.native is not None:
            return step.native(self._app)
        if isinstance(step, Answer):
            return None  # a scenario that does not say how this is natively answered
        return step.call(self._app) if self._native else step.call(self._app, run_id=step.run_id)

    def _answer(self, step: Answer) -> dict[str, Any]:
        """What natively is returned when the run is over; an answer's own method returns nothing."""
        run = durable_agents.runs.get(step.run_id)
        run.answer(step.value, step.pick(run.questions) if step.pick else None)
        self.rest()
        return {"returned": shown(run.result())} if run.status == "succeeded" else {}

    def rest(self) -> None:
        """Wait until no run is queued or running. A child that waits too long is ended from outside."""
        while durable_agents.runs.list(status=("queued", "running")):
            time.sleep(_LOOK_SECONDS)

    def landed(self, at_kill: dict[str, Any]) -> int:
        """How many turns the database had heard of when the process was killed."""
        answers: dict[str, int] = {}
        for number, step in enumerate(self._scenario.turns):
            if isinstance(step, Turn):
                heard = step.run_id in at_kill
            else:
                answers[step.run_id] = answers.get(step.run_id, 0) + 1
                given = [record for record in at_kill.get(step.run_id, []) if record["kind"] == ANSWER]
                heard = len(given) >= answers[step.run_id]
            if not heard:
                return number
        return len(self._scenario.turns)

    def attached(self, number: int) -> dict[str, Any]:
        """What the verb returns that was cut off, sent again by a client who did not hear its end."""
        step = self._scenario.turns[number]
        if not (isinstance(step, Turn) and step.attaches):
            return {}
        return asyncio.run(self._asaid(step)) if self._scenario.is_async else self._said(step)

    def at_rest(self, number: int) -> dict[str, Any]:
        """The run of a turn, now that nobody drives it."""
        if self._native:
            return {}
        self.rest()
        run = durable_agents.runs.get(self._scenario.turns[number].run_id)
        return {"run": _run(run)}

    def state(self) -> str:
        return shown(self._scenario.show(self._app)) if self._scenario.show else ""

    def left(self) -> dict[str, Any]:
        """Everything at the end: the runs with their records, whose chains are checked, and the state."""
        store = engine.current().store
        found = {
            run.id: {**_run(run), "records": _chain(store, run.id)}
            for run in durable_agents.runs.list(limit=1000)
        }
        return {"runs": found, "state": self.state()}


def _run(run: durable_agents.Run) -> dict[str, Any]:
    status = run.status
    if status == "succeeded":
        try:
            outcome = shown(run.result())
        except durable_agents.DurableError as error:
            outcome = _raised(error)
    elif status == "failed":
        outcome = _raised(run.error or RuntimeError("without an error"))
    else:
        outcome = shown(sorted(map(repr, run.questions.values())))
    return {"status": status, "outcome": outcome, "usage": shown(run.usage)}


def _records(url: str) -> dict[str, Any]:
    """The records a killed process has left: run → records. Breaks when a chain does not hold."""
    store = open_store(url)
    try:
        return {row.id: _chain(store, row.id) for row in runs.find(store, limit=1000)}
    finally:
        store.close()


def _chain(store: Any, run_id: str) -> list[dict[str, Any]]:
    found = journal.load(run_id, runs.records(store, run_id))
    for record in found:
        record.value()  # checks the payload against the record
    return [
        {"path": record.path, "kind": record.kind, "status": record.status}
        for record in found
        if record.kind != FLUSH
    ]


def shown(value: Any) -> str:
    """A value as text that two runs of one agent share."""
    return stable(repr(value))


def _raised(error: BaseException) -> str:
    return stable(f"raises {type(error).__name__}: {error}")


def _save(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data))
