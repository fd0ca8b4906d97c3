"""How the processes of one attempt tell each other how far they are: by empty files in its folder.

A file is there for a process that was frozen, or that looks late, and needs nothing that a fork would have to share.
"""

import time
from pathlib import Path

READY = "ready"
"""By the bystander: it is at work."""
GONE = "gone"
"""By the harness: the first process is dead, or frozen."""
THAWED = "thawed"
"""By the harness: the frozen process goes on."""
OVER = "over"
"""By the harness: that has ended too."""

_LOOK_SECONDS = 0.002


def mark(folder: Path, name: str) -> None:
    (folder / name).touch()


def is_marked(folder: Path, name: str) -> bool:
    return (folder / name).exists()


def await_mark(folder: Path, name: str) -> None:
    """A child that waits too long is ended from outside."""
    while not is_marked(folder, name):
        time.sleep(_LOOK_SECONDS)
