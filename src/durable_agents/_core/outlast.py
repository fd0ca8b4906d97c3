"""Bodies that come to their end, and are recorded, although whoever awaits them is cancelled.

A caller that gives up, as at a timeout or when its client has gone, only detaches: any worker goes on with the run.
What it was in the middle of must not be cut off then, or it would run again at once. So a body runs in a task of its
own. A cancellation from inside of the run, such as a framework's timeout for a tool, is passed on as natively. So is
any of a model call: that has no effect but its answer, and who has gone wants no more of it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from .context import lend

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")
P = TypeVar("P")


async def outlast(run: "Execution", body: Callable[[], Awaitable[T]]) -> T:
    """Await a body of the run in the caller's scope; it goes on when the caller of the run is cancelled."""
    task = asyncio.create_task(lend(_held(run, body)))
    while True:
        try:
            result, error = await asyncio.shield(task)
            break
        except asyncio.CancelledError as cancelled:
            if task.cancelled():
                task.result()  # raises it as the body did, with its message
            if task.done():
                raise
            if run.is_left:
                run.keep(task)
                raise
            task.cancel(*cancelled.args)
    if error is not None:
        raise error
    return result  # type: ignore[return-value]


async def _held(
    run: "Execution", body: Callable[[], Awaitable[T]]
) -> tuple[T, None] | tuple[None, BaseException]:
    """The result, or the error: as a value, since a task that Ctrl-C ends would end the event loop first."""
    run.enter(True, force=True)
    try:
        return await body(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error
    finally:
        run.leave(True)


class Pump(Generic[P]):
    """`outlast` for a body that yields: one task runs it, part by part as they are asked for.

    Args:
        advance: gives the next part; None at the end.
        close: ends the body early.
    """

    def __init__(
        self,
        run: "Execution",
        advance: Callable[[], Awaitable[P | None]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._run, self._advance, self._close = run, advance, close
        self._asked = asyncio.Event()
        self._given: asyncio.Future[P | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._goes_on = self._closing = False

    async def next(self) -> P | None:
        """The next part; None at the end."""
        if self._task is None:
            self._task = asyncio.create_task(lend(self._serve()))
        given: asyncio.Future[P | None] = asyncio.get_running_loop().create_future()
        self._given = given
        self._asked.set()
        while True:
            try:
                await asyncio.wait((given, self._task), return_when=asyncio.FIRST_COMPLETED)
                break
            except asyncio.CancelledError as cancelled:
                if given.done() or self._run.is_left:
                    raise
                self._task.cancel(*cancelled.args)
        if not given.done():  # the event loop ends, and has cancelled all its tasks
            raise asyncio.CancelledError
        return given.result()

    async def end(self) -> None:
        """Nobody asks for more: the body is closed, or goes on to its end when the caller of the run was cancelled."""
        if self._task is None:
            await self._close()
        elif not self._task.done():
            self._goes_on, self._closing = self._run.is_left, not self._run.is_left
            self._asked.set()
            if self._goes_on:
                self._run.keep(self._task)
            else:
                await asyncio.wait([self._task])

    async def _serve(self) -> None:
        self._run.enter(True, force=True)
        try:
            while await self._is_asked():
                try:
                    part = await self._advance()
                except BaseException as error:
                    self._answer(error=error)
                    return
                self._answer(part)
                if part is None:
                    return
        finally:
            try:
                await self._close()
            finally:
                self._run.leave(True)

    async def _is_asked(self) -> bool:
        if not self._goes_on:
            await self._asked.wait()
            self._asked.clear()
        return not self._closing

    def _answer(self, part: P | None = None, error: BaseException | None = None) -> None:
        if self._given is None or self._given.done() or self._goes_on:  # nobody listens
            return
        if error is None:
            self._given.set_result(part)
        else:
            self._given.set_exception(error)
