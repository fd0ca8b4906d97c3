"""Steps: code that runs once ever under its path, and returns its record afterwards.

A path is the scopes around the step and its own `kind:name:key`. It never depends on the order in which parallel calls
happen to arrive: those are told apart by a key from the framework, or by their input.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from . import failure
from .codec import JSON, Codec, dumps
from .context import RUN, SCOPE, Scope, inside
from .errors import ConcurrentPathError, DivergedError, DurableError, EncodingError, ResultNotRecorded
from .log import logger
from .record import Draft, Record, Usage, now_us

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")
Effect = Literal["at_least_once", "rerun"]


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a step in this execution: its path, and all that is the same for every kind of body.

    An integration whose body is neither a function nor a coroutine, such as a stream, works by hand: it serves
    `value_of(recorded())`, or runs the body inside `running()` and commits `draft(…)`.
    """

    run: "Execution"
    kind: str
    name: str
    scope: Scope
    path: str
    key: str
    input: str
    codec: Codec
    leaf: bool
    usage: Callable[[Any], Usage | None] | None
    attempt: int
    started: int

    def recorded(self) -> Record | None:
        """The record to serve instead of running the body, or None.

        A tool that is called with other arguments than were recorded (`DivergedError`), and a leaf whose result could
        not be stored (`ResultNotRecorded`), end the run: the framework is not asked, it might go on another way.
        """
        record = self.run.journal.known.get(self.path)
        if record is None:
            return None
        if record.status == "opaque":
            if not self.leaf:
                return None  # a container runs again; the steps inside it are served
            raise self.run.abort(
                ResultNotRecorded(
                    f"step {self.path!r} of run {self.run.id!r} finished before, but its result could not be stored "
                    f"({record.value()['reason']}); running it again would repeat its effect"
                )
            )
        if self.input and record.body.get("in", self.input) != self.input:
            if self.kind == "tool":
                raise self.run.abort(
                    DivergedError(
                        f"step {self.path!r} of run {self.run.id!r} was recorded with other arguments than the "
                        f"replay gives it: the code before it changed, or depends on something that is no step. "
                        f"Nothing ran, and nothing is lost"
                    )
                )
            logger.warning("step %r of run %r is served although its input changed", self.path, self.run.id)
        self.run.served += 1
        return record

    def value_of(self, record: Record) -> Any:
        """The recorded result; a recorded error is raised."""
        if record.status == "error":
            raise failure.decode(record.value())
        return self.codec.decode(record.value())

    def draft(self, result: Any = None, error: Exception | None = None) -> Draft:
        """The record of a body that returned `result` or raised `error`."""
        status, payload, usage = "", "null", None
        if error is not None:
            status, payload = "error", dumps(failure.encode(error))
        else:
            try:
                payload = dumps(self.codec.encode(result))
            except EncodingError as reason:
                status, payload = "opaque", dumps({"reason": str(reason)})
                logger.warning(
                    "step %r of run %r: its result is not stored: %s", self.path, self.run.id, reason
                )
            usage = self.usage(result) if self.usage else None
        return Draft(
            self.kind, self.path, payload, name=self.name, status=status, started=self.started, input=self.input,
            attempt=self.attempt, usage=usage,
        )  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[None]:
        """The body runs inside: under its own scope, and counted as in flight until its record is written."""
        if not self.scope.occupy(self.path):
            raise ConcurrentPathError(
                f"two steps of run {self.run.id!r} run under {self.path!r} at once: give each a key"
            )
        self.run.enter(self.leaf)
        try:
            with inside(Scope(self.path, self.key)):
                yield
        finally:
            self.run.leave(self.leaf)
            self.scope.vacate(self.path)

    def do(self, body: Callable[[], T]) -> T:
        """The recorded result, or run the body and record what came of it."""
        if (record := self.recorded()) is not None:
            served: T = self.value_of(record)
            return served
        with self.running():
            try:
                result = body()
            except Exception as error:
                if not self.is_signal(error):
                    self.run.journal.commit(self.draft(error=error))
                raise
            self.run.journal.commit(self.draft(result))
        return result

    async def ado(self, body: Callable[[], Awaitable[T]]) -> T:
        """`do` for a coroutine function. A caller that is cancelled does not cancel the writing of the record."""
        if (record := self.recorded()) is not None:
            served: T = self.value_of(record)
            return served
        with self.running():
            try:
                result = await body()
            except Exception as error:
                if not self.is_signal(error):
                    await self.run.commit(self.draft(error=error))
                raise
            await self.run.commit(self.draft(result))
        return result

    def is_signal(self, error: Exception) -> bool:
        """Whether the framework raises this to steer, so that it is no failure of the step."""
        return isinstance(error, (*self.run.runner.signals, DurableError))


