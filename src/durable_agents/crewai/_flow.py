"""Flow methods as steps: the whole native `kickoff` runs again, and a method that has finished returns its record.

A method's record holds its result and what it changed in the state. CrewAI's own bookkeeping (`and_`, `or_`, routers,
loops, hooks, events, `@persist`) runs as ever; `_turns` gives it the methods' ends in the recorded order. CrewAI's
internal flows, such as an agent's loop, are no steps: they lend their scope to the threads their methods run in.
"""

import asyncio
import contextvars
import dataclasses
import functools
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from .._core import (
    RUN,
    SCOPE,
    Call,
    Codec,
    Draft,
    Execution,
    Record,
    Scope,
    begin,
    cut,
    described,
    escape,
    having,
    here,
    inside,
)
from ._private import Flow, HumanFeedbackPending, HumanFeedbackResult, condition_events
from ._scopes import segment_scope
from ._state import View, apply
from ._turns import Turns

_FLOW: ContextVar["FlowRun | None"] = ContextVar("durable_agents_crewai_flow", default=None)
_METHOD: ContextVar["MethodRun | None"] = ContextVar("durable_agents_crewai_method", default=None)
_VIEWS: ContextVar[tuple[tuple[Any, View], ...]] = ContextVar("durable_agents_crewai_views", default=())
# The flow that is kicked off, and the scope that was opened for it in the caller's own thread.
_OPENED: ContextVar[tuple[Any, Scope] | None] = ContextVar("durable_agents_crewai_opened", default=None)

FLOW = "flow"
"""In `Execution.memory`: the flow that the run is of. Its methods stand at the top of the run's paths."""


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    cut(Flow, "kickoff", _kickoff)
    cut(Flow, "kickoff_async", _kickoff_async)
    cut(Flow, "_execute_method", _execute_method)
    cut(Flow, "_run_human_feedback_step", _feedback_step)
    cut(Flow, "_flow_post_init", _post_init)
    native: Any = vars(Flow)["state"]
    Flow.state = property(functools.partial(_state, native.fget), doc=native.__doc__)  # type: ignore[assignment]


def current_method() -> "MethodRun | None":
    """The flow method that the current code is in."""
    return _METHOD.get()


def flow_being_kicked_off() -> "FlowRun | None":
    """The flow whose `kickoff` the current code is in, and not its methods, or what listens to events."""
    flow_run = _FLOW.get()
    if flow_run is None or SCOPE.get() is not flow_run.scope:
        return None
    return flow_run if here() == flow_run.place else None


def _state(native: Callable[[Any], Any], self: Any) -> Any:
    """The flow's state, for a method that runs beside others its own copy of it."""
    views = _VIEWS.get()
    return next((view.own for flow, view in reversed(views) if flow is self), None) or native(self)


# -- a flow


class FlowRun:
    """One kickoff of a flow in this execution; lives on the flow's event loop."""

    def __init__(self, run: Execution, flow: Any, scope: Scope) -> None:
        self.run, self.flow, self.scope = run, flow, scope
        self.isolates = fans_out(flow._definition.methods)
        self.turns = Turns(self._recorded())
        self.place = here()

    def _recorded(self) -> Iterable[int]:
        """The numbers of the records that say when methods of this flow ended."""
        for path, record in list(self.run.journal.known.items()):
            above, _, _ = path.rpartition("/")
            if above == self.scope.path and record.kind in ("method", "feedback"):
                yield record.seq


def fans_out(methods: dict[str, Any]) -> bool:
    """Whether two methods of the flow can run at the same time."""
    starts = [name for name, method in methods.items() if method.is_start]
    if len(starts) > 1:
        return True
    events = Counter(
        event
        for method in methods.values()
        for condition in (method.listen, method.start)
        if isinstance(condition, str | dict)
        for event in set(condition_events(condition))
    )
    return any(count > 1 for count in events.values())


