"""What the demo's processes leave behind, on disk before they go on: a process that is killed cannot tell anything."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """Something that reached the world outside.

    Args:
        step: the tool that asked, or the node whose model did.
        pid: the process it came from.
        key: the idempotency key, where the service takes one.
        effect: whether anything happened; the card provider pays nothing for a key that it knows.
    """

    step: str
    pid: int
    key: str
    effect: bool


@dataclass(frozen=True, slots=True)
class Line:
    """Something that a process tells: a step that ended, or a note.

    Args:
        pid, at: which process, and when on the machine's monotonic clock.
        node, step: where the step is, and its name as in `Request`.
    """

    pid: int
    at: float
    node: str = ""
    step: str = ""
    note: str = ""


def requests(folder: Path) -> list[Request]:
    return [Request(**data) for data in _read(folder / "ledger")]


def enter(folder: Path, step: str, key: str, effect: bool) -> None:
    _append(folder / "ledger", asdict(Request(step, os.getpid(), key, effect)))


def told(folder: Path) -> list[Line]:
    return [Line(**data) for data in _read(folder / "told")]


def tell(folder: Path, *, node: str = "", step: str = "", note: str = "") -> None:
    _append(folder / "told", asdict(Line(os.getpid(), time.monotonic(), node, step, note)))


def _append(file: Path, data: dict[str, Any]) -> None:
    descriptor = os.open(file, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, json.dumps(data).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(file: Path) -> list[dict[str, Any]]:
    whole_lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in whole_lines]
