"""Child processes: forked from a warm process that has imported everything and started nothing, several at a time."""

import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.005
_STACK_SECONDS = 3.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class End:
    """How a child ended: exit code, or minus the signal; None when it hung and was ended for it. `cpu` in seconds."""

    code: int | None
    cpu: float
    output: str

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL


@dataclass(slots=True, eq=False)
class Child:
    """A process that runs. It prints, and dumps its stacks when it hangs, into `output`."""

    pid: int
    output: Path
    deadline: float
    is_frozen: bool = False
    _end: End | None = None

    def look(self) -> End | None:
        """How it ended; None while it runs or is frozen."""
        if self._end is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                self.is_frozen = True
            elif pid:
                self._ended(status, usage)
            elif time.monotonic() > self.deadline:
                self.end(hung=True)
        return self._end

    def thaw(self) -> None:
        self.is_frozen = False
        os.kill(self.pid, signal.SIGCONT)

    def end(self, hung: bool = False) -> None:
        """End it if it has not ended yet."""
        if self._end is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
            self._ended(status, usage, hung)

    def _ended(self, status: int, usage: resource.struct_rusage, hung: bool = False) -> None:
        output = self.output.read_text(errors="replace") if self.output.exists() else ""
        # faulthandler has no exit code of its own: it prints this and exits with 1.
        hung = hung or output.lstrip().startswith("Timeout (") or "\nTimeout (" in output
        code = None if hung else os.waitstatus_to_exitcode(status)
        self._end = End(code, usage.ru_utime + usage.ru_stime, output)
        _RUNNING.discard(self)


_RUNNING: set[Child] = set()

Look = Callable[[], Any]
"""Returns what was waited for, or None: not yet."""
Attempt = Generator[Look, Any, T]
"""Work that yields what it waits for, one after the other, and is sent what came."""


def warm() -> None:
    """Make this process ready to fork: nothing in it may run, and its memory should stay shared."""
    if threading.active_count() != 1:
        raise RuntimeError(f"a process with threads cannot be forked safely: {threading.enumerate()}")
    _build_models()
    gc.collect()
    gc.freeze()


def _build_models() -> None:
    """Build here once what each child would build anew: pydantic's validators, which wait for their first use."""
    if "pydantic" not in sys.modules:
        return
    from pydantic import BaseModel

    classes: list[type[BaseModel]] = [BaseModel]
    for model in classes:  # which grows meanwhile
        classes += model.__subclasses__()
        if not model.__pydantic_complete__:
            with contextlib.suppress(Exception):  # then its first use says what is wrong with it
                model.model_rebuild(raise_errors=False)


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
    child = Child(pid, output, time.monotonic() + timeout + _STACK_SECONDS)
    _RUNNING.add(child)
    return child


def _child(work: Callable[[], None], output: Path, timeout: float) -> None:
    code = 3
    try:
        file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(file, stream)
        _die_with_the_parent()
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


def _die_with_the_parent() -> None:
    """A frozen child cannot see that its harness was killed. Where the kernel does not either, it is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_all(attempts: Iterable[Callable[[int], Attempt[T]]], jobs: int, done: Callable[[T], None]) -> None:
    """Run attempts, `jobs` at a time.

    Args:
        attempts: each is begun with the number of its place, 0 to `jobs` - 1, which is its own while it runs.
        done: called with what each returns.
    """
    queue = iter(attempts)
    places: dict[int, tuple[Attempt[T], Look]] = {}
    free = list(range(jobs))
    more = True

    def advance(place: int, attempt: Attempt[T], came: Any) -> None:
        try:
            places[place] = attempt, attempt.send(came)
        except StopIteration as returned:
            free.append(place)
            done(returned.value)

    try:
        while more or places:
            while more and free:
                begun = next(queue, None)
                if begun is None:
                    more = False
                    break
                place = free.pop()
                advance(place, begun(place), None)
            came = [(place, found) for place, (_, look) in places.items() if (found := look()) is not None]
            for place, found in came:
                attempt, _ = places.pop(place)
                advance(place, attempt, found)
            if not came:
                time.sleep(_LOOK_SECONDS)
    finally:
        for child in list(_RUNNING):
            child.end()


def run_one(attempt: Attempt[T]) -> T:
    """Run one attempt and wait for it."""
    results: list[T] = []
    run_all([lambda _: attempt], 1, results.append)
    return results[0]
