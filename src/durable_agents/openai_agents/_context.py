"""The user's context object: what a step has changed in it is recorded with the step, and made again on replay.

Changes are seen per attribute (per key of a dict), by value. Of several steps the one recorded last has the last word
on an attribute, in a replay too. Steps that run beside each other are told apart by when each of them ran: the object
is looked at whenever one of their coroutines is left, and whenever a function of theirs has returned in its thread.

Not seen: changes inside of attributes that have no durable form, such as a client. Two steps that change one attribute
at the same time are not told apart: when a crash cuts one off, its change may be there already as it runs again.
"""

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .._core import Call, Codec, Execution, dumps, logger
from .._core.errors import EncodingError
from . import _private

T = TypeVar("T")

_WHOLE = "*"
"""Stands for the content of a context that is a list or a set itself."""
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step returned, and what it did to the context."""

    value: Any
    changed: dict[str, Any] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


class OutcomeCodec:
    """An `Outcome` whose value another codec codes. What a person says a tool has returned is a value alone."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, outcome: Any) -> Any:
        if not isinstance(outcome, Outcome):
            return {"value": self._codec.encode(outcome)}
        data = {"value": self._codec.encode(outcome.value)}
        if outcome.changed:
            data["changed"] = outcome.changed  # as its own JSON already
        if outcome.removed:
            data["removed"] = outcome.removed
        return data

    def decode(self, data: Any) -> Any:
        return Outcome(
            self._codec.decode(data["value"]), dict(data.get("changed", {})), list(data.get("removed", []))
        )


async def astep_on_context(call: Call, context: Any, codec: Codec, body: Callable[[], Awaitable[T]]) -> T:
    """`call.ado(body)` that records the changes of `context` too, and makes them again when it serves the record."""
    watches: dict[int, _Watch] = call.run.memory.setdefault("contexts", {})
    watch = watches.setdefault(id(context), _Watch(context, codec))
    ran = False

    async def watched() -> Outcome:
        nonlocal ran
        ran = True
        with watch.flight() as flight:
            value = await _Stepped(body(), flight)
            return Outcome(value, *flight.difference())

    outcome: Outcome = await call.ado(watched)
    if outcome.changed or outcome.removed:
        watch.settle(call.run.journal.known[call.path].seq, outcome, made=ran)
    value: T = outcome.value
    return value


def changes_of(run: Execution, context: Any) -> dict[str, Any]:
    """What the recorded steps have changed in a context, as it is at the end of the run."""
    watch: _Watch | None = run.memory.get("contexts", {}).get(id(context))
    return {"changed": {}, "removed": []} if watch is None else watch.all_changes()


