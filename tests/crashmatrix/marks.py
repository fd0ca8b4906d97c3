"""How the processes of one attempt tell each other how far they are: by files in its folder.

A file is there for a process that was frozen, or that looks late, and needs nothing that a fork would have to share.
"""

import time
from pathlib import Path

READY = "ready"
"""By the bystander: it is at work."""
GONE = "gone"
"""By the harness: the first process is dead, or frozen."""
THAWED = "going on"
"""By the harness: the frozen process goes on."""
RECOVERED = "recovered"
"""By who goes on with the runs: all is at rest. Holds what it saw."""
OVER = "over"
"""By the harness: that has ended too."""

_LOOK_SECONDS = 0.005


def mark(folder: Path, name: str) -> None:
    (folder / name).touch()


def is_marked(folder: Path, name: str) -> bool:
    return (folder / name).exists()


def await_mark(folder: Path, name: str) -> None:
    """A child that waits too long is ended from outside."""
    while not is_marked(folder, name):
        time.sleep(_LOOK_SECONDS)
