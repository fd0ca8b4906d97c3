"""One of the two ways to run the agent: its processes, what they did, and how that looks in a terminal."""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ledger import Line, requests, told
from shop import hangs

PATIENCE = 30.0  # seconds
FORK = multiprocessing.get_context("fork")
COLOURED = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
COLOURS = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def paint(text: str, *colours: str) -> str:
    codes = ";".join(str(COLOURS[colour]) for colour in colours)
    return f"\x1b[{codes}m{text}\x1b[0m" if COLOURED and codes else text


def say(text: str = "", *colours: str) -> None:
    print(paint(text, *colours), flush=True)


class Side:
    """Two processes that work in one folder, one after the other."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.processes: list[BaseProcess] = []
        self._born: list[float] = []

    def fork(self, work: Callable[..., None], *arguments: Any) -> None:
        self._born.append(time.monotonic())
        process = FORK.Process(target=work, args=(self.folder, *arguments))
        process.start()
        self.processes.append(process)

    def hangs(self) -> bool:
        """Whether the first process waits for the request that is never answered."""
        return hangs(self.folder) or not self.processes[0].is_alive()

    def kill(self) -> None:
        """End the first process with SIGKILL."""
        self.processes[0].kill()
        self.processes[0].join()

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > deadline:
                sys.exit(f"gave up: nothing has come of it for {PATIENCE:.0f} s")
            time.sleep(0.005)

    def is_over(self) -> bool:
        return not self.processes[1].is_alive()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    # -- what happened; `number` is 0 for the first process, 1 for the second

    def lines(self, number: int) -> list[Line]:
        return [line for line in told(self.folder) if line.pid == self.processes[number].pid]

    def ran(self, number: int) -> list[str]:
        """Steps that reached the world outside."""
        return [
            request.step for request in requests(self.folder) if request.pid == self.processes[number].pid
        ]

    def ended(self, number: int) -> list[str]:
        """Steps that ended, whether they ran or came from their records."""
        return [line.step for line in self.lines(number) if line.step]

    def repeated(self) -> list[str]:
        """Steps that had ended in the first process and ran in the second all the same."""
        return [step for step in self.ran(1) if step in self.ended(0)]

    def cut(self) -> list[str]:
        """Steps that the kill cut between their effect and their end, and that ran again."""
        return [step for step in self.ran(1) if step in self.ran(0) and step not in self.ended(0)]

    def effects(self) -> Counter[str]:
        """How often each step had an effect outside."""
        return Counter(request.step for request in requests(self.folder) if request.effect)

    def age(self, number: int) -> float:
        """Seconds since the process was born."""
        return time.monotonic() - self._born[number]

    def first_new(self) -> float:
        """Seconds from the kill to the first step that ran in the second process."""
        return next(line.at for line in self.lines(1) if line.step in self.ran(1)) - self._born[1]

    # -- how it looks

    def introduce(self, number: int, what: str) -> None:
        say(f"  {paint(f'process {self.processes[number].pid}', 'bold')}  {what}")

    def show(self, number: int, until: Callable[[], bool], start: int = 0) -> int:
        """Print what a process tells, as it tells it, from the line `start` on; how many lines there are."""
        shown = start

        def show_more() -> bool:
            nonlocal shown
            over = until()
            for line in self.lines(number)[shown:]:
                say(f"  {line.at - self._born[number]:5.2f} s   {self._shown(line, number)}")
                shown += 1
            return over

        self.wait(show_more)
        return shown

    def tell_kill(self, place: str) -> None:
        step, _, after = place.partition(":")
        code = self.processes[0].exitcode
        if code == -signal.SIGKILL:
            where = "right after the effect of" if after else "in the middle of"
            say(f"            {paint('SIGKILL', 'red', 'bold')} {where} {step} (exit code {code})")
        else:
            say(f"            {paint(f'it ended without reaching {step} (exit code {code})', 'red')}")

    def _shown(self, line: Line, number: int) -> str:
        if line.note:
            return paint(line.note, "yellow")
        if line.step not in self.ran(number):
            how = paint("from its record", "green", "bold")
        elif number and line.step in self.ended(0):
            how = paint("ran AGAIN", "red", "bold")
        elif number and line.step in self.cut():
            how = paint("ran again: it was cut off", "yellow")
        else:
            how = "ran"
        return f"{line.node:<8} {'model' if line.step == line.node else line.step:<17} {how}"
