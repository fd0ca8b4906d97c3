"""A caller's way into a run: start it or attach to it, wait for its turn, drive it or hear how it has come to rest."""

import asyncio
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from . import engine
from .admission import NotNow
from .answer import answer
from .errors import CodeChanged, DatabaseUnavailable, RunNotFound, RunOver, RunReleased
from .execution import Execution
from .opening import Request, open_run
from .resume import resume_here
from .store import runs
from .threads import detached

if TYPE_CHECKING:
    from .runner import Runner


_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Rest:
    """A run that is over or waits; `state` is its status."""

    id: str
    state: str


class Entry:
    """The caller's way into one run, tried until it is ours to drive or has come to rest."""

    def __init__(self, runner: "Runner", request: Request, run_id: str) -> None:
        self._runner, self._request, self._id = runner, request, run_id
        self.engine = engine.current()
        self._opened = self._reserved = False
        self.loop: asyncio.AbstractEventLoop | None = None

    def _open(self) -> tuple[bool, str | None]:
        """Insert the run, or give the waiting one its answer; a token when this caller drives it."""
        request, store, worker = self._request, self.engine.store, self.engine.worker.id
        if request.answers is None:
            return open_run(store, self._runner.name, request, self._id, worker, code=self._runner.code)
        return False, answer(store, self._runner, self._id, request.answers, worker)

    def attempt(self) -> Execution | Rest | None:
        """An execution to drive, a run that is over or waits, or None: not yet."""
        running = self.engine
        if running.is_closed:
            raise RunReleased(
                f"run {self._id!r} goes on elsewhere: this process called shutdown() while it waited"
            )
        if not self._opened:
            try:
                new, token = self._open()
            except Exception as error:
                if not running.store.may_heal(error):
                    raise
                raise DatabaseUnavailable(
                    f"run {self._id!r} could not be started: {running.store.shown} cannot be used ({error}). "
                    f"Call again with the same run_id: if it was started after all, the call attaches to it"
                ) from error
            self._opened = True
            if token is not None:
                try:
                    with suppress(NotNow):
                        return running.take(self._runner, self._id, token, self._request.live)
                except CodeChanged as error:
                    if self._request.answers is None:
                        raise
                    raise CodeChanged(f"{error}. The answer is recorded, and is used then") from None
            if new:
                self._reserved = True
                running.await_turn(self)
        row = runs.get(running.store, self._id)
        if row is None:
            raise RunNotFound(f"run {self._id!r} is gone: it was deleted while this call waited for it")
        if row.state == "failed" and self._request.live_names and (token := self._brought()) is not None:
            with suppress(NotNow):
                return running.take(self._runner, self._id, token, self._request.live)
        if row.over or row.state == "waiting":
            running.turn_over(self)
            return Rest(self._id, row.state)
        if row.status == "ENQUEUED":
            claimed = runs.claim(
                running.store, running.worker.id, {self._runner.name: None}, 1, only=self._id
            )
            if claimed:
                self._reserved = False
                running.turn_over(self)
                with suppress(NotNow):
                    return running.take(self._runner, self._id, claimed[0][2], self._request.live)
        return None

    def _brought(self) -> str | None:
        """A token when the run failed because no worker had what this caller brings."""
        with suppress(RunOver):  # its thread has gone on without it
            return resume_here(self.engine.store, self._id, self.engine.worker.id)
        return None

    def enter(self) -> Execution | Rest:
        """An execution to drive, or a run that has come to rest; waits until it is one of these."""
        try:
            while (found := self._try()) is None:
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self.give_up()
            raise
        return found

    async def aenter(self) -> Execution | Rest:
        """`enter` for event loops."""
        self.loop = asyncio.get_running_loop()
        while True:
            # The attempt goes on when its caller is cancelled: then what it took must be given back.
            attempt = self.engine.settlers.submit(self._try)
            try:
                found = await detached(attempt)
                if found is not None:
                    return found
                await asyncio.sleep(_POLL_SECONDS)
            except GeneratorExit:  # collected, in a thread that may hold any of our locks
                self.engine.defer(partial(attempt.add_done_callback, self.hand_back))
                raise
            except BaseException:
                attempt.add_done_callback(self.hand_back)
                raise

    def _try(self) -> Execution | Rest | None:
        """`attempt`; a caller whose run has been opened waits for as long as the database is unwell."""
        try:
            return self.attempt()
        except Exception as error:
            if not self._opened or not self.engine.store.may_heal(error):
                raise
            return None

    @property
    def is_orphaned(self) -> bool:
        return self.loop is not None and self.loop.is_closed()

    def give_up(self) -> None:
        """The caller is gone before its turn came: any worker may take the run."""
        self.engine.turn_over(self)
        if not self._reserved or self.engine.is_closed:
            return
        try:
            runs.unreserve(self.engine.store, self._id, self.engine.worker.id)
        except Exception as error:
            if not self.engine.store.may_heal(error):
                raise
            self.engine.defer(self.give_up)
        self.engine.wake()

    def hand_back(self, attempt: Future[Execution | Rest | None]) -> None:
        """The caller was cancelled during an attempt: release what it took."""
        if attempt.exception() is None and isinstance(found := attempt.result(), Execution):
            found.release()
        self.give_up()