def make_changes(context: Any, changes: Mapping[str, Any], codec: Codec) -> None:
    """Make the changes of another process's context in this one."""
    for name, value in changes["changed"].items():
        _put(context, name, codec.decode(value))
    for name in changes["removed"]:
        _parts(context).pop(name, None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """An attribute at one moment: its JSON and text, or, of one without durable form, which object it was."""

    data: Any
    text: str | None
    identity: int


class _Watch:
    """One context object in one execution."""

    def __init__(self, context: Any, codec: Codec) -> None:
        self._context, self._codec = context, codec
        self._lock = threading.Lock()
        self._flights: set[_Flight] = set()
        self._last: dict[str, _Seen] = {}
        self._from: dict[str, int] = {}
        """Which record each attribute has its value from."""

    def flight(self) -> "_Flight":
        return _Flight(self)

    @property
    def is_shared(self) -> bool:
        """Whether several steps run."""
        return len(self._flights) > 1

    def begin(self, flight: "_Flight") -> None:
        with self._lock:
            if not self._flights:
                self._last = self._snapshot()  # what code between the steps has changed is no step's
            elif len(self._flights) == 1:
                self._look(next(iter(self._flights)))
            self._flights.add(flight)

    def look(self, flight: "_Flight") -> None:
        """What has changed since somebody looked was changed by this step."""
        with self._lock:
            self._look(flight)

    def look_before(self, flight: "_Flight") -> None:
        """The step goes on: what has changed meanwhile was changed by the only other one that runs in a thread."""
        with self._lock:
            others = [other for other in self._flights if other is not flight and other.threads]
            if len(others) == 1 and not flight.threads:
                self._look(others[0])

    def _look(self, flight: "_Flight") -> None:
        now = self._snapshot()
        for name in {*now, *self._last}:
            if self._text(now, name) != self._text(self._last, name):
                flight.names.add(name)
        self._last = now

    @staticmethod
    def _text(seen: dict[str, _Seen], name: str) -> Any:
        if (at := seen.get(name)) is None:
            return None
        return at.text if at.text is not None else at.identity

    def end(self, flight: "_Flight") -> None:
        with self._lock:
            self._flights.discard(flight)

    def difference(self, flight: "_Flight") -> tuple[dict[str, Any], list[str]]:
        """The attributes that the step has changed, as they are now, and those it has removed."""
        changed, removed = {}, []
        for name in sorted(flight.names):
            seen = self._last.get(name)
            if seen is None:
                removed.append(name)
            elif seen.text is not None:
                changed[name] = seen.data
            else:
                why = "was set to something that cannot be recorded; after a crash it is not there"
                logger.warning("the context's %r %s", name, why)
        return changed, removed

    def all_changes(self) -> dict[str, Any]:
        now, names = self._snapshot(), sorted(self._from)
        changed = {name: now[name].data for name in names if name in now and now[name].text is not None}
        return {"changed": changed, "removed": [name for name in names if name not in now]}

    def settle(self, seq: int, outcome: Outcome, made: bool) -> None:
        """The changes are recorded under this number; make them, when the step did not run here."""
        for name in (*outcome.changed, *outcome.removed):
            if self._from.get(name, 0) >= seq:
                continue
            self._from[name] = seq
            if made:
                continue
            if name in outcome.changed:
                _put(self._context, name, self._codec.decode(outcome.changed[name]))
            else:
                _parts(self._context).pop(name, None)

    def _snapshot(self) -> dict[str, _Seen]:
        for _ in range(_TRIES):
            try:
                return {name: self._seen(value) for name, value in list(_parts(self._context).items())}
            except RuntimeError:
                continue  # changed by a thread while it was looked at
        return self._last

    def _seen(self, value: Any) -> _Seen:
        try:
            data = self._codec.encode(value)
            return _Seen(data, dumps(data), id(value))
        except EncodingError:
            return _Seen(None, None, id(value))


class _Flight:
    """A step that runs and may change the context."""

    def __init__(self, watch: _Watch) -> None:
        self.watch, self.names, self.threads = watch, set[str](), 0

    def __enter__(self) -> "_Flight":
        self.watch.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.end(self)

    def difference(self) -> tuple[dict[str, Any], list[str]]:
        self.watch.look(self)
        return self.watch.difference(self)


FLIGHT: ContextVar[_Flight | None] = ContextVar("durable_agents_openai_flight", default=None)


class _Stepped(Awaitable[T]):
    """A coroutine that is watched at each of its stops, while others run."""

    def __init__(self, work: Awaitable[T], flight: _Flight) -> None:
        self._work, self._flight = work, flight

    def __await__(self) -> Generator[Any, Any, T]:
        token = FLIGHT.set(self._flight)
        try:
            steps = self._work.__await__()
            resume: Callable[[], Any] = lambda: next(steps)  # noqa: E731
            while True:
                if self._flight.watch.is_shared:
                    self._flight.watch.look_before(self._flight)
                try:
                    waits_for = resume()
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    if self._flight.watch.is_shared:
                        self._flight.watch.look(self._flight)
                try:
                    sent = yield waits_for
                except BaseException as error:
                    resume = _throwing(steps, error)
                else:
                    resume = _sending(steps, sent)
        finally:
            with suppress(ValueError):  # a coroutine that is collected ends in another context
                FLIGHT.reset(token)


def _throwing(steps: Generator[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: steps.throw(error)


def _sending(steps: Generator[Any, Any, Any], sent: Any) -> Callable[[], Any]:
    return lambda: steps.send(sent)


# -- functions in threads


class _Asyncio:
    """`asyncio` as the SDK's tool module sees it: a sync tool's function is watched where it ends, in its thread."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def to_thread(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        flight = FLIGHT.get()
        if flight is None:
            return await asyncio.to_thread(function, *args, **kwargs)

        def watched() -> T:
            flight.threads += 1
            try:
                return function(*args, **kwargs)
            finally:
                flight.threads -= 1
                if flight.watch.is_shared:
                    flight.watch.look(flight)

        return await asyncio.to_thread(watched)


def install() -> None:
    """Put the cut in."""
    _private.tool.asyncio = _Asyncio()


# -- the object's attributes


def _parts(context: Any) -> dict[str, Any]:
    """The attributes of a context by name, as its own dictionary where it has one."""
    if isinstance(context, dict):
        return context
    if isinstance(context, list | set):
        return {_WHOLE: context}
    if hasattr(context, "__dict__"):
        attributes: dict[str, Any] = vars(context)
        return attributes
    if dataclasses.is_dataclass(context):
        return {
            f.name: getattr(context, f.name) for f in dataclasses.fields(context) if hasattr(context, f.name)
        }
    return {}


def refill(context: Any, source: Any) -> bool:
    """Make a context what a recorded one of the same type was; False when they are no two of a kind."""
    if context is source or type(context) is not type(source):
        return context is source
    parts, wanted = _parts(context), _parts(source)
    for name in [name for name in parts if name not in wanted]:
        parts.pop(name)
    for name, value in wanted.items():
        _put(context, name, value)
    return True


def _put(context: Any, name: str, value: Any) -> None:
    """Set an attribute; a list, dict or set that is there already gets the content, as others may hold it."""
    there: Any = _parts(context).get(name)
    if type(there) is list and type(value) is list:
        there[:] = value
    elif type(there) in (dict, set) and type(value) is type(there):
        there.clear()
        there.update(value)
    elif isinstance(context, dict):
        context[name] = value
    elif hasattr(context, "__dict__"):
        vars(context)[name] = value
    else:
        object.__setattr__(context, name, value)
