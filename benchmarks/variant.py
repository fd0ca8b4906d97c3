"""A way to run the measured agent: what `call_cost.py` measures, and what each `peers_<framework>.py` gives it."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One way to run the agent.

    Args:
        name: its line in the table.
        call: runs the agent once on a text, as a run, session or workflow of this name.
        around: entered for each round; what it costs is not counted.
        steps: how many durable steps a finished run of this name has recorded; None where there is no such thing.
    """

    name: str
    call: Callable[[str, str], Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    steps: Callable[[str], int] | None = None

    def run(self, text: str) -> str:
        """Run the agent once; the name of the run."""
        name = uuid.uuid4().hex
        self.call(text, name)
        return name


@dataclass(frozen=True)
class Setting:
    """What all variants of a framework have in common.

    Args:
        framework: how its agents are made and called: what the integration's contract test says.
        charge: the tool of the agent.
        urls: the databases, `sqlite` and `postgresql` → URL.
        folder: for files.
        awaited: runs a coroutine; always on one and the same event loop.
        closing: what is open until the end.
    """

    framework: Any
    charge: Callable[[int], str]
    urls: dict[str, str]
    folder: Path
    awaited: Callable[[Coroutine[Any, Any, Any]], Any]
    closing: ExitStack

    def agent(self) -> Any:
        return self.framework.agent(self.charge)

    def file(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def async_postgresql(self) -> str:
        """The URL for SQLAlchemy's asyncio extension."""
        return self.urls["postgresql"].replace("postgresql://", "postgresql+psycopg://")


def one_loop(closing: ExitStack) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs coroutines, all on one event loop."""
    return closing.enter_context(asyncio.Runner()).run
