"""Effects that leave a trace, and the ways a program of these tests may die."""

import os
import signal
import time
from pathlib import Path

import durable_agents
from durable_agents import DurableError

LEDGER = Path(os.environ["LEDGER"])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def effect(name: str, result: object = None) -> object:
    """Append `name` to the ledger. DIE=before:name or after:name kills the process around it."""
    if os.environ.get("DIE") == f"before:{name}":
        die()
    try:
        key = durable_agents.idempotency_key()
    except DurableError:
        key = ""
    line = f"{name}\t{key}\t{os.getpid()}\n".encode()
    file = os.open(LEDGER, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, line)
    os.fsync(file)
    os.close(file)
    if os.environ.get("DIE") == f"after:{name}":
        die()
    return name if result is None else result


def gate(name: str) -> None:
    """Wait until the test opens the gate: a file of this name in the working directory."""
    while not Path(name).exists():
        time.sleep(0.005)
