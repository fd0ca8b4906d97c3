"""The events of a run for the consumer of a verb, also when another worker takes the run over meanwhile."""

import asyncio
import functools
from collections.abc import AsyncGenerator

from google.adk.events.event import Event

from .._core import Execution, Request, engine
from .._core.errors import RunReleased
from ._runner import AppRunner


async def followed(runner: AppRunner, request: Request, run_id: str) -> AsyncGenerator[Event, None]:
    """Drive the run and yield its events; a run that is taken over is waited for, or taken again.

    The consumer gets each event of its own segment once. When the run has gone on to a later segment by then, that one
    is its own consumer's.
    """
    running, had = engine.current(), _Had()
    while True:
        events = runner.astream_call(request, run_id, functools.partial(_noted, runner, had), runner.outcome)
        try:
            ended: list[Event] | None = None
            is_asked = not had.is_lost
            async for event in events:
                if not is_asked:
                    ended, is_asked = await asyncio.to_thread(runner.segment, run_id, had.segment), True
                if ended is None and had.is_news(event):
                    yield event
            for event in ended or ():
                if had.is_news(event):
                    yield event
            return
        except RunReleased:
            if running.is_closed:
                raise
            had.lose()
        finally:
            await events.aclose()


async def _noted(runner: AppRunner, had: "_Had", execution: Execution) -> AsyncGenerator[Event, None]:
    """The events of an execution, whose segment is noted the first time."""
    if not had.is_lost:
        had.segment = runner.segment_number(execution)
    events = runner.events(execution)
    try:
        async for event in events:
            yield event
    finally:
        await events.aclose()


class _Had:
    """What the consumer has had of a segment's events, which begin anew when the run is lost."""

    def __init__(self) -> None:
        self.segment = 0
        self.is_lost = False
        self._whole: set[str] = set()
        self._begun: set[str] = set()
        self._begun_before: set[str] = set()

    def is_news(self, event: Event) -> bool:
        if event.partial:  # has the id of the event that it is a part of
            self._begun.add(event.id)
            return event.id not in self._begun_before
        if self.is_lost and event.id in self._whole:
            return False
        self._begun.add(event.id)
        self._whole.add(event.id)
        return True

    def lose(self) -> None:
        self.is_lost = True
        self._begun_before |= self._begun
