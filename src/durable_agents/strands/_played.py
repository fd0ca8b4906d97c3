"""An async generator as the body of one step."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from .._core import Call, effects, inside
from .._core.errors import Stop
from ._places import InRun
from ._private import InterruptException


def play(
    call: Call,
    body: AsyncGenerator[Any, None],
    done: Callable[[], Any],
    is_last: Callable[[Any], bool] = lambda part: False,
) -> AsyncGenerator[Any, None]:
    """Hand out the parts of `body` as they come; the step is recorded when it has ended, before this ends.

    The step's scope is entered for each part alone: it must not leak to the consumer, who runs between two of them.

    Args:
        done: what is recorded; None when the body has not finished, but waits for somebody.
        is_last: whether the consumer asks for nothing after this part: all is over before it is handed out.
    """
    playing = InRun.of(call.run).playing
    parts = _play(call, body, done, is_last, lambda: playing.remove(parts))
    playing.append(parts)
    return parts


async def _play(
    call: Call,
    body: AsyncGenerator[Any, None],
    done: Callable[[], Any],
    is_last: Callable[[Any], bool],
    ended: Callable[[], None],
) -> AsyncGenerator[Any, None]:
    run, last = call.run, []
    if not run.is_surely_ours:
        await run.in_thread(run.confirm)
    run.enter(call.leaf)
    try:
        with run.body():
            if call.at_most_once:
                await run.commit(effects.mark(call))
            scope = call.inner()
            try:
                while True:
                    try:
                        with inside(scope):
                            part = await anext(body)
                    except StopAsyncIteration:
                        break
                    except Exception as error:
                        if not (call.is_signal(error) or isinstance(error, InterruptException)):
                            await run.commit(call.draft(error=error))
                        elif call.at_most_once:
                            await run.commit(effects.paused(call))
                        raise
                    except (Stop, asyncio.CancelledError, GeneratorExit):
                        raise
                    except BaseException as killed:  # Strands would swallow it and go on
                        InRun.of(run).killed = killed
                        raise
                    if is_last(part):
                        last.append(part)
                        break
                    yield part
                if (result := done()) is not None:
                    await run.commit(call.draft(result))
                elif call.at_most_once:
                    await run.commit(effects.paused(call))
            finally:
                with inside(scope):
                    await body.aclose()
    finally:
        run.leave(call.leaf)
        ended()
    for part in last:
        yield part
