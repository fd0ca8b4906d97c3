"""The demo, killed in two places: it holds what it prints, in a terminal and in a pipe."""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "demo" / "demo.py"


@dataclass(frozen=True)
class Shown:
    code: int
    text: str
    temp: Path

    def between(self, start: str, end: str) -> str:
        """What is printed from the line with `start` to the line with `end`."""
        return self.text[self.text.index(start) :].split(end)[0]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]: ...
