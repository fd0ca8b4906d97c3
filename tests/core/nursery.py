"""Starts programs as forks of one process that has imported the library already: a start takes 20 ms instead of 800.

A forked program is a process of its own all the same: it has its own pid, launches its own engine, and is killed like
any other. `python nursery.py FD`: the socket to serve. Each request on it is a JSON line with the file descriptors of
the program's stdin, its output and the pipe that its exit code is written to.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Nursery:
    """The parent of the programs. `sources` is its `PYTHONPATH`."""

    def __init__(self, sources: Sequence[Path]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources)), "PYTHONUNBUFFERED": "1"},
                pass_fds=[theirs.fileno()],
            )
        self._socket, self._lock = ours, threading.Lock()

    def fork(
        self, program: Path, arguments: Sequence[str], environment: dict[str, str], log: Path
    ) -> "Forked":
        """Run a program with its output in `log`, in the folder of that."""
        stdin, feed = os.pipe()
        ended, end = os.pipe()
        with log.open("w") as output, self._lock:
            request = [str(program), list(arguments), environment, str(log.parent)]
            socket.send_fds(self._socket, [json.dumps(request).encode()], [stdin, output.fileno(), end])
            os.close(stdin)
            os.close(end)
            pid = int(self._socket.recv(20))
        return Forked(pid, os.fdopen(feed, "w"), ended)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class Forked:
    """A program that a nursery has started, as far as `subprocess.Popen` is needed to handle one."""

    def __init__(self, pid: int, stdin: Any, ended: int) -> None:
        self.pid, self.stdin, self._ended = pid, stdin, ended
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._within(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._within(timeout)) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _within(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], seconds)[0]:
            self.returncode = int(os.read(self._ended, 20))
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # until its parent has reaped it, nobody else can have this pid
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(requests: socket.socket) -> tuple[str, list[str]] | None:
    """Fork for every request, and say how the children end; in a child, what it has to run."""
    ends: dict[int, int] = {}
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1000)
            _reap(ends)
        if requests.fileno() not in ready:
            continue
        request, files, _, _ = socket.recv_fds(requests, 1_000_000, 3)
        if not request:
            return None
        program, arguments, environment, folder = json.loads(request)
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for old in (requests.detach(), woken, wake, *ends.values()):
                os.close(old)
            for number, file in ((0, files[0]), (1, files[1]), (2, files[1])):
                os.dup2(file, number)
            for file in files:
                os.close(file)
            os.environ.update(environment)
            os.chdir(folder)
            return program, arguments
        ends[pid] = files.pop()
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())


def _reap(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        os.write(ends[pid], str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ends.pop(pid))


if __name__ == "__main__":
    import durable_agents  # noqa: F401
    import plain  # noqa: F401
    from durable_agents._core.store import postgres, sqlite  # noqa: F401

    if (child := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        # From here on this process is the program, down to its exit handlers.
        sys.argv = [child[0], *child[1]]
        runpy.run_path(child[0], run_name="__main__")
