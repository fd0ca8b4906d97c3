"""Steps whose body yields, such as a model that streams: parts are handed out as they come, and recorded as one step.

A consumer may never ask for what comes after the last part, or do long work before it asks: ADK runs the tools while
the model's generator stands still. So from a part on that the integration names, the last one or the first that is
whole, parts are held back until the body has ended and the step is recorded.

The scope of the step is entered for one part at a time: it must not leak to the consumer, who runs between two of them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

from . import effects
from .context import Scope, inside
from .outlast import Pump
from .record import Draft
from .step import Call

P = TypeVar("P")


def parts(
    call: Call,
    body: Iterator[P],
    take: Callable[[P], bool],
    result: Callable[[], Any],
    *,
    may_be_left: bool = False,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Generator[P, None, None]:
    """Run an iterator as the body of `call`, which has no record yet, and hand out its parts.

    Args:
        take: keeps a part, before the consumer can write into it; whether it and all that follow are held back.
        result: what is recorded when the body has ended; None when the framework ended it, and it will run again.
        may_be_left: a consumer that leaves early while the run goes on gets the same part of the stream in a replay:
            `result` is recorded then, too. Otherwise nothing is, and the body runs again.
        around: entered for each part, beside the step's scope.
    """
    held: list[P] = []
    commit = call.run.journal.commit
    with call.in_flight():
        if call.at_most_once:
            commit(effects.mark(call))
        scope = call.inner()
        try:
            while True:
                try:
                    with inside(scope), around():
                        part = next(body)
                except StopIteration:
                    break
                except Exception as error:
                    if (ended := call.ended_by(error)) is not None:
                        commit(ended)
                    raise
                if take(part) or held:
                    held.append(part)
                    continue
                with _watched(call, may_be_left, result):
                    yield part
            if (ended := _draft(call, result())) is not None:
                commit(ended)
        finally:
            with inside(scope), around(), suppress(RuntimeError):  # one that yields as it is closed
                getattr(body, "close", lambda: None)()
    yield from held


async def aparts(
    call: Call,
    body: AsyncIterator[P],
    take: Callable[[P], bool],
    result: Callable[[], Any],
    *,
    may_be_left: bool = False,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncGenerator[P, None]:
    """`parts` for an async iterator."""
    held: list[P] = []
    run = call.run
    if not run.is_surely_ours:
        await run.in_thread(run.confirm)
    with call.in_flight():
        if call.at_most_once:
            await run.commit(effects.mark(call))
        scope = call.inner()

        async def advance() -> tuple[P, bool] | None:
            """The next part, and whether it is held back; None once the body has ended and is recorded."""
            try:
                with inside(scope), around():
                    part = await anext(body)
            except StopAsyncIteration:
                if (ended := _draft(call, result())) is not None:
                    await run.commit(ended)
                return None
            except Exception as error:
                if (ended := call.ended_by(error)) is not None:
                    await run.commit(ended)
                raise
            return part, take(part)

        ask: Callable[[], Awaitable[tuple[P, bool] | None]] = advance
        end: Callable[[], Awaitable[None]] = partial(_close, body, scope, around)
        if call.outlasts:
            pump = Pump(run, advance, end)
            ask, end = pump.next, pump.end
        try:
            while (found := await ask()) is not None:
                part, holds = found
                if holds or held:
                    held.append(part)
                    continue
                with _watched(call, may_be_left, result):
                    yield part
        finally:
            await end()
    for part in held:
        yield part


async def _close(
    body: AsyncIterator[Any], scope: Scope, around: Callable[[], AbstractContextManager[None]]
) -> None:
    close = getattr(body, "aclose", None)
    if close is not None:
        with inside(scope), around(), suppress(RuntimeError):  # one that yields as it is closed
            await close()


@contextmanager
def _watched(call: Call, may_be_left: bool, result: Callable[[], Any]) -> Iterator[None]:
    """The consumer has a part. When it leaves with that, and the run goes on, the step was that long."""
    try:
        yield
    except GeneratorExit:  # nothing may be awaited here
        run = call.run
        if may_be_left and run.closing is None and run.journal.lost is None:
            run.journal.commit(call.draft(result()))
        raise


def _draft(call: Call, result: Any) -> Draft | None:
    return call.draft(result) if result is not None else call.paused()
