"""An async generator as the body of one step."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

from .._core import Call, effects, inside


async def play(
    call: Call,
    body: AsyncGenerator[Any, None],
    done: Callable[[], Any],
    is_last: Callable[[Any], bool] = lambda part: False,
) -> AsyncGenerator[Any, None]:
    """Hand out the parts of `body` as they come; the step is recorded when it has ended, before this ends.

    The step's scope is entered for each part alone: it must not leak to the consumer, who runs between two of them.

    Args:
        done: what is recorded; None when the body has not finished, but waits for somebody.
        is_last: whether the consumer asks for nothing after this part, so that it must be recorded before.
    """
    run = call.run
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
                        if not call.is_signal(error):
                            await run.commit(call.draft(error=error))
                        raise
                    if is_last(part):
                        await _record(call, done())
                        yield part
                        return
                    yield part
                await _record(call, done())
            finally:
                with inside(scope):
                    await body.aclose()
    finally:
        run.leave(call.leaf)


async def _record(call: Call, result: Any) -> None:
    if result is not None:
        await call.run.commit(call.draft(result))
