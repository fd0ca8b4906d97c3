"""Conversations whose workers are killed all the time: each run in its turn, no two at once, nothing finished again."""

import os
import random
import time
from dataclasses import dataclass, field

import pytest

from core.harness import Program, Programs, eventually, status
from durable_agents import errors, runs

RUNS, THREADS, WORKERS, KILLS = 40, 4, 3, 10


@dataclass
class Fire:
    """Forty runs on four conversations, three workers, and a hand that kills one of those now and then."""

    programs: Programs
    dice: random.Random
    workers: list[Program] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    created: dict[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)

    def staff(self) -> None:
        while len(self.workers) < WORKERS:
            self.workers.append(self.programs.worker())

    def kill(self) -> None:
        victim = self.workers.pop(self.dice.randrange(len(self.workers)))
        victim.kill()
        self.killed.add(victim.pid)
        self.staff()

    def create(self) -> None:
        """The next run of a conversation, queued or called; it exists when this returns, so the order is known."""
        number = len(self.created)
        run_id, thread = f"r{number:02}", f"t{number % THREADS}"
        last_of_thread = number >= RUNS - THREADS
        input = {
            "seconds": self.dice.choice([0.05, 0.1, 0.2]),
            "asks": last_of_thread or self.dice.random() < 0.2,
        }
        verb = self.dice.choice(["start", "call"])
        worker = self.dice.choice(self.workers)
        worker.tell(verb, "turns", run_id, thread, input)
        eventually(lambda: status(run_id), 10, worker.output)
        self.created[run_id] = thread

    def cancel(self) -> None:
        """A run that was created lately: queued, running or waiting."""
        run_id = self.dice.choice(list(self.created)[-12:])
        if status(run_id) not in ("succeeded", "failed", "cancelled"):
            runs.get(run_id).cancel()
            self.cancelled.add(run_id)

    def answer(self) -> None:
        """Whatever waits, before the next input of its conversation drops its pause, or not."""
        for run in runs.list(status="waiting", limit=RUNS):
            try:
                run.answer("go on")
            except errors.NotWaiting:
                continue  # that input has come in between
            self.answered.add(run.id)

    def unfinished(self) -> list[str]:
        return [run.id for run in runs.list(status=["queued", "running", "waiting"], limit=RUNS)]

    def burn(self) -> None:
        """Create, cancel, answer and kill in random order, and answer and kill until all is over."""
        self.staff()
        deadline = time.monotonic() + 60
        last_kill = time.monotonic()
        while len(self.created) < RUNS or self.unfinished():
            assert time.monotonic() < deadline, f"{self.unfinished()} do not end"
            if len(self.created) < RUNS:
                self.create()
                if self.dice.random() < 0.12:
                    self.cancel()
            if self.dice.random() < 0.7:
                self.answer()
            if len(self.killed) < KILLS and time.monotonic() - last_kill > 0.4:
                self.kill()
                last_kill = time.monotonic()
            time.sleep(0.02)


@dataclass
class History:
    """What the ledger says: who began and ended which step of which run."""

    lines: list[tuple[str, str, int, int]]

    @classmethod
    def read(cls, programs: Programs) -> "History":
        effects = [(effect.split(), int(pid)) for effect, _, pid in programs.ledger.lines()]
        return cls([(what, run, int(number), pid) for (what, run, number), pid in effects])

    def order(self, runs_of_thread: set[str]) -> list[str]:
        """The runs of a conversation in the order they were at work, each as often as it got its turn."""
        order: list[str] = []
        for _, run, _, _ in self.lines:
            if run in runs_of_thread and order[-1:] != [run]:
                order.append(run)
        return order

    def begun(self, run: str, number: int) -> list[int]:
        """The processes that began this step, in order."""
        return [pid for what, *step, pid in self.lines if what == "begin" and step == [run, number]]


def check(fire: Fire, history: History) -> None:
    threads = {
        thread: {r for r, t in fire.created.items() if t == thread} for thread in fire.created.values()
    }
    for members in threads.values():
        order = history.order(members)
        assert order == sorted(set(order)), f"two runs of a conversation at once, or out of turn: {order}"
    for run_id in fire.created:
        end, recorded = status(run_id), [step.path for step in runs.get(run_id).steps()]
        assert len(recorded) == len(set(recorded))
        assert end in ("succeeded", "cancelled")
        assert len(recorded) == 3 or end == "cancelled"
        assert end == "succeeded" or run_id in fire.cancelled or is_superseded(run_id)
        for number in range(3):
            pids = history.begun(run_id, number)
            assert set(pids[:-1]) <= fire.killed, (
                f"step {number} of {run_id} ran again in {pids}, nobody was killed"
            )
            assert len(pids) == len(set(pids))
            assert len(pids) > 0 or end == "cancelled"


def is_superseded(run_id: str) -> bool:
    """Whether its pause was dropped by the next input of its conversation."""
    with pytest.raises(errors.RunCancelled) as caught:
        runs.get(run_id).result(1)
    return "came after it" in str(caught.value)


@pytest.mark.usefixtures("idle")
def test_forty_runs_on_four_conversations_while_workers_are_killed(programs: Programs) -> None:
    seed = int(os.environ.get("FIRE_SEED", random.randrange(10**6)))
    print(f"FIRE_SEED={seed} throws these dice again")
    fire = Fire(programs, random.Random(seed))
    fire.burn()
    assert len(runs.list(limit=1000)) == RUNS
    check(fire, History.read(programs))
    assert len(fire.killed) >= 5
    for run_id in list(fire.created)[-THREADS:]:  # they ask, and no input comes after them
        assert run_id in fire.answered | fire.cancelled
