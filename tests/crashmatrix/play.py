"""A scenario in one process: what is said to it, what it answers, and what is left of its runs."""

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import durable_agents
from durable_agents._core import engine, journal
from durable_agents._core.pause import OUTCOME
from durable_agents._core.rebuild import rebuild
from durable_agents._core.record import ANSWER, FLUSH, MARK, RETRY
from durable_agents._core.store import Store, runs
from durable_agents.errors import AlreadyAnswered, NotWaiting

from . import hooks
from .api import Answer, Retry, Scenario, Step, Turn
from .boundaries import stable
from .world import World

_LOOK_SECONDS = 0.02


class Play:
    """A scenario in this process."""

    def __init__(self, scenario: Scenario, world: World, native: bool = False) -> None:
        self._scenario, self._world, self._native = scenario, world, native
        self._app = scenario.native if native else scenario.runner
        self.may_fail, self.once = scenario.may_fail, list(scenario.once)
        self.replays, self.ordered = scenario.replays, scenario.ordered
        self.attaches = [getattr(turn, "attaches", True) for turn in scenario.turns]
        self.settles = scenario.settle is not None
        self.names_question = [not isinstance(turn, Answer) for turn in scenario.turns]

    def turns(self, first: int, is_enough: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Take the turns from this one on, until it is enough; number → what came of it."""
        steps = list(enumerate(self._scenario.turns))[first:]
        if self._scenario.is_async:
            return asyncio.run(self._aturns(steps, is_enough))
        found = {}
        for number, step in steps:
            found[str(number)] = {**self._said(step), **self.at_rest(number)}
            if is_enough():
                break
        return found

    async def _aturns(self, steps: list[tuple[int, Step]], is_enough: Callable[[], bool]) -> dict[str, Any]:
        found = {}
        for number, step in steps:
            said = await self._asaid(step)
            found[str(number)] = {**said, **await asyncio.to_thread(self.at_rest, number)}
            if is_enough():
                break
        return found

    def _said(self, step: Step) -> dict[str, Any]:
        try:
            if isinstance(step, Answer | Retry) and not self._native:
                return self._continued(step)
            return {"returned": shown(self._say(step))}
        except Exception as error:
            return {"returned": _raised(error)}

    async def _asaid(self, step: Step) -> dict[str, Any]:
        try:
            if isinstance(step, Answer | Retry) and not self._native:
                return await asyncio.to_thread(self._continued, step)
            said = self._say(step)
            return {"returned": shown(await said if inspect.isawaitable(said) else said)}
        except Exception as error:
            return {"returned": _raised(error)}

    def _say(self, step: Step) -> Any | Awaitable[Any]:
        if self._native and step.native is not None:
            return step.native(self._app)
        if isinstance(step, Answer | Retry):
            return None  # a scenario that does not say how this is natively done
        return step.call(self._app) if self._native else step.call(self._app, run_id=step.run_id)

    def _continued(self, step: Answer | Retry) -> dict[str, Any]:
        """What natively is returned when the run is over; the methods themselves return nothing."""
        run = durable_agents.runs.get(step.run_id)
        if isinstance(step, Answer):
            run.answer(step.value, step.pick(run.questions) if step.pick else None)
        else:
            self._world.mend()
            run.resume()
        self.rest()
        return {"returned": shown(run.result())} if run.status == "succeeded" else {}

    def rest(self) -> None:
        """Wait until no run is queued or running. A child that waits too long is ended from outside."""
        while durable_agents.runs.list(status=("queued", "running")) or self._settles():
            time.sleep(_LOOK_SECONDS)

    def _settles(self) -> bool:
        """Whether there was a question about a tool that was cut off; it is answered now."""
        if self._scenario.settle is None:
            return False
        asked = [
            (run, question, about)
            for run in durable_agents.runs.list(status="waiting")
            for question, about in run.questions.items()
            if question.startswith(OUTCOME)
        ]
        for run, question, about in asked:
            with suppress(AlreadyAnswered, NotWaiting):  # by another process, a moment ago
                run.answer(self._scenario.settle(about), question)
        return bool(asked)

    def go_on(self) -> dict[str, Any]:
        """After the end of another process: wait for its runs, then go on with what the user had not yet said.

        What was recorded by the end (`at_kill`) is told by the records: each names its worker, and none is ours but
        those of runs we went on with. To read them in time would be a race with our own worker.
        """
        self.rest()
        at_kill = self._inherited()
        done = self._landed(at_kill)
        turns = {}
        if done:
            turns[str(done - 1)] = {**self.at_rest(done - 1), **self._attached(done - 1)}
        turns |= self.turns(done)
        return {"at_kill": at_kill, "worker": engine.current().worker.id, "turns": turns, **self.left()}

    def _inherited(self) -> dict[str, Any]:
        """The records of other workers: run → records. Breaks when a chain does not hold."""
        running = engine.current()
        return {
            run.id: [
                record for record in _chain(running.store, run.id) if record["worker"] != running.worker.id
            ]
            for run in durable_agents.runs.list(limit=1000)
        }

    def _landed(self, at_kill: dict[str, Any]) -> int:
        """How many turns the database had heard of when the process was killed."""
        said: Counter[tuple[str, str]] = Counter()
        for number, step in enumerate(self._scenario.turns):
            if isinstance(step, Turn):
                heard = step.run_id in at_kill
            else:
                kind = RETRY if isinstance(step, Retry) else ANSWER
                said[step.run_id, kind] += 1
                given = [record for record in at_kill.get(step.run_id, []) if record["kind"] == kind]
                heard = len(given) >= said[step.run_id, kind]
            if not heard:
                return number
        return len(self._scenario.turns)

    def _attached(self, number: int) -> dict[str, Any]:
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

    def replayed(self) -> dict[str, Any]:
        """What becomes of each run that is over when it is driven over its records, and how many of them that took."""
        served = hooks.note_served()
        running, found, recorded = engine.current(), {}, 0
        for run in durable_agents.runs.list(status=("succeeded", "failed"), limit=1000):
            recorded += len(run.steps())
            try:
                found[run.id] = shown(rebuild(running, engine.RUNNERS[run.runner], run._row()))
            except Exception as error:
                found[run.id] = _raised(error)
        return {"outcomes": found, "served": len(served), "recorded": recorded}

    def left(self) -> dict[str, Any]:
        """Everything at the end: the runs with their records, whose chains are checked, and the state."""
        store = engine.current().store
        found = {
            run.id: {**_run(run), "records": _chain(store, run.id)}
            for run in durable_agents.runs.list(limit=1000)
        }
        return {"runs": found, "state": self.state()}


def _run(run: durable_agents.Run) -> dict[str, Any]:
    """How a run stands."""
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
    return {"id": run.id, "status": status, "outcome": outcome, "usage": shown(run.usage)}


def _chain(store: Store, run_id: str) -> list[dict[str, Any]]:
    """The records of a run, in short."""
    found = journal.load(run_id, runs.records(store, run_id))
    for record in found:
        record.value()  # checks the payload against the record
    return [
        {
            "path": record.path,
            "kind": record.kind,
            "status": record.status,
            "worker": record.body["worker"],
            "at": record.body["at"],
            "taken_back": record.value()["taken_back"] if record.kind == RETRY else [],
        }
        for record in found
        if record.kind not in (FLUSH, MARK)
    ]


def shown(value: Any) -> str:
    """A value as text that two runs of one agent share."""
    return stable(repr(value))


def _raised(error: BaseException) -> str:
    return stable(f"raises {type(error).__name__}: {error}")
