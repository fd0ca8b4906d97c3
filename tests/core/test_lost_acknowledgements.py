"""A COMMIT whose acknowledgement is lost is done once: the client tries again, whatever has happened in between."""

import time
from collections.abc import Callable, Iterator

import pytest

from core.harness import Program, Programs, eventually, until_over
from core.wire import When, Wire, wired
from durable_agents import runs
from durable_agents._core import engine
from durable_agents._core.store import runs as rows

# SQLite has no acknowledgement that could be lost: there a COMMIT fails or its process dies.
pytestmark = [
    pytest.mark.parametrize("database_url", ["postgresql"], indirect=True),
    pytest.mark.usefixtures("idle"),
]

# A piece of SQL that only this transaction has.
START = "INSERT INTO workflow_status"
CLAIM = "SET status = 'PENDING', owner_xid"
RECORD = "INSERT INTO operation_outputs"
PARK = "SET status = 'DELAYED'"
ANSWER = "SET status = 'ENQUEUED', delay_until_epoch_ms = NULL, executor_id = NULL"
NATIVE_ANSWER = "SET status = 'PENDING', delay_until_epoch_ms = NULL"
FINISH = "INSERT INTO workflow_output"
LEAVE = "DELETE FROM durable_agents_worker"


@pytest.fixture
def wire(idle: str) -> Iterator[Wire]:
    with wired(idle) as wire:
        yield wire


@pytest.fixture
def far(programs: Programs, wire: Wire) -> Callable[..., Program]:
    """Starts workers whose wire to the database may break; they are slow to look for queued runs by themselves."""

    def start(**environment: str) -> Program:
        return programs.worker(durable_agents_database_url=wire.url, **{"poll": "60", **environment})

    return start


def declare_dead(program: Program) -> None:
    """What a sweeper does meanwhile: to the others, a worker that is cut off is as good as dead."""
    label = f"%:{program.pid}"
    store = engine.current().store
    assert store.execute("DELETE FROM durable_agents_worker WHERE label LIKE ?", (label,)) == 1


@pytest.mark.parametrize("when", ["before it is sent", "after it is committed"])
@pytest.mark.parametrize("what", [START, RECORD, PARK, NATIVE_ANSWER, FINISH])
def test_a_caller_whose_connection_breaks_goes_on_as_if_nothing_had_happened(
    programs: Programs, wire: Wire, far: Callable[..., Program], what: str, when: When
) -> None:
    caller = far()
    cut = wire.cut(what, when)
    caller.tell("call", "asking", "r", "t", None)
    caller.until("r raises RunWaiting")
    caller.tell("answer", "asking", "r", "t", "yes")
    caller.until('r gives ["yes", "send"]')
    assert cut.is_set()
    assert programs.ledger.effects() == ["draft", "send"]
    assert runs.get("r").status == "succeeded"
    assert [step.epoch for step in runs.get("r").steps()] == [1, 2]


@pytest.mark.parametrize("when", ["before it is sent", "after it is committed"])
@pytest.mark.parametrize("what", [START, CLAIM, ANSWER, FINISH])
def test_a_worker_whose_connection_breaks_goes_on_with_what_is_queued(
    programs: Programs, wire: Wire, far: Callable[..., Program], what: str, when: When
) -> None:
    worker = far(poll="0.05")
    cut = wire.cut(what, when)
    worker.tell("start", "asking", "r", "t", None)
    eventually(lambda: programs.ledger.effects() == ["draft"])
    eventually(lambda: runs.get("r").status == "waiting")
    worker.tell("answer later", "asking", "r", "t", "yes")
    until_over(["r"])
    assert cut.wait(10)
    assert programs.ledger.effects() == ["draft", "send"]


def test_a_pause_that_was_answered_and_goes_on_elsewhere_is_not_taken_back(
    programs: Programs, wire: Wire, far: Callable[..., Program]
) -> None:
    caller = far()

    def meanwhile() -> None:
        runs.get("r").answer("yes")
        programs.worker(gated="send")
        eventually(lambda: "send" in programs.ledger.effects())

    cut = wire.cut(PARK, meanwhile=meanwhile)
    caller.tell("call", "asking", "r", "t", None)
    caller.until("r raises RunWaiting")
    assert cut.is_set()
    assert runs.get("r").status == "running"
    (programs.home / "open").touch()
    until_over(["r"])
    assert programs.ledger.effects() == ["draft", "send"]


def test_a_pause_that_was_answered_and_is_queued_does_not_wait_again(
    programs: Programs, wire: Wire, far: Callable[..., Program]
) -> None:
    caller = far()
    wire.cut(PARK, meanwhile=lambda: runs.get("r").answer("yes"))
    caller.tell("call", "asking", "r", "t", None)
    caller.until("r raises RunWaiting")
    assert runs.get("r").status == "running"
    programs.worker()
    until_over(["r"])
    assert programs.ledger.effects() == ["draft", "send"]


