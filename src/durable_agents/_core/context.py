"""Where the current code stands: in which run, and under which path."""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .execution import Execution
    from .runner import Runner
    from .stream import Emitted

T = TypeVar("T")
Place = tuple[int, int | None]

_RESERVED = re.compile(r"[%/#@:\x00-\x1f\x7f\ud800-\udfff]")


def escape(name: str) -> str:
    """A name as part of a path: what separates parts, and what a database refuses, as `%` and hexadecimal digits."""
    return _RESERVED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def here() -> Place:
    """The thread and asyncio task that runs: calls from one and the same are made in a repeatable order."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task) if task is not None else None


class Scope:
    """A path prefix under which steps live.

    Args:
        path: the prefix, "" at the top of a run.
        key: the prefix as the idempotency key knows it: without the attempt, which the path may hold.
        in_step: whether code in it runs inside a step.
        events: collects what is emitted inside a step until that is recorded; None commits it with the next record.
    """

    __slots__ = ("_lock", "_owners", "_running", "_uses", "events", "in_step", "key", "path")

    def __init__(
        self,
        path: str = "",
        key: str | None = None,
        *,
        in_step: bool = False,
        events: "list[Emitted] | None" = None,
    ) -> None:
        self.path, self.key, self.in_step, self.events = path, path if key is None else key, in_step, events
        self._running: set[str] = set()
        self._owners = [here()]
        self._uses: Counter[str] = Counter()
        self._lock = threading.Lock()

    def child(self, segment: str) -> str:
        return f"{self.path}/{segment}" if self.path else segment

    def child_key(self, segment: str) -> str:
        return f"{self.key}/{segment}" if self.key else segment

    @property
    def is_ours(self) -> bool:
        """Whether the calling thread and task opened the scope, or stand in for those that did."""
        return here() in self._owners

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The calling thread or task makes the scope's own calls meanwhile: the owner does nothing but wait for it."""
        place = here()
        self._owners.append(place)
        try:
            yield
        finally:
            self._owners.remove(place)

    def use(self, segment: str) -> str:
        """The segment with the number of its use in this execution: `name`, `name#2`, `name#3`, …"""
        count = self.count(segment)
        return segment if count == 1 else f"{segment}#{count}"

    def last(self, segment: str) -> str:
        """The segment with the number of its last use."""
        with self._lock:
            count = self._uses[segment]
        return segment if count <= 1 else f"{segment}#{count}"

    def count(self, what: str) -> int:
        """How often this was asked for in this execution, from 1."""
        with self._lock:
            self._uses[what] += 1
            return self._uses[what]

    def occupy(self, segment: str) -> bool:
        """Mark the segment as running; False when it already is."""
        with self._lock:
            if segment in self._running:
                return False
            self._running.add(segment)
            return True

    def vacate(self, segment: str) -> None:
        with self._lock:
            self._running.discard(segment)


RUN: ContextVar["Execution | None"] = ContextVar("durable_agents_run", default=None)
SCOPE: ContextVar[Scope | None] = ContextVar("durable_agents_scope", default=None)
ACTING: ContextVar[tuple["Runner", ...]] = ContextVar("durable_agents_acting", default=())
"""The runners called inside the current run, the innermost last."""


def lend(work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """For a task that is made only to be awaited at once: its calls are the scope's own, if its maker's are."""
    scope = SCOPE.get()
    if scope is None or not scope.is_ours:
        return work
    return _lent(scope, work)


def lend_call(work: Callable[[], T]) -> Callable[[], T]:
    """`lend` for a function that a thread runs while its caller waits for it."""
    scope = SCOPE.get()
    if scope is None or not scope.is_ours:
        return work

    def lent() -> T:
        with scope.lent():
            return work()

    return lent


async def _lent(scope: Scope, work: Coroutine[Any, Any, T]) -> T:
    with scope.lent():
        return await work


class having(AbstractContextManager[T]):
    """The variable has this value inside."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        with suppress(ValueError):  # a coroutine that is collected ends in another context
            self._variable.reset(self._token)


def inside(scope: Scope) -> AbstractContextManager[Any]:
    """Steps inside live under this scope."""
    return having(SCOPE, scope)


def acting(runner: "Runner") -> AbstractContextManager[Any]:
    """Code inside belongs to a runner that is called inside another one's run: its options hold too."""
    return having(ACTING, (*ACTING.get(), runner))


@contextmanager
def scope(segment: str, *, key: str | None = None) -> Iterator[Scope]:
    """Steps inside live under this segment of the path.

    Args:
        segment: what distinguishes this part of the run from its siblings, the same in every replay.
        key: the segment as idempotency keys see it, where the framework says that the path is a retry.
    """
    above = SCOPE.get() or Scope()
    used = above.use(segment)
    path, idempotent = above.child(used), above.child_key(used if key is None else key)
    inner = Scope(path, idempotent, in_step=above.in_step, events=above.events)
    with inside(inner):
        yield inner
