"""A pool of daemon threads: Python does not wait for them at exit, where runs are released instead of finished."""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def detached(future: "Future[T]") -> T:
    """Wait for a thread's work. Cancelling the wait does not cancel the work, and nobody has to hear of its end."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    def done(_: "Future[T]") -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(done)
    await waiting
    return future.result()


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


class DaemonPool:
    """`submit` as `concurrent.futures.ThreadPoolExecutor` has it. More threads are made when all others are busy.

    There is one from the beginning: Python 3.12 makes none once the process has begun to end.

    Args:
        size: at most this many threads; further work waits its turn.
        name: prefix of the threads' names.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(1)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._grow()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` in a thread; the future cannot be cancelled once it was given."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        if self._closed:  # nobody is left to serve it, and its caller must hear that all is over
            _settle(future, work)
            return future
        self._work.put((future, work))
        if not self._idle.acquire(blocking=False):
            self._grow()
        return future

    def resize(self, by: int) -> None:
        """Allow more threads, or fewer; those there are stay."""
        with self._lock:
            self._size += by

    def _grow(self) -> None:
        with self._lock:
            if len(self._threads) < self._size:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    if not self._threads:
                        raise
                    return  # the process ends, or may have no more threads: the work waits for one there is
                self._threads.append(thread)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            _settle(future, work)
            del item, future, work  # an idle thread must not keep the last run alive
            self._idle.release()

    def close(self, wait: bool) -> None:
        """Let the threads end when the work is done."""
        self._closed = True
        for _ in self._threads:
            self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
