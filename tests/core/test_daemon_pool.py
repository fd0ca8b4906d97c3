"""Work in a thread that a coroutine waits for: given its outcome, left alone when the waiting ends."""

import asyncio
import threading

import pytest

from durable_agents._core.threads import DaemonPool, detached


async def test_the_outcome_of_the_work_is_that_of_the_wait() -> None:
    pool = DaemonPool(1, "test")
    assert await detached(pool.submit(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        await detached(pool.submit(lambda: 1 // 0))
    pool.close(wait=True)


async def test_work_that_has_ended_before_is_not_waited_for() -> None:
    pool = DaemonPool(1, "test")
    future = pool.submit(lambda: 7)
    future.result()
    assert await asyncio.wait_for(detached(future), 5) == 7
    pool.close(wait=True)


async def test_a_cancelled_wait_leaves_the_work_alone() -> None:
    pool, gate = DaemonPool(1, "test"), threading.Event()
    future = pool.submit(lambda: gate.wait(10) and 7)
    waiting = asyncio.create_task(detached(future))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await asyncio.to_thread(future.result, 10) == 7
    pool.close(wait=True)


@pytest.mark.parametrize("fails", [False, True])
def test_work_outlives_the_loop_that_waited_for_it(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    pool, gate = DaemonPool(1, "test"), threading.Event()

    def work() -> int:
        gate.wait(10)
        return 1 // (not fails)

    async def wait() -> None:
        await asyncio.wait([asyncio.create_task(detached(future))], timeout=0.01)

    future = pool.submit(work)
    asyncio.run(wait())
    gate.set()
    if fails:
        with pytest.raises(ZeroDivisionError):
            future.result(10)
    else:
        assert future.result(10) == 1
    assert pool.submit(lambda: "still serving").result(10) == "still serving"
    pool.close(wait=True)
    assert not caplog.records
