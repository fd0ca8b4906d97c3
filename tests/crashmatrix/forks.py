"""Child processes: forked from a warm process that has imported everything and started nothing, several at a time."""

import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.002
_STACK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Child:
    """A process that runs. It prints, and dumps its stacks when it hangs, into `output`."""

    pid: int
    output: Path
    deadline: float


@dataclass(frozen=True, slots=True)
class End:
    """How it ended: exit code, or minus the signal; None when it hung and was ended for it. `cpu` in seconds."""

    code: int | None
    cpu: float
    output: str

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


Attempt = Generator[Child, End, T]
"""Work that yields the children it waits for, one after the other."""


def warm() -> None:
    """Make this process ready to fork: nothing in it may run, and its memory should stay shared."""
    if threading.active_count() != 1:
        raise RuntimeError(f"a process with threads cannot be forked safely: {threading.enumerate()}")
    gc.collect()
    gc.freeze()


def fork(work: Callable[[], None], output: Path, timeout: float) -> Child:
    """Run `work` in a child process, which ends when it returns.

    Args:
        timeout: seconds after which the child prints the stacks of its threads and is ended.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(work, output, timeout)
    return Child(pid, output, time.monotonic() + timeout + _STACK_SECONDS)


def _child(work: Callable[[], None], output: Path, timeout: float) -> None:
    code = 3
    try:
        file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(file, stream)
        # The exit makes sure that the child also ends when its parent is gone.
        faulthandler.dump_traceback_later(timeout, exit=True, file=file)
        random.seed()  # two processes of a real application do not draw the same numbers
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_all(attempts: Iterable[Callable[[int], Attempt[T]]], jobs: int, done: Callable[[T], None]) -> None:
    """Run attempts, `jobs` at a time.

    Args:
        attempts: each is begun with the number of its place, 0 to `jobs` - 1, which is its own while it runs.
        done: called with what each returns.
    """
    queue = iter(attempts)
    places: dict[int, tuple[Attempt[T], Child]] = {}
    free = list(range(jobs))
    more = True
    try:
        while more or places:
            while more and free:
                begun = next(queue, None)
                if begun is None:
                    more = False
                    break
                _advance(begun(free[-1]), None, places, free, free.pop(), done)
            ended = [
                (place, end) for place, (_, child) in places.items() if (end := _look(child)) is not None
            ]
            for place, end in ended:
                attempt, _ = places.pop(place)
                _advance(attempt, end, places, free, place, done)
            if not ended:
                time.sleep(_LOOK_SECONDS)
    finally:
        for _, child in places.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def _advance(
    attempt: Attempt[T],
    end: End | None,
    places: dict[int, tuple[Attempt[T], Child]],
    free: list[int],
    place: int,
    done: Callable[[T], None],
) -> None:
    try:
        child = next(attempt) if end is None else attempt.send(end)
    except StopIteration as returned:
        free.append(place)
        done(returned.value)
    else:
        places[place] = attempt, child


def _look(child: Child) -> End | None:
    pid, status, usage = os.wait4(child.pid, os.WNOHANG)
    hung = False
    if pid == 0:
        if time.monotonic() < child.deadline:
            return None
        hung = True
        os.kill(child.pid, signal.SIGKILL)
        pid, status, usage = os.wait4(child.pid, 0)
    output = child.output.read_text(errors="replace") if child.output.exists() else ""
    # faulthandler has no exit code of its own: it prints this and exits with 1.
    hung = hung or output.lstrip().startswith("Timeout (") or "\nTimeout (" in output
    return End(None if hung else os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, output)


def run_one(attempt: Attempt[T]) -> T:
    """Run one attempt and wait for it."""
    results: list[T] = []
    run_all([lambda _: attempt], 1, results.append)
    return results[0]
