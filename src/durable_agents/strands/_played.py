"""Steps that yield, in Strands: its loop leaves some of them standing, and swallows what should end the run."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .._core import Call, Execution, aparts
from .._core.errors import Stop
from ._places import InRun


def play(
    call: Call,
    body: AsyncIterator[Any],
    take: Callable[[Any], bool],
    result: Callable[[], Any],
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncGenerator[Any, None]:
    """`aparts` that is ended with the run at the latest."""
    playing = InRun.of(call.run).playing

    @contextmanager
    def watched() -> Iterator[None]:
        with around(), _noted(call.run):
            yield

    async def listed() -> AsyncGenerator[Any, None]:
        try:
            async for part in parts:
                yield part
        finally:
            playing.remove(listing)
            await parts.aclose()

    parts = aparts(call, body, take, result, around=watched)
    listing = listed()
    playing.append(listing)
    return listing


@contextmanager
def _noted(run: Execution) -> Iterator[None]:
    """An exception that is meant to end the run, such as Ctrl-C, is kept: Strands would swallow it and go on."""
    try:
        yield
    except (Exception, Stop, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as killed:
        InRun.of(run).killed = killed
        raise