async def _kickoff_async(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    run = RUN.get()
    assert run is not None
    if type(self).is_crewai_internal or self.stream:
        return await native(self, *args, **kwargs)
    kicked_off = functools.partial(native, self, *args, **kwargs)
    if run.memory.get(FLOW) is self:
        return await _driven(run, self, SCOPE.get() or run.top, kicked_off)
    opened = _OPENED.get()
    if opened is not None and opened[0] is self:
        with opened[1].lent():
            result = await _driven(run, self, opened[1], kicked_off)
    else:
        with _flow_scope(self, args, kwargs) as scope:
            result = await _driven(run, self, scope, kicked_off)
    if isinstance(result, HumanFeedbackPending):
        raise result  # the whole run waits, and not only this flow
    return result


def _kickoff(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Natively a loop of its own drives the flow; its scope is opened here, where calls come in order."""
    run = RUN.get()
    assert run is not None
    if type(self).is_crewai_internal or self.stream or run.memory.get(FLOW) is self:
        return native(self, *args, **kwargs)
    with _flow_scope(self, args, kwargs) as scope, having(_OPENED, (self, scope)):
        return native(self, *args, **kwargs)


def _flow_scope(flow: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Scope]:
    inputs = args[0] if args else kwargs.get("inputs")
    return segment_scope(f"flow:{escape(flow._definition.name)}", described(inputs))


async def _driven(run: Execution, flow: Any, scope: Scope, kicked_off: Callable[[], Awaitable[Any]]) -> Any:
    with having(_FLOW, FlowRun(run, flow, scope)):
        return await kicked_off()


def _post_init(native: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """A flow that is made in a run has the same state id in every replay: the run's own, or one made of its place."""
    is_new = not getattr(self, "_flow_post_init_done", False)
    native(self, *args, **kwargs)
    run = RUN.get()
    if not is_new or run is None or type(self).is_crewai_internal or not _has_random_id(self):
        return
    above = SCOPE.get() or run.top
    if above is run.top and FLOW not in run.memory:
        self._stamp_state_id(run.thread or run.id)
        return
    place = above.child(above.use(f"state:{self._definition.name}"))
    self._stamp_state_id(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{run.id}\0{place}")))


def _has_random_id(flow: Any) -> bool:
    """Whether CrewAI has made up the state's id, and not the user."""
    given = flow.initial_state
    if (isinstance(given, dict) and "id" in given) or (
        not isinstance(given, type) and getattr(given, "id", None)
    ):
        return False
    try:
        return uuid.UUID(flow.flow_id).version == 4
    except ValueError:
        return False


# -- its methods


class _MethodCodec:
    """A method's result and changes as JSON."""

    def __init__(self, base: Codec) -> None:
        self._base = base

    def encode(self, ended: tuple[Any, list[list[Any]]]) -> Any:
        return {"result": self._base.encode(ended[0]), "changes": self._base.encode(ended[1])}

    def decode(self, data: Any) -> tuple[Any, list[list[Any]]]:
        return self._base.decode(data["result"]), self._base.decode(data["changes"])


class MethodRun:
    """One execution of a flow method."""

    def __init__(self, flow_run: FlowRun, name: str) -> None:
        self.flow_run, self.run, self.flow, self.turns = (
            flow_run,
            flow_run.run,
            flow_run.flow,
            flow_run.turns,
        )
        self.asks = self.flow._definition.methods[name].human_feedback is not None
        self.call = self._begin("method", name)
        self._turn: int | None = None
        self._gone = False
        before = self.run.journal.known.get(self.call.path)
        self._before = None if before is None else before.seq
        # In the order of the starts, which is that of the turns before: so it is the same state in every replay.
        self._view: View | None = None
        if self.call.recorded() is None:
            self._view = View(self.flow._state, flow_run.isolates)
        self.turns.running += 1

    def _begin(self, kind: str, name: str) -> Call:
        """CrewAI starts methods in an order that depends on the turns alone, whatever task it does it in."""
        with inside(self.flow_run.scope):
            call = begin(
                kind,
                name,
                ordered=True,
                codec=_MethodCodec(self.run.runner.codec),
                leaf=kind != "method",
                user_code=True,
            )
        assert call is not None  # in a run
        return dataclasses.replace(call, alone=False)

    def left(self) -> None:
        """CrewAI is done with the method, or has cancelled it."""
        self._gone = True
        self.turns.running -= 1
        self._give()

    def _give(self) -> None:
        turn, self._turn = self._turn, None
        self.turns.give(turn)

    async def _take(self, number: int) -> None:
        self._turn = number
        await self.turns.take(number)

    # -- the body

    def wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """What CrewAI calls instead of the method."""

        async def durable(*args: Any, **kwargs: Any) -> Any:
            record = self.call.recorded()
            if record is not None:
                await self._take(record.seq)
                result, changes = self.call.value_of(record)
                apply(self.flow._state, changes)
                return self._ended(result)
            if self.run.muted:
                await self.turns.outlast()  # without a record it has lost a race, and is cancelled again
            if not self.run.is_surely_ours:
                await self.run.in_thread(self.run.confirm)
            try:
                with self.call.running():
                    result, changes, record = await self._body(method, args, kwargs)
            except Exception as error:
                failed = self.run.journal.known.get(self.call.path)
                if not self.call.is_signal(error) and failed is not None:
                    await self._take(self._before or failed.seq)
                raise
            await self._take(self._before or record.seq)
            if self._view is not None and self._view.isolated:
                apply(self.flow._state, changes)
            return self._ended(result)

        return durable

    def _ended(self, result: Any) -> Any:
        if self.asks:  # a person may take days; the method ends when they have answered
            self._give()
        return result

    async def _body(
        self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[list[Any]], Record]:
        scope = SCOPE.get()
        assert scope is not None
        assert self._view is not None
        view = self._view
        token = _VIEWS.set((*_VIEWS.get(), (self.flow, view)))
        try:
            if not asyncio.iscoroutinefunction(method):

                def in_thread() -> tuple[Any, Any, Record | None]:
                    # The record is written here: the thread goes on when its method is cancelled.
                    with scope.lent():
                        try:
                            result = method(*args, **kwargs)
                        except Exception as error:
                            self._failed(error)
                            raise
                        if asyncio.iscoroutine(result):
                            return result, None, None
                        changes = view.changes()
                        return result, changes, self._commit(self.call.draft((result, changes)))

                context = contextvars.copy_context()
                result, changes, record = await asyncio.to_thread(context.run, in_thread)
                if record is not None:
                    return result, changes, record
                pending = result
            else:
                pending = method(*args, **kwargs)
            try:
                result = await pending
            except Exception as error:
                caught = error
                await self.run.in_thread(lambda: self._failed(caught))
                raise
            changes = view.changes()
            draft = self.call.draft((result, changes))
            return result, changes, await self.run.in_thread(lambda: self._commit(draft))
        finally:
            _VIEWS.reset(token)

    def _failed(self, error: Exception) -> None:
        if not self.call.is_signal(error):
            self._commit(self.call.draft(error=error))

    def _commit(self, draft: Draft) -> Record:
        """Write the record; it has its turn by its number, unless CrewAI has given up the method meanwhile.

        A body whose result could not be stored runs again, in the turn that it had.
        """
        with self.turns.recording:
            record = self.run.journal.commit(draft)
            if not self._gone and (self._before is None or draft.kind == "feedback"):
                self.turns.expect(record.seq)
        return record

    # -- human feedback

    async def end_with_feedback(self, feedback: Any) -> Any:
        """The method ends with what a person has said to its output; the time of that is recorded with its turn."""
        call = self._begin("feedback", self.call.name)
        record = call.recorded()
        said = feedback
        if not isinstance(said, HumanFeedbackResult):
            said = self.flow._human_feedback_method_outputs.get(self.call.name)
        if record is None:
            with call.running():
                draft = dataclasses.replace(
                    call.draft((getattr(said, "timestamp", None), [])), name=self.call.name
                )
                record = await self.run.in_thread(lambda: self._commit(draft))
        await self._take(record.seq)
        timestamp, _ = call.value_of(record)
        if said is not None and timestamp is not None:
            said.timestamp = timestamp
        return feedback


async def _execute_method(
    native: Any, self: Any, method_name: Any, method: Any, *args: Any, **kwargs: Any
) -> Any:
    flow_run = _FLOW.get()
    if flow_run is None or flow_run.flow is not self:
        return await native(self, method_name, _lent(method), *args, **kwargs)
    execution = MethodRun(flow_run, str(method_name))
    try:
        with having(_METHOD, execution):
            wrapped = functools.wraps(method)(execution.wrapped(method))
            return await native(self, method_name, wrapped, *args, **kwargs)
    finally:
        execution.left()


def _lent(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an internal flow, whose thread makes the calls of the scope that the flow stands in."""
    scope = SCOPE.get()
    if scope is None or asyncio.iscoroutinefunction(method):
        return method

    @functools.wraps(method)
    def lent(*args: Any, **kwargs: Any) -> Any:
        with scope.lent():
            return method(*args, **kwargs)

    return lent


async def _feedback_step(native: Any, self: Any, method_name: Any, *args: Any) -> Any:
    execution = _METHOD.get()
    result = await native(self, method_name, *args)
    if execution is None or execution.flow is not self:
        return result
    return await execution.end_with_feedback(result)
