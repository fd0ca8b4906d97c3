"""The fence: an execution that has lost its run writes nothing, in whatever order things happen."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import durable_agents
from core.harness import crash, drive, eventually, steal
from durable_agents import errors, runs
from durable_agents._core import RUN, Draft, Statement, astep, engine, step
from durable_agents._core.errors import OwnershipLost
from durable_agents._core.record import now_us
from durable_agents._core.store import Store
from durable_agents._core.store import runs as rows
from durable_agents._core.store.runs import appends
from plain import Plain

Agent = Callable[..., Plain]
CHECKPOINTS = (("CREATE TABLE checkpoints (id TEXT PRIMARY KEY, state {blob})",),)
pytestmark = pytest.mark.usefixtures("idle")


@pytest.fixture
def store() -> Store:
    return engine.current().store


def count(store: Store, run_id: str) -> int:
    return int(store.query("SELECT count(*) FROM operation_outputs WHERE workflow_uuid = ?", (run_id,))[0][0])


def test_a_zombie_records_nothing_and_starts_nothing(agent: Agent, store: Store) -> None:
    calls: list[str] = []

    def body(_: None) -> None:
        step("tool", "a", lambda: calls.append("a"))
        step("tool", "b", lambda: (calls.append("b"), steal("z")))
        step("tool", "c", lambda: calls.append("c"))

    with pytest.raises(OwnershipLost):
        drive(agent(body), run_id="z")
    assert calls == ["a", "b"]
    assert [s.path for s in runs.get("z").steps()] == ["tool:a"]
    assert runs.get("z").status == "running"
    assert rows.owner(store, "z") == "thief"


def test_a_zombie_that_swallows_the_signal_ends_nothing(agent: Agent, store: Store) -> None:
    def body(_: None) -> str:
        try:
            step("tool", "a", lambda: steal("z"))
        except BaseException:
            return "swallowed"
        raise AssertionError("unreachable")

    with pytest.raises(OwnershipLost):
        drive(agent(body), run_id="z")
    assert runs.get("z").status == "running"
    assert count(store, "z") == 1


@pytest.mark.parametrize("end", ["result", "error", "wait", "release"])
def test_a_zombie_cannot_end_park_or_release_the_run(agent: Agent, store: Store, end: str) -> None:
    def body(_: None) -> Any:
        steal("z")
        if end == "error":
            raise ValueError("no")
        if end == "release":
            raise KeyboardInterrupt
        return RUN.get().wait({"q": 1}) if end == "wait" else "result"  # type: ignore[union-attr]

    with pytest.raises((OwnershipLost, KeyboardInterrupt)):
        drive(agent(body), run_id="z")
    assert runs.get("z").status == "running"
    assert rows.owner(store, "z") == "thief"
    assert count(store, "z") == 1


def test_a_zombie_moves_neither_its_record_nor_the_frameworks_rows(agent: Agent, store: Store) -> None:
    store.migrate_tables("test", CHECKPOINTS)
    insert = "INSERT INTO checkpoints (id, state) VALUES (?, ?)"

    def body(stolen: bool) -> None:
        run = RUN.get()
        assert run is not None
        run.journal.commit(
            Draft("state", "state:first", "null"), [Statement(insert, ((run.id + "-1", b"\0"),))]
        )
        if stolen:
            steal(run.id)
        run.journal.stage([Statement(insert, ((run.id + "-2", b"1"), (run.id + "-3", b"2")))])
        run.journal.commit(
            Draft("state", "state:second", "null"), [Statement(insert, ((run.id + "-4", b"3"),))]
        )

    runner = agent(body)
    runner.run(False, run_id="owner")
    with pytest.raises(OwnershipLost):
        drive(runner, True, run_id="zombie")
    ids = [i for (i,) in store.query("SELECT id FROM checkpoints ORDER BY id")]
    assert ids == ["owner-1", "owner-2", "owner-3", "owner-4", "zombie-1"]
    assert [s.path for s in runs.get("zombie").steps()] == ["state:first"]


def hand_back(run_id: str) -> None:
    """What a takeover leaves when the other worker dies too: the run is queued again."""
    engine.current().store.execute(
        "UPDATE workflow_status SET status = 'ENQUEUED', owner_xid = NULL, executor_id = NULL"
        " WHERE workflow_uuid = ?",
        (run_id,),
    )


def later(work: Callable[[], Any]) -> None:
    threading.Timer(0.2, work).start()


def test_a_caller_that_has_lost_its_run_takes_it_again_when_it_is_queued(agent: Agent) -> None:
    calls: list[str] = []

    def body(_: None) -> str:
        step("tool", "a", lambda: calls.append("a"))
        if len(calls) == 1:
            steal("again")
            later(lambda: hand_back("again"))
        step("tool", "b", lambda: calls.append("b"))
        return "done"

    assert agent(body).run(run_id="again") == "done"
    assert calls == ["a", "b", "b"]  # the zombie's b ran, and was not recorded
    assert [(s.name, s.epoch) for s in runs.get("again").steps()] == [("a", 1), ("b", 2)]


def test_a_coroutine_that_has_lost_its_run_is_unwound_and_takes_it_again(agent: Agent) -> None:
    calls: list[str] = []

    async def tool(name: str) -> None:
        calls.append(name)

    async def body(_: None) -> str:
        await astep("tool", "a", lambda: tool("a"))
        if len(calls) == 1:
            steal("aagain")
            later(lambda: hand_back("aagain"))
        await astep("tool", "b", lambda: tool("b"))
        return "done"

    async def main() -> None:
        assert await agent(body).arun(run_id="aagain") == "done"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(main())
    assert calls == ["a", "b", "b"]


def test_a_caller_that_has_lost_its_run_is_given_the_others_result(agent: Agent, store: Store) -> None:
    def body(_: None) -> str:
        if not store.query("SELECT 1 FROM workflow_status WHERE owner_xid = 'thief'"):
            steal("theirs")
            later(finish_there)
        return str(step("tool", "t", lambda: "ours"))

    runner = agent(body)

    def finish_there() -> None:
        store.execute(
            "UPDATE workflow_status SET executor_id = ? WHERE owner_xid = 'thief'",
            (engine.current().worker.id,),
        )
        there = engine.current().take(runner, "theirs", "thief")
        there.journal.commit(Draft("tool", "tool:t", '"theirs"'))
        there.drive()

    assert runner.run(run_id="theirs") == "theirs"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_that_is_cancelled_from_outside_raises_that_it_was(
    agent: Agent, store: Store, is_async: bool
) -> None:
    run_id = f"outside-{is_async}"

    def cancel() -> None:
        store.execute(
            "UPDATE workflow_status SET status = 'CANCELLED', owner_xid = NULL WHERE workflow_uuid = ?",
            (run_id,),
        )

    async def abody(_: None) -> None:
        await astep("tool", "t", lambda: asyncio.to_thread(cancel))

    runner = agent(abody) if is_async else agent(lambda _: step("tool", "t", cancel))
    with pytest.raises(errors.RunCancelled):
        asyncio.run(runner.arun(run_id=run_id)) if is_async else runner.run(run_id=run_id)


def test_a_caller_that_waits_for_a_lost_run_is_told_of_a_shutdown(agent: Agent) -> None:
    def body(_: None) -> None:
        steal("told")
        later(durable_agents.shutdown)
        step("tool", "t", lambda: None)

    with pytest.raises(errors.RunReleased, match="shutdown"):
        agent(body).run(run_id="told")


def test_rows_that_fail_take_their_record_along(agent: Agent, store: Store) -> None:
    store.migrate_tables("test", CHECKPOINTS)
    insert = "INSERT INTO checkpoints (id, state) VALUES (?, ?)"

    def body(_: None) -> None:
        run = RUN.get()
        assert run is not None
        run.journal.commit(Draft("state", "state:1", "null"), [Statement(insert, (("same", b""),))])
        run.journal.commit(
            Draft("state", "state:2", "null"), [Statement(insert, (("new", b""), ("same", b"")))]
        )

    with pytest.raises(OwnershipLost):
        drive(agent(body), run_id="r")
    assert [i for (i,) in store.query("SELECT id FROM checkpoints")] == ["same"]
    assert [s.path for s in runs.get("r").steps()] == ["state:1"]


def test_a_record_that_can_never_be_written_does_not_repeat_its_effect_for_ever(
    agent: Agent, idle: str
) -> None:
    """A run that is claimed again and again without a new record backs off, and fails after a limit."""
    durable_agents.shutdown()
    durable_agents.launch(idle, heartbeat=0.02, grace=0.05, lease=30, poll=0.02, rest=0)
    calls: list[int] = []

    def body(_: None) -> None:
        calls.append(1)
        run = RUN.get()
        assert run is not None
        run.journal.commit(
            Draft("state", "state:1", "null"), [Statement("INSERT INTO nowhere VALUES (?)", ((1,),))]
        )

    run = agent(body).start(run_id="never")
    try:
        eventually(lambda: run.status == "failed", 4, f"claimed {len(calls)} times")
    finally:
        run.cancel()
    assert len(calls) < 20


def test_a_run_that_stops_its_workers_rests_longer_and_longer(agent: Agent, idle: str) -> None:
    durable_agents.shutdown()
    durable_agents.launch(idle, heartbeat=0.02, grace=0.05, lease=30, poll=0.01, rest=0.1)
    claims: list[float] = []

    def body(_: None) -> None:
        claims.append(time.monotonic())
        run = RUN.get()
        assert run is not None
        if len(claims) == 6:
            run.engine.shun("r")
        run.engine.store.execute(  # as a worker that dies: the run is queued again without a word
            "UPDATE workflow_status SET status = 'ENQUEUED', owner_xid = NULL, executor_id = NULL,"
            " delay_until_epoch_ms = NULL WHERE workflow_uuid = 'r'",
        )

    agent(body).start(run_id="r")
    eventually(lambda: len(claims) == 6)
    waits = [after - before for before, after in itertools.pairwise(claims)]
    assert waits[1] >= 0.1, waits
    assert waits[2] >= 0.2, waits
    assert waits[3] >= 0.4, waits
    sql = "SELECT recovery_attempts, delay_until_epoch_ms FROM workflow_status WHERE workflow_uuid = 'r'"
    eventually(lambda: engine.current().store.query(sql) == [(6, None)])


def test_a_claim_that_records_something_ends_the_rests(agent: Agent, launched: str) -> None:
    runner = agent(lambda _: [step("tool", n, lambda n=n: n) for n in "abc"])
    runner.run(run_id="r")
    for after in (1, 2, 3, 4, 3, 2, 1):
        crash("r", after=after)
        begun = time.monotonic()
        assert runner.run(run_id="r") == ["a", "b", "c"]
        assert time.monotonic() - begun < 0.25


def test_a_clock_that_was_set_back_does_not_make_a_rest_endless(agent: Agent, launched: str) -> None:
    store = engine.current().store
    engine.current().shun("r")
    runner = agent(lambda _: 1)
    runner.start(run_id="r")
    hour = f"{store.now} + 3600000"
    store.execute(f"UPDATE workflow_status SET delay_until_epoch_ms = {hour} WHERE workflow_uuid = 'r'")
    assert runner.run(run_id="r") == 1


def test_the_records_of_two_owners_are_one_chain(agent: Agent, store: Store) -> None:
    runner = agent(lambda _: [step("tool", n, lambda n=n: n) for n in "abc"])
    runner.run(run_id="r")
    crash("r", after=2)
    assert runner.run(run_id="r") == ["a", "b", "c"]
    assert [(s.name, s.epoch) for s in runs.get("r").steps()] == [("a", 1), ("b", 2), ("c", 2)]


def test_a_retried_write_whose_acknowledgement_was_lost_is_one_record(agent: Agent, store: Store) -> None:
    def body(_: None) -> None:
        journal = RUN.get().journal  # type: ignore[union-attr]
        record = Draft("tool", "tool:a", "1").seal(
            run="r", seq=2, prev=journal._prev, at=now_us(), worker="w", epoch=1
        )
        assert rows.append(store, record, journal.owner)
        assert rows.append(store, record, journal.owner)
        other = Draft("tool", "tool:a", "2").seal(
            run="r", seq=2, prev=journal._prev, at=now_us(), worker="w", epoch=1
        )
        assert not rows.append(store, other, journal.owner)
        assert count(store, "r") == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        agent(body).run(run_id="r")


# -- PostgreSQL: two connections, every order


@pytest.fixture
def connections(idle: str, store: Store) -> Iterator[tuple[Any, Any]]:
    if store.dialect != "postgresql":
        pytest.skip("SQLite has one writer at a time")
    with closing(store._connect()) as zombie, closing(store._connect()) as taker:  # type: ignore[attr-defined]
        zombie.autocommit = taker.autocommit = False
        yield zombie, taker


TAKE = "UPDATE workflow_status SET owner_xid = 'new' WHERE workflow_uuid = 'f'"


def record_of(store: Store, agent: Agent) -> tuple[str, tuple[Any, ...]]:
    """An insert of the second record of a run that this process owns."""
    captured: list[Any] = []

    def body(_: None) -> None:
        journal = RUN.get().journal  # type: ignore[union-attr]
        record = Draft("tool", "tool:a", "1").seal(
            run="f", seq=2, prev=journal._prev, at=now_us(), worker="w", epoch=1
        )
        captured.append(appends._record_params(record, journal.owner))
        steal_back.append(journal.owner)
        raise KeyboardInterrupt

    steal_back: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        agent(body).run(run_id="f")
    store.execute(
        "UPDATE workflow_status SET status = 'PENDING', owner_xid = ? WHERE workflow_uuid = 'f'",
        (steal_back[0],),
    )
    return appends._insert_record_sql(store).replace("?", "%s"), captured[0]


def blocked(work: Callable[[], Any]) -> threading.Thread:
    """Start `work` and see that it has to wait."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    return thread


