"""Effects that leave a trace, and the ways a program of these tests may die."""

import os
import signal
import sys
import time
from pathlib import Path

import durable_agents
from durable_agents import DurableError

LEDGER = Path(os.environ["LEDGER"])


def say(line: str) -> None:
    """`print` in one write: another thread may be logging into the same file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def effect(name: str, result: object = None, pid: int | None = None) -> object:
    """Append `name` to the ledger, with its key and whose it is. DIE=before:name or after:name kills around it."""
    if os.environ.get("DIE") == f"before:{name}":
        die()
    try:
        key = durable_agents.idempotency_key()
    except DurableError:
        key = ""
    line = f"{name}\t{key}\t{pid or os.getpid()}\n".encode()
    file = os.open(LEDGER, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, line)
    os.fsync(file)
    os.close(file)
    if os.environ.get("DIE") == f"after:{name}":
        die()
    return name if result is None else result


def gate(*names: str) -> None:
    """Wait until the test opens the gate: a file of one of these names in the working directory."""
    while not any(Path(name).exists() for name in names):
        time.sleep(0.005)
