"""Steps: code that runs once ever under its path, and returns its record afterwards.

A path is the scopes around the step and its own `kind:name:key`. It never depends on the order in which parallel calls
happen to arrive: those are told apart by a key from the framework, or by their input.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from . import effects, failure
from .codec import JSON, Codec, dumps
from .context import ACTING, RUN, SCOPE, Scope, escape, inside
from .errors import ConcurrentPathError, DivergedError, DurableError, ResultNotRecorded, RunReleased
from .log import logger
from .outlast import outlast
from .record import Draft, Record, Usage, now_us

if TYPE_CHECKING:
    from .execution import Execution
    from .stream import Emitted

T = TypeVar("T")
Effect = Literal["at_least_once", "at_most_once", "rerun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One use of a step in this execution: its path, and all that is the same for every kind of body.

    A body that is a function or a coroutine is run by `do` and `ado`, one that yields by `parts` and `aparts`.
    """

    run: "Execution"
    kind: str
    name: str
    scope: Scope
    segment: str
    alone: bool
    path: str
    key: str
    input: str
    text: str
    codec: Codec
    leaf: bool
    user_code: bool
    at_most_once: bool
    usage: Callable[[Any], Usage | None] | None
    signals: tuple[type[Exception], ...]
    attempt: int
    started: int
    emitted: "list[Emitted]" = field(default_factory=list)

    @property
    def outlasts(self) -> bool:
        """Whether the body goes on to its end when the caller of the run is cancelled."""
        return self.kind != "model"

    # -- from the record

    def recorded(self) -> Record | None:
        """The record to serve instead of running the body, or None.

        A tool that is called with other arguments than were recorded (`DivergedError`), and a body that acts and whose
        result could not be stored (`ResultNotRecorded`), end the run: the framework is not asked, it might go on
        another way.
        """
        record = self.run.journal.known.get(self.path)
        if record is None:
            return None
        if record.status == "opaque":
            if not self._acts:
                return None  # a container runs again; the steps inside it are served
            raise self.run.abort(self._lost_result(record))
        if self.input and record.body.get("in", self.input) != self.input:
            if self.kind == "tool":
                raise self.run.abort(self._diverged())
            logger.warning("step %r of run %r is served although its input changed", self.path, self.run.id)
        return record

    def finished(self) -> Record | None:
        """`recorded()`, or what somebody has said became of a tool that was cut off; None when the body is to run."""
        if (record := self.recorded()) is None and (settled := effects.settled(self)) is not None:
            record = self.run.journal.commit(settled)
        return record

    async def afinished(self) -> Record | None:
        """`finished` for a caller on an event loop."""
        if (record := self.recorded()) is None and (settled := effects.settled(self)) is not None:
            record = await self.run.commit(settled)
        return record

    def value_of(self, record: Record) -> Any:
        """The recorded result; a recorded error is raised."""
        try:
            value = record.value()
            if record.status != "error":
                return self.codec.decode(value)
        except DurableError as broken:  # changed, redacted, or of a type that is not allowed any more
            raise self.run.abort(broken) from None
        error = failure.decode(value)
        failure.tag(error, self.run.id, self.path)
        raise error

    def _lost_result(self, record: Record) -> ResultNotRecorded:
        return ResultNotRecorded(
            f"step {self.path!r} of run {self.run.id!r} finished before, but its result could not be stored "
            f"({record.value()['reason']}); running it again would repeat its effect"
        )

    def _diverged(self) -> DivergedError:
        return DivergedError(
            f"step {self.path!r} of run {self.run.id!r} was recorded with other arguments than the replay gives it: "
            f"the code before it changed, or depends on something that is no step. Nothing ran, and nothing is lost"
        )

    # -- running the body

    def do(self, body: Callable[[], T]) -> T:
        """The recorded result, or run the body and record what came of it."""
        if (record := self.finished()) is not None:
            served: T = self.value_of(record)
            return served
        with self.running():
            if self.at_most_once:
                self.run.journal.commit(effects.mark(self))
            try:
                result = body()
            except Exception as error:
                if (ended := self.ended_by(error)) is not None:
                    self.run.journal.commit(ended)
                raise
            self.run.journal.commit(self.draft(result))
        return result

    async def ado(self, body: Callable[[], Awaitable[T]]) -> T:
        """`do` for a coroutine function."""
        if (record := await self.afinished()) is not None:
            served: T = self.value_of(record)
            return served
        if not self.run.is_surely_ours:
            await self.run.in_thread(self.run.confirm)
        with self.running():
            if self.at_most_once:
                await self.run.commit(effects.mark(self))
            if not self.outlasts:
                return await self._to_its_end(body)
            return await outlast(self.run, lambda: self._to_its_end(body))

    async def _to_its_end(self, body: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await body()
        except Exception as error:
            if (ended := self.ended_by(error)) is not None:
                await self.run.commit(ended)
            raise
        await self.run.commit(self.draft(result))
        return result

    @contextmanager
    def running(self) -> Iterator[None]:
        """The body runs inside: under its own scope, and counted as in flight until its record is written."""
        if self.alone and not self.scope.occupy(self.segment):
            two = f"two steps of run {self.run.id!r} run under {self.path!r} at once: give each a key of its own"
            raise self.run.abort(ConcurrentPathError(two))
        try:
            with self.in_flight(), inside(self.inner()):
                yield
        finally:
            if self.alone:
                self.scope.vacate(self.segment)

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """The step counts as under way: the run neither parks nor ends, nor the process, before it is recorded."""
        self.run.enter(self._acts)
        try:
            with self.run.body():
                yield
        finally:
            self.run.leave(self._acts)

    @property
    def _acts(self) -> bool:
        """Whether the body does more than its steps. To rebuild a result none of the user's own code runs again."""
        return self.leaf or (self.user_code and self.run.muted)

    def inner(self) -> Scope:
        """The scope of what runs inside the step."""
        return Scope(self.path, self.key, in_step=True, events=self.emitted if self.leaf else None)

    def unrecorded(self) -> Scope:
        """The scope of a body that always runs: what it emits is known by its place, as between steps."""
        return Scope(self.path, self.key, in_step=True, events=self.scope.events)

    @property
    def idempotency_key(self) -> str:
        """See the function of this name."""
        return _key(self.run.id, self.key)

    def is_signal(self, error: Exception) -> bool:
        """Whether the framework raises this to steer, or the process shuts down: it is no failure of the step."""
        return isinstance(error, (RunReleased, *self.signals))

    def ended_by(self, error: Exception) -> Draft | None:
        """The record of a body that raised; None when the framework or a shutdown ended it, and it will run again."""
        if not self.is_signal(error):
            return self.draft(error=error)
        return self.paused() if isinstance(error, self.signals) else None

    def paused(self) -> Draft | None:
        """The record that the framework, and no crash, ended a tool that may not be cut off."""
        return effects.paused(self) if self.at_most_once else None

    # -- recording

    def draft(self, result: Any = None, error: Exception | None = None) -> Draft:
        """The record of a body that returned `result` or raised `error`. Whatever is odd, its effect has happened."""
        status, payload, usage = "", "null", None
        if error is not None:
            failure.tag(error, self.run.id, self.path)
            status, payload = "error", dumps(failure.encode(error))
        else:
            try:
                payload = dumps(self.codec.encode(result))
            except Exception as reason:
                status, payload = "opaque", dumps({"reason": failure.text(reason)})
                logger.warning(
                    "step %r of run %r: its result is not stored: %s", self.path, self.run.id, reason
                )
            usage = self._usage(result)
        return Draft(
            self.kind,
            self.path,
            payload,
            name=self.name,
            status=status,
            started=self.started,
            input=self.input,
            attempt=self.attempt,
            usage=usage,
            events=tuple(self.emitted),
        )

    def _usage(self, result: Any) -> Usage | None:
        try:
            used = self.usage(result) if self.usage else None
            dumps(None if used is None else used.to_json())
            return used
        except Exception:
            logger.exception("step %r of run %r: its usage cannot be read", self.path, self.run.id)
            return None


def begin(
    kind: str,
    name: str,
    *,
    key: str = "",
    input: str = "",
    codec: Codec = JSON,
    leaf: bool = True,
    user_code: bool = False,
    usage: Callable[[Any], Usage | None] | None = None,
    attempt: int = 1,
    ordered: bool = False,
    effect: Effect = "at_least_once",
) -> Call | None:
    """The call at this place of the run, or None outside a run. `step` explains the arguments.

    Args:
        user_code: of a step made of steps, that its body is the user's own and not only the framework's loop.
        ordered: it is known that calls from here come in a repeatable order, whatever task they come from.
    """
    run = RUN.get()
    if run is None:
        return None
    scope = SCOPE.get() or run.top
    digest = run.digest(input) if input else ""
    segment = ":".join(escape(part) for part in (kind, name, key) if part)
    ordered = ordered or bool(key) or scope.is_ours
    if not ordered:
        if not digest:
            where = f"step {segment!r} of run {run.id!r} is called from another thread or task than "
            why = f"{scope.path or 'the run'!r}, and has neither a key nor an input to be told apart by"
            raise run.abort(ConcurrentPathError(where + why))
        segment = f"{segment}:{digest[:12]}"
    runners = (run.runner, *ACTING.get())
    used = scope.use(segment) if attempt == 1 else scope.last(segment)
    marked = used if attempt == 1 else scope.use(f"{used}@{attempt}")
    return Call(
        run=run,
        kind=kind,
        name=name,
        scope=scope,
        segment=segment,
        alone=ordered,
        path=scope.child(marked),
        key=scope.child_key(used),
        input=digest,
        text=input,
        codec=codec,
        leaf=leaf,
        user_code=user_code,
        at_most_once=effect == "at_most_once"
        or (kind == "tool" and any(name in runner.at_most_once for runner in runners)),
        usage=usage,
        signals=tuple(signal for runner in runners for signal in runner.signals),
        attempt=attempt,
        started=now_us(),
    )


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
        input: text of the input. A digest of it is recorded; a tool replayed with another one ends the run.
        codec: the result as JSON, and back.
        effect: "at_least_once"; "at_most_once" for a step that is not run again when a crash has left its outcome
            unknown: somebody is asked; "rerun" for one that acts only in memory: it always runs and is not recorded.
        leaf: False for a step whose body is made of steps.
        usage: reads what a model consumed off the result.
        attempt: the framework's own number of this try, from 1; part of the path, not of the idempotency key.

    Raises:
        What `call` raises is recorded and raised. A path that is in use, a diverged tool and a lost result end the run.
    """
    at = begin(
        kind, name, key=key, input=input, codec=codec, leaf=leaf, usage=usage, attempt=attempt, effect=effect
    )
    if at is None:
        return call()
    if effect == "rerun":
        with inside(at.unrecorded()):
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
    at = begin(
        kind, name, key=key, input=input, codec=codec, leaf=leaf, usage=usage, attempt=attempt, effect=effect
    )
    if at is None:
        return await call()
    if effect == "rerun":
        with inside(at.unrecorded()):
            return await call()
    return await at.ado(call)


def idempotency_key(default: str | None = None) -> str:
    """A key for the effect of the current step: the same in every try, restart and worker, another in every other step.

    Give it to the payment provider, the mail service, the database.

    Args:
        default: what to return outside of a durable run, for code that also runs without one.

    Returns:
        32 hexadecimal digits.

    Raises:
        DurableError: called outside a step of a durable run, without a default.
    """
    run, scope = RUN.get(), SCOPE.get()
    if run is None or scope is None or not scope.in_step:
        if default is not None:
            return default
        raise DurableError("idempotency_key() is known only inside a step of a durable run")
    return _key(run.id, scope.key)


def _key(run_id: str, path: str) -> str:
    return hashlib.sha256(f"{run_id}\0{path}".encode()).hexdigest()[:32]


def is_replaying() -> bool:
    """Whether the run is still going over what it has recorded before: hooks that must act once look here."""
    run = RUN.get()
    return run is not None and run.replaying
