"""Strands' own tests through `DurableAgent` and `DurableMultiAgent`, for `python -m conformance strands`.

Each outermost call of a verb wraps the agent, graph or swarm as it is at that moment, since tests change them between
calls: as in a process that was started again, the runner is new. Each run has a session of its own, which begins with
what the agent knows; interrupt responses, and other prompts to an agent that waits for one, go to the session of its
last run. Natively an agent keeps what a run has said, and tests look at it there, so it is not put back afterwards.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import NonCallableMock
from weakref import WeakKeyDictionary, WeakSet

from strands import Agent
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm

from conformance.ledger import Ledger
from durable_agents._core.context import RUN
from durable_agents._core.engine import RUNNERS
from durable_agents.errors import NotSupported
from durable_agents.strands import DurableAgent, DurableMultiAgent
from durable_agents.strands import _runner as runner_module
from durable_agents.strands._durable import _is_response

_NATIVE: ContextVar[bool] = ContextVar("native", default=False)
"""Whether the calling code is part of a call that the runner has refused."""
_VERBS = ("__call__", "invoke_async", "stream_async")
_OURS: dict[type, dict[str, Callable[..., Any]]] = {}
"""What stands in place of the verbs, for each class."""


class _Router:
    """Makes the durable form of agents, graphs and swarms, and tells what became of calls of them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._numbers = itertools.count(1)
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._sessions: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._driven: WeakSet[Any] = WeakSet()

    def durable(self, target: Any) -> Any:
        _check_nodes(target)
        name = self._names.setdefault(target, f"target-{next(self._numbers)}")
        wrapped = (DurableAgent if isinstance(target, Agent) else DurableMultiAgent)(
            target, name, on_code_change="continue"
        )
        del RUNNERS[wrapped.durable.name]  # the next call's runner has its name
        return wrapped

    def session(self, target: Any, prompt: Any) -> str:
        waits = _is_response(prompt) or target._interrupt_state.activated
        if not waits or target not in self._sessions:
            self._sessions[target] = f"session-{next(self._numbers)}"
        return self._sessions[target]

    def driving(self, target: Any) -> None:
        """The native loop is called; for the target of a run, by that."""
        run = RUN.get()
        if run is not None and getattr(run.runner, "target", None) is target and run not in self._driven:
            self._driven.add(run)
            self.ledger.ran()


def install(ledger: Ledger) -> None:
    """Lead the verbs of agents, graphs and swarms through their durable forms."""
    router = _Router(ledger)
    runner_module.borrowed = _kept
    for cls in (Agent, Graph, Swarm):
        native = {verb: getattr(cls, verb) for verb in _VERBS}
        routed = {
            "__call__": _sync(router, native["__call__"]),
            "invoke_async": _async(router, native["invoke_async"]),
            "stream_async": _streaming(router, native["stream_async"]),
        }
        for verb, function in routed.items():
            setattr(cls, verb, function)
        _OURS[cls] = routed


def _check_nodes(target: Any) -> None:
    """Raise `NotSupported` for a graph or swarm of mocks, which have nothing of an agent to keep and to restore."""
    for node in target.nodes.values() if isinstance(target, Graph | Swarm) else ():
        if isinstance(node.executor, NonCallableMock):
            raise NotSupported("the test's node is a mock of an agent")
        _check_nodes(node.executor)


def _is_outermost(target: Any) -> bool:
    """Whether a call is no part of a run, or of a native one, and no test has put a verb of its own in place."""
    if RUN.get() is not None or _NATIVE.get():
        return False
    (ours,) = (functions for cls, functions in _OURS.items() if isinstance(target, cls))
    replaced = any(getattr(type(target), verb) is not function for verb, function in ours.items())
    return not replaced and not any(verb in vars(target) for verb in _VERBS)


def _sync(router: _Router, native: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, prompt: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if not _is_outermost(self):
            return native(self, prompt, *arguments, **keywords)
        before = router.ledger.runs
        try:
            wrapped = router.durable(self)
            return wrapped(prompt, *arguments, session_id=router.session(self, prompt), **keywords)
        except NotSupported as error:
            if router.ledger.runs > before:
                raise
            router.ledger.refused(error)
        with _natively():
            return native(self, prompt, *arguments, **keywords)

    return __call__


def _async(router: _Router, native: Callable[..., Any]) -> Callable[..., Any]:
    async def invoke_async(self: Any, prompt: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if not _is_outermost(self):
            return await native(self, prompt, *arguments, **keywords)
        before = router.ledger.runs
        try:
            wrapped = router.durable(self)
            session = router.session(self, prompt)
            return await wrapped.invoke_async(prompt, *arguments, session_id=session, **keywords)
        except NotSupported as error:
            if router.ledger.runs > before:
                raise
            router.ledger.refused(error)
        with _natively():
            return await native(self, prompt, *arguments, **keywords)

    return invoke_async


def _streaming(router: _Router, native: Callable[..., Any]) -> Callable[..., Any]:
    async def stream_async(
        self: Any, prompt: Any = None, *arguments: Any, **keywords: Any
    ) -> AsyncIterator[Any]:
        if not _is_outermost(self):
            router.driving(self)
            async with aclosing(native(self, prompt, *arguments, **keywords)) as events:
                async for event in events:
                    yield event
            return
        before = router.ledger.runs
        try:
            wrapped = router.durable(self)
            session = router.session(self, prompt)
            routed = wrapped.stream_async(prompt, *arguments, session_id=session, **keywords)
            async with aclosing(routed) as events:
                async for event in events:
                    yield event
            return
        except NotSupported as error:
            if router.ledger.runs > before:
                raise
            router.ledger.refused(error)
        async with aclosing(native(self, prompt, *arguments, **keywords)) as events:
            while True:
                with _natively():  # not around the yield: there the consumer's code runs
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return
                yield event

    return stream_async


@contextmanager
def _natively() -> Iterator[None]:
    token = _NATIVE.set(True)
    try:
        yield
    finally:
        _NATIVE.reset(token)


@contextmanager
def _kept(shape: Any, muted: bool = False) -> Iterator[None]:
    """In place of the runner's `borrowed`: what a run does to the user's objects stays."""
    sets = [
        (group, group.edges, group.entry_points)
        for group in shape.groups.values()
        if isinstance(group, Graph)
    ]
    try:
        yield
    finally:
        for group, edges, entry_points in sets:
            group.edges, group.entry_points = edges, entry_points
