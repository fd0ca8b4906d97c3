"""The runs of a test once more: each from its opening record, over its records, with a database that takes no writes.

A replay is right when it ends as the run did, every step that was recorded is served, and no body is entered of which
there is no record. A step below one that is served counts as served: it is not reached.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from durable_agents import runs
from durable_agents._core import Execution, Pause, Runner, dumps, engine, failure, rebuild
from durable_agents._core.context import RUN
from durable_agents._core.errors import EncodingError
from durable_agents._core.record import OWN_KINDS

_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of one.

    Args:
        recorded, served: how many steps the run has recorded, and how many of them the replay got.
        executed: paths whose bodies were entered without a record.
        differs: how it did not end as the run did; empty when it did.
    """

    recorded: int
    served: int
    executed: tuple[str, ...]
    differs: str

    @property
    def fault(self) -> str:
        """What is not right; empty when all is."""
        if self.differs:
            return self.differs
        if self.executed:
            return f"executed {', '.join(self.executed)}"
        return "" if self.served == self.recorded else f"served {self.served} of {self.recorded} steps"


class _Looked(dict[str, Any]):
    """Records by path, and which of them somebody has looked at."""

    def __init__(self, records: Mapping[str, Any]) -> None:
        super().__init__(records)
        self.found: set[str] = set()

    def get(self, path: str, default: Any = None) -> Any:
        if path in self:
            self.found.add(path)
        return super().get(path, default)

    def __getitem__(self, path: str) -> Any:
        self.found.add(path)
        return super().__getitem__(path)


class Watched(rebuild._Replay):
    """A replay that knows which records were looked at.

    `entered` are the paths whose bodies began; `asked` those that asked the people again, which have no records.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.records = _Looked(self.journal._known)
        self.journal._known = self.records
        self.entered: list[str] = []
        self.asked: list[str] = []
        Watched.last = self

    last: "Watched"

    def seen(self, differs: str) -> Replay:
        steps = [path for path, record in self.records.items() if record.kind not in OWN_KINDS]
        served = [path for path in steps if not self.records.found.isdisjoint(_upwards(path))]
        reached = {above for path in (*self.records, *self.asked) for above in _upwards(path)}
        executed = tuple(path for path in self.entered if path not in reached)
        return Replay(len(steps), len(served), executed, differs)


def _upwards(path: str) -> Iterator[str]:
    """The path, and those of the steps that it is part of."""
    parts = path.split("/")
    return ("/".join(parts[:length]) for length in range(len(parts), 0, -1))


def replay(run_id: str, runner: Runner) -> Replay | None:
    """Drive a run over its records; None if it has not come to an end, or a pause, of its own."""
    run = runs.Run(run_id)
    row = run._row()
    if row.state not in ("succeeded", "failed", "waiting"):
        return None
    expected = _ending(run, runner, row.state)
    raw = mock.patch.multiple(rebuild, _Replay=Watched, _as_result=lambda replay, outcome: outcome)
    with raw, _read_only():
        try:
            outcome = rebuild.rebuild(engine.current(), runner, row)
            got = _asked(outcome.questions) if isinstance(outcome, Pause) else _shown(runner, outcome)
        except Exception as error:
            got = _raised(error)
    return Watched.last.seen("" if got == expected else f"{_short(expected)} became {_short(got)}")


def _ending(run: runs.Run, runner: Runner, state: str) -> str:
    if state == "waiting":
        return _asked(run.questions)
    if state == "failed":
        return _raised(failure.decode(run._closing().value()))
    return _shown(runner, runner.decode_result(run._closing().value()))


def _asked(questions: Mapping[str, Any]) -> str:
    return f"asks {dumps(dict(sorted(questions.items())))}"


def _shown(runner: Runner, value: Any) -> str:
    try:
        return dumps(runner.codec.encode(value))
    except EncodingError:
        return repr(value)


def _raised(error: BaseException) -> str:
    return f"raises {type(error).__name__}: {error}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


@contextmanager
def _read_only() -> Iterator[None]:
    """The database takes no write of a replay."""
    store = type(engine.current().store)

    def refusing(name: str) -> Any:
        native = getattr(store, name)

        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            run = RUN.get()
            if isinstance(run, Execution) and run.muted:
                raise AssertionError(f"a replay of run {run.id!r} would write to the database")
            return native(self, *arguments, **keywords)

        return method

    with mock.patch.multiple(store, **{name: refusing(name) for name in ("execute", "transact")}):
        yield
