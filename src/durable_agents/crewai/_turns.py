"""The order in which the methods of one flow end: that of their records, in the live run and in every replay.

CrewAI decides by it what runs next: which `and_` is complete, which `or_` has fired, which racing method has won.
A method that has ended waits for its turn; while it has it, its changes go into the state, it is persisted, and what it
triggers begins. Only then comes the next.
"""

import asyncio
import threading
from collections.abc import Iterable

_TICKS = 3  # turns of the event loop in which everything that a method triggers has begun
_STUCK_SECONDS = 0.05
_IDLE_ROUNDS = 5


class Turns:
    """The turns of the methods of one flow, on one event loop.

    Args:
        recorded: the numbers of the records of methods that ended before this execution.
    """

    def __init__(self, recorded: Iterable[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._expected = set(recorded)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._held: int | None = None
        self._cooling = False
        self.running = 0

    @property
    def recording(self) -> threading.Lock:
        """Held while a record is written and its number expected: no later one may overtake it."""
        return self._lock

    def expect(self, number: int) -> None:
        """A method's record was written; to be called under `recording`."""
        self._expected.add(number)

    @property
    def is_idle(self) -> bool:
        """Whether no method runs, or has ended and waits for its turn."""
        return not self.running and not self._waiting and self._held is None and not self._cooling

    async def take(self, number: int) -> None:
        """Wait for the turn of the method with this record."""
        turn = self._waiting[number] = self._loop.create_future()
        self.running -= 1
        try:
            self._advance()
            while not turn.done():
                await asyncio.wait({turn}, timeout=_STUCK_SECONDS)
                if not turn.done():
                    self._skip_the_missing()
        except asyncio.CancelledError:
            self._waiting.pop(number, None)
            if self._held == number:
                self.give(number)
            raise
        finally:
            self.running += 1

    def give(self, number: int | None) -> None:
        """The method is done with its turn, or will not take it any more."""
        if number is None:
            return
        with self._lock:
            self._expected.discard(number)
        if self._held == number:
            self._held, self._cooling = None, True
            self._tick(_TICKS)

    def _tick(self, left: int) -> None:
        if left:
            self._loop.call_soon(self._tick, left - 1)
            return
        self._cooling = False
        self._advance()

    def _advance(self) -> None:
        if self._held is not None or self._cooling or not self._waiting:
            return
        first = min(self._waiting)
        with self._lock:
            if min(self._expected, default=first) < first:
                return
        self._held = first
        self._waiting.pop(first).set_result(None)

    async def outlast(self) -> None:
        """For a method that runs: wait until the others beside it have come to their end, and what those trigger."""
        self.running -= 1
        try:
            idle = 0
            while idle < _IDLE_ROUNDS:
                await asyncio.sleep(0 if self.is_idle else 0.005)
                idle = idle + 1 if self.is_idle else 0
        finally:
            self.running += 1

    def _skip_the_missing(self) -> None:
        """Nothing runs, so nobody is left to take the turns before: those methods lost a race, and were cancelled."""
        if self.running or self._held is not None or self._cooling or not self._waiting:
            return
        first = min(self._waiting)
        with self._lock:
            self._expected = {number for number in self._expected if number >= first}
        self._advance()
