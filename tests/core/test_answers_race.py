"""Many answers at once, from everywhere: one is accepted, and the run goes on with that one, once."""

import itertools
import time

import pytest

from core.harness import Program, Programs, eventually, until_over
from durable_agents import runs

pytestmark = pytest.mark.usefixtures("idle")

ROUNDS = 6


def waiting(programs: Programs, asker: Program, rounds: list[str], runner: str = "asking") -> None:
    """As many runs that wait, each on a thread of its own name."""
    asks = {"seconds": 0.0, "asks": True}
    for run_id in rounds:
        asker.tell("call", runner, run_id, run_id, asks if runner == "turns" else None)
    eventually(lambda: len(runs.list(status="waiting")) == len(rounds), what=asker.output)


@pytest.mark.parametrize("values", [["a", "b", "c", "d"], ["same"] * 4], ids=["different", "the same"])
def test_of_four_processes_that_answer_at_once_one_is_accepted(programs: Programs, values: list[str]) -> None:
    """Two by `Run.answer`, two as their framework does it, who then drive the run themselves."""
    racers, rounds = [programs.worker() for _ in range(4)], [f"w{n}" for n in range(ROUNDS)]
    asker = programs.worker()
    waiting(programs, asker, rounds)
    asker.kill()
    start = time.monotonic() + 0.2
    for number, run_id in enumerate(rounds):
        for racer, value, verb in zip(racers, values, ("answer", "answer later") * 2, strict=True):
            racer.tell(verb, "asking", run_id, run_id, value, start + 0.1 * number)
    for run_id in rounds:
        came: dict[str, list[str]] = {value: [] for value in values}
        for racer, value in zip(racers, values, strict=True):
            came[value].append(racer.came_of(run_id))
        until_over([run_id])
        accepted = str(runs.get(run_id)._closing().value()[0])
        refused = [what for value in came if value != accepted for what in came[value]]
        assert refused == ["raises AlreadyAnswered"] * (len(set(values)) - 1)
        assert set(came[accepted]) <= {"done", f'gives ["{accepted}", "send"]'}
    assert sorted(programs.ledger.effects()) == ["draft"] * ROUNDS + ["send"] * ROUNDS


def test_an_answer_and_a_new_input_at_once_come_one_after_the_other(programs: Programs) -> None:
    """Either the input drops the pause and the answer is told so, or the answered run goes first."""
    answering, calling = programs.worker(), programs.worker()
    rounds = [f"w{n}" for n in range(2 * ROUNDS)]
    waiting(programs, answering, rounds, "turns")
    start, input = time.monotonic() + 0.2, {"asks": False, "seconds": 0.0}
    ways = itertools.product(("answer", "answer later"), ("call", "start"))
    for number, (run_id, (answer, call)) in enumerate(zip(rounds, itertools.cycle(ways), strict=False)):
        moment = start + 0.1 * number
        answering.tell(answer, "turns", run_id, run_id, "go on", moment)
        calling.tell(call, "turns", f"new-{run_id}", run_id, input, moment)
    until_over([f"new-{run_id}" for run_id in rounds])
    eventually(lambda: not runs.list(status=["queued", "running", "waiting"]))
    effects = programs.ledger.effects()
    for run_id in rounds:
        mine = [effect for effect in effects if effect.split()[1] == run_id]
        new = [effect for effect in effects if effect.split()[1] == f"new-{run_id}"]
        together = [effect for effect in effects if effect in mine or effect in new]
        assert together == mine + new
        if answering.came_of(run_id, 1) == "raises NotWaiting":
            assert runs.get(run_id).status == "cancelled"
            assert f"begin {run_id} 2" not in mine
        else:
            assert answering.came_of(run_id, 1) in ("done", f'gives "{run_id}"')
            assert runs.get(run_id).status == "succeeded"
            assert mine.count(f"end {run_id} 2") == 1