def test_a_pause_that_was_cancelled_stays_cancelled(wire: Wire, far: Callable[..., Program]) -> None:
    caller = far()
    wire.cut(PARK, meanwhile=lambda: runs.get("r").cancel())
    caller.tell("call", "asking", "r", "t", None)
    caller.until("r raises RunCancelled")
    assert runs.get("r").status == "cancelled"


def test_a_run_that_failed_and_was_resumed_elsewhere_is_not_ended_again(
    programs: Programs, wire: Wire, far: Callable[..., Program]
) -> None:
    caller = far()

    def meanwhile() -> None:
        runs.get("r").resume()
        programs.worker(gated="works", healed="yes")
        eventually(lambda: "works" in programs.ledger.effects())

    cut = wire.cut(FINISH, meanwhile=meanwhile)
    caller.tell("call", "failing", "r", "t", None)
    caller.until("r raises RuntimeError")
    assert cut.is_set()
    assert runs.get("r").status == "running"
    (programs.home / "open").touch()
    until_over(["r"])
    assert programs.ledger.effects() == ["fails", "works"]


def test_a_run_that_was_started_and_taken_over_is_not_driven_twice(
    programs: Programs, wire: Wire, far: Callable[..., Program]
) -> None:
    """The caller may believe that it owns the run only as long as the row says so."""
    caller = far()

    def meanwhile() -> None:
        declare_dead(caller)
        programs.worker()
        eventually(lambda: "held" in programs.ledger.effects())

    cut = wire.cut(START, meanwhile=meanwhile)
    caller.tell("call", "noting", "r", "t", None)
    assert cut.wait(10)
    time.sleep(0.5)
    assert programs.ledger.effects() == ["first", "held"]
    (programs.home / "open").touch()
    caller.until('r gives "noted"')
    assert programs.ledger.effects() == ["first", "held", "last"]


def test_a_native_answer_whose_run_was_taken_over_is_not_driven_twice(
    programs: Programs, wire: Wire, far: Callable[..., Program]
) -> None:
    caller = far()
    caller.tell("call", "asking", "r", "t", None)
    caller.until("r raises RunWaiting")

    def meanwhile() -> None:
        declare_dead(caller)
        programs.worker(gated="send")
        eventually(lambda: "send" in programs.ledger.effects())

    cut = wire.cut(NATIVE_ANSWER, meanwhile=meanwhile)
    caller.tell("answer", "asking", "r", "t", "yes")
    assert cut.wait(10)
    time.sleep(0.5)
    (programs.home / "open").touch()
    caller.until('r gives ["yes", "send"]')
    assert programs.ledger.effects() == ["draft", "send"]


@pytest.mark.parametrize(("verb", "what"), [("answer", NATIVE_ANSWER), ("answer later", ANSWER)])
def test_an_answer_does_not_answer_the_next_question_too(
    programs: Programs, wire: Wire, far: Callable[..., Program], verb: str, what: str
) -> None:
    """By the time its client tries again the run has gone on, and asks something else."""
    caller = far()
    caller.tell("call", "twice_asking", "r", "t", None)
    caller.until("r raises RunWaiting")

    def meanwhile() -> None:
        if verb == "answer":
            declare_dead(caller)
        programs.worker()
        eventually(lambda: runs.get("r").questions == {"two": 2})

    cut = wire.cut(what, meanwhile=meanwhile)
    caller.tell(verb, "twice_asking", "r", "t", "yes")
    assert cut.wait(10)
    time.sleep(0.5)
    assert runs.get("r").questions == {"two": 2}
    runs.get("r").answer("no")
    until_over(["r"])
    assert programs.ledger.effects() == ["first yes", "second no"]


def test_a_claim_that_was_taken_over_is_driven_by_its_new_owner_alone(
    programs: Programs, wire: Wire, far: Callable[..., Program]
) -> None:
    worker = far(poll="0.05")

    def meanwhile() -> None:
        declare_dead(worker)
        programs.worker()
        eventually(lambda: "held" in programs.ledger.effects())

    cut = wire.cut(CLAIM, meanwhile=meanwhile)
    worker.tell("start", "noting", "r", "t", None)
    assert cut.wait(10)
    time.sleep(0.5)
    (programs.home / "open").touch()
    until_over(["r"])
    assert programs.ledger.effects() == ["first", "held", "last"]


def test_a_step_whose_record_was_committed_is_not_recorded_twice_after_a_takeover(
    programs: Programs, wire: Wire, far: Callable[..., Program]
) -> None:
    caller = far()

    def meanwhile() -> None:
        declare_dead(caller)
        programs.worker()
        eventually(lambda: "held" in programs.ledger.effects())

    cut = wire.cut("tool:first", meanwhile=meanwhile)
    caller.tell("call", "noting", "r", "t", None)
    assert cut.wait(10)
    (programs.home / "open").touch()
    caller.until('r gives "noted"')
    assert programs.ledger.effects().count("first") == 1
    assert [step.path for step in runs.get("r").steps()] == ["tool:first", "tool:held", "tool:last"]
    assert rows.owner(engine.current().store, "r") is None