def begin(
    kind: str,
    name: str,
    *,
    key: str = "",
    input: str = "",
    codec: Codec = JSON,
    leaf: bool = True,
    usage: Callable[[Any], Usage | None] | None = None,
    attempt: int = 1,
) -> Call | None:
    """The call at this place of the run, or None outside a run. `step` explains the arguments."""
    run = RUN.get()
    if run is None:
        return None
    scope = SCOPE.get() or run.top
    digest = run.digest(input) if input else ""
    segment = ":".join(part for part in (kind, name, key) if part)
    if not key and not scope.is_ours:
        if not digest:
            raise ConcurrentPathError(
                f"step {segment!r} of run {run.id!r} is called from another thread or task than "
                f"{scope.path or 'the run'!r} and has neither a key nor an input to be told apart by"
            )
        segment = f"{segment}:{digest[:12]}"
    marked = segment if attempt == 1 else f"{segment}@{attempt}"
    used = scope.use(marked)
    again = used.removeprefix(marked)
    path, idempotent = scope.child(used), scope.child_key(segment + again)
    return Call(run, kind, name, scope, path, idempotent, digest, codec, leaf, usage, attempt, now_us())


def step(
    kind: str,
    name: str,
    call: Callable[[], T],
    *,
    key: str = "",
    input: str = "",
    codec: Codec = JSON,
    effect: Effect = "at_least_once",
    leaf: bool = True,
    usage: Callable[[T], Usage | None] | None = None,
    attempt: int = 1,
) -> T:
    """Run `call` once ever at this place of the run, and return its record afterwards. Outside a run: just call it.

    Args:
        kind: what the step is: node, task, model, tool, guardrail, handoff, state.
        name: the framework's name of it.
        key: what tells it from others of the same name here, the same in every replay; "" for order of use, or, in
            calls from other threads and tasks than the scope's own, for the input.
        input: text of the input. A digest of it is recorded; a tool replayed with another one raises.
        codec: the result as JSON, and back.
        effect: "at_least_once", or "rerun" for a step that acts only in memory: it always runs and is not recorded.
        leaf: False for a step whose body is made of steps.
        usage: reads what a model consumed off the result.
        attempt: the framework's own number of this try, from 1; part of the path, not of the idempotency key.

    Raises:
        ConcurrentPathError: the path is in use. What `call` raises is recorded and raised.
    """
    at = begin(kind, name, key=key, input=input, codec=codec, leaf=leaf, usage=usage, attempt=attempt)
    if at is None:
        return call()
    if effect == "rerun":
        with inside(Scope(at.path, at.key)):
            return call()
    return at.do(call)


async def astep(
    kind: str,
    name: str,
    call: Callable[[], Awaitable[T]],
    *,
    key: str = "",
    input: str = "",
    codec: Codec = JSON,
    effect: Effect = "at_least_once",
    leaf: bool = True,
    usage: Callable[[T], Usage | None] | None = None,
    attempt: int = 1,
) -> T:
    """`step` for a coroutine function."""
    at = begin(kind, name, key=key, input=input, codec=codec, leaf=leaf, usage=usage, attempt=attempt)
    if at is None:
        return await call()
    if effect == "rerun":
        with inside(Scope(at.path, at.key)):
            return await call()
    return await at.ado(call)


def idempotency_key() -> str:
    """A key for the effect of the current step: the same in every try, restart and worker, another in every other step.

    Give it to the payment provider, the mail service, the database.

    Returns:
        32 hexadecimal digits.

    Raises:
        DurableError: called outside a step of a durable run.
    """
    run, scope = RUN.get(), SCOPE.get()
    if run is None or scope is None or not scope.key:
        raise DurableError("idempotency_key() is known only inside a step of a durable run")
    return hashlib.sha256(f"{run.id}\0{scope.key}".encode()).hexdigest()[:32]


def is_replaying() -> bool:
    """Whether the run is still going over what it has recorded before: hooks that must act once look here."""
    run = RUN.get()
    return run is not None and run.replaying