def test_a_takeover_waits_for_the_record_before_it(agent: Agent, store: Store, connections: Any) -> None:
    zombie, taker = connections
    sql, params = record_of(store, agent)
    assert zombie.execute(sql, params).rowcount == 1
    waiting = blocked(lambda: (taker.execute(TAKE), taker.commit()))
    zombie.commit()
    waiting.join(10)
    assert count(store, "f") == 2  # it loads its records after its claim, so it sees this one


def test_a_record_waits_for_the_takeover_before_it_and_is_not_written(
    agent: Agent, store: Store, connections: Any
) -> None:
    zombie, taker = connections
    sql, params = record_of(store, agent)
    taker.execute(TAKE)
    written: list[int] = []
    waiting = blocked(lambda: (written.append(zombie.execute(sql, params).rowcount), zombie.commit()))
    taker.commit()
    waiting.join(10)
    assert written == [0]
    assert count(store, "f") == 1


def test_a_record_after_a_takeover_that_failed_is_written(
    agent: Agent, store: Store, connections: Any
) -> None:
    zombie, taker = connections
    sql, params = record_of(store, agent)
    taker.execute(TAKE)
    written: list[int] = []
    waiting = blocked(lambda: (written.append(zombie.execute(sql, params).rowcount), zombie.commit()))
    taker.rollback()
    waiting.join(10)
    assert written == [1]


def test_a_cancel_that_meets_the_run_parking_is_not_lost(
    agent: Agent, store: Store, connections: Any
) -> None:
    owner, _ = connections
    record_of(store, agent)
    owner.execute("UPDATE workflow_status SET status = 'DELAYED', owner_xid = NULL WHERE workflow_uuid = 'f'")
    waiting = blocked(lambda: runs.get("f").cancel())
    owner.commit()
    waiting.join(10)
    assert runs.get("f").status == "cancelled"


def test_a_frozen_transaction_blocks_the_takeover_for_seconds_only(connections: Any) -> None:
    zombie, _ = connections
    assert zombie.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("10s",)


def test_a_cut_connection_is_opened_again(agent: Agent, store: Store) -> None:
    if store.dialect != "postgresql":
        pytest.skip("SQLite has no connections to cut")

    def cut() -> None:
        with closing(store._connect()) as killer:  # type: ignore[attr-defined]
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )

    calls: list[int] = []

    def body(_: None) -> list[int]:
        return [step("tool", "t", lambda n=n: (calls.append(n), cut(), n)[2]) for n in range(6)]

    started = time.monotonic()
    assert agent(body).run(run_id="cut") == [0, 1, 2, 3, 4, 5]
    assert calls == [0, 1, 2, 3, 4, 5]
    assert time.monotonic() - started < 15
