"""LangGraph's own tests through `DurableGraph`, for `python -m conformance langgraph`.

Each outermost call of a verb wraps the graph as it is at that moment, since tests change compiled graphs: as in a
process that was started again, the runner is new and the state is in the database. Graphs that share a checkpointer
share its threads, so their runners have one name. What a test reads from that checkpointer is the durable state, as the
methods of our saver are put over those of the test's. A checkpointer of a class that a test made itself, to see calls
or to fail, keeps its methods: they are called by our saver, and what they call in turn is ours. Threads that a test put
into its checkpointer beforehand are imported.
"""

import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from langgraph.pregel import Pregel

from conformance.ledger import Ledger
from conformance.replays import Watched
from conformance.suite import Suite
from durable_agents._core.context import RUN
from durable_agents._core.engine import RUNNERS
from durable_agents.errors import NotSupported
from durable_agents.langgraph import DurableGraph
from durable_agents.langgraph._private import CONF, CONFIG_KEY_TASK_ID, ensure_config
from durable_agents.langgraph._runner import GraphRunner
from durable_agents.langgraph._saver import DurableSaver
from durable_agents.langgraph._tasks import _TaskStep

_STATE = (
    "get_state", "aget_state", "get_state_history", "aget_state_history", "update_state", "aupdate_state",
    "bulk_update_state", "abulk_update_state",
)  # fmt: skip
_LOOK_INSIDE = {"_TaskPathOrderSaver"}
_SAVER = [name for name in vars(DurableSaver) if not name.startswith("_")]


class _Router:
    """Makes the durable form of graphs, and tells what became of calls of them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._suite = Suite.of("langgraph")
        self._numbers = itertools.count(1)
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._driven: WeakSet[Any] = WeakSet()
        self._kept: WeakKeyDictionary[Any, DurableSaver] = WeakKeyDictionary()
        self._left: WeakKeyDictionary[Any, NotSupported] = WeakKeyDictionary()

    def durable(self, graph: Any) -> Any:
        wrapped = self._wrapped(graph)
        if self._is_new(saver := graph.checkpointer):
            for thread in {each.config[CONF]["thread_id"] for each in saver.list(None)}:
                wrapped.import_thread(saver, thread)
        self._replace(saver, wrapped)
        return wrapped

    async def adurable(self, graph: Any) -> Any:
        wrapped = self._wrapped(graph)
        if self._is_new(saver := graph.checkpointer):
            for thread in {each.config[CONF]["thread_id"] async for each in saver.alist(None)}:
                await wrapped.aimport_thread(saver, thread)
        self._replace(saver, wrapped)
        return wrapped

    def _wrapped(self, graph: Any) -> Any:
        saver = graph.checkpointer
        name = self._names.get(saver) if isinstance(saver, BaseCheckpointSaver) else None
        name = name or f"graph-{next(self._numbers)}"
        wrapped = DurableGraph(graph, name, ignore_checkpointer=True, on_code_change="continue")
        del RUNNERS[wrapped.durable.name]  # the next call's runner may have its name
        return wrapped

    def _is_new(self, saver: Any) -> bool:
        return isinstance(saver, BaseCheckpointSaver) and saver not in self._names

    def _replace(self, saver: Any, wrapped: Any) -> None:
        """Put our saver in the place of the test's, and those methods over ours that the test made itself."""
        if not isinstance(saver, BaseCheckpointSaver):
            return
        kept = self._kept[saver] = wrapped.checkpointer
        self._names[saver] = wrapped.durable.name.removeprefix(f"{GraphRunner.framework}.")
        if _is_of_a_test(type(saver.serde)):
            kept.serde = saver.serde
        own = _of_the_test(type(saver))
        saver.__dict__.update({name: getattr(kept, name) for name in _SAVER if name not in own})
        kept.__dict__.update({name: getattr(saver, name) for name in own})

    def is_kept(self, saver: Any) -> DurableSaver | None:
        """Our saver in the place of a test's."""
        return self._kept.get(saver)

    def driving(self, graph: Any) -> None:
        """The native loop is called; in a durable graph, by its run."""
        run = RUN.get()
        if run is None or run.muted or not isinstance(graph, DurableGraph):
            return
        if graph.durable not in self._driven:
            self._driven.add(graph.durable)
            self.ledger.ran(run)

    def leads(self, graph: Any, config: Any) -> bool:
        """Whether a call of a verb is to be durable: it is outermost, and its threads were not moved on natively."""
        if not _is_outermost(graph, config):
            return False
        if graph.checkpointer is None and self._suite.forbids_here():
            return False
        saver = graph.checkpointer
        error = self._left.get(saver) if isinstance(saver, BaseCheckpointSaver) else None
        if error is not None:
            self.ledger.refused(error)
        return error is None

    def refused(self, graph: Any, wrapped: Any, error: NotSupported) -> bool:
        """Whether a call was refused before anything ran; then what follows on its threads is native too."""
        if wrapped is not None and wrapped.durable in self._driven:
            return False
        self.ledger.refused(error)
        if isinstance(graph.checkpointer, BaseCheckpointSaver):
            self._left[graph.checkpointer] = error
        return True


def _is_outermost(graph: Any, config: Any) -> bool:
    """Whether a call is no part of a run, of a graph that runs natively, or of the durable graph itself."""
    if isinstance(graph, DurableGraph) or RUN.get() is not None:
        return False
    return CONFIG_KEY_TASK_ID not in ensure_config(config)[CONF]


def _of_the_test(saver: type) -> set[str]:
    """The methods of a saver's class that were made in a test, and do not read what its base class keeps."""
    if saver.__name__ in _LOOK_INSIDE:
        return set()
    made = filter(_is_of_a_test, saver.__mro__)
    return {name for cls in made for name in vars(cls) if name in _SAVER}


def _is_of_a_test(cls: type) -> bool:
    return cls.__module__.startswith("tests.test_")


def _tell_bodies() -> None:
    """Tell a replay of each task whose body it enters, and of each that asks again."""
    attempt, ask_again = _TaskStep.attempt, _TaskStep.ask_again

    def entered(self: _TaskStep, config: Any) -> Any:
        entering = attempt(self, config)
        if isinstance(self._run, Watched):
            return _after(entering, lambda: self._run.entered.append(self.path))
        return entering

    def asking(self: _TaskStep) -> None:
        try:
            ask_again(self)
        except GraphInterrupt:
            if isinstance(self._run, Watched):
                self._run.asked.append(self.path)
            raise

    _TaskStep.attempt, _TaskStep.ask_again = entered, asking  # type: ignore[method-assign, assignment]


@contextmanager
def _after(entering: AbstractContextManager[None], note: Callable[[], None]) -> Iterator[None]:
    with entering:
        note()
        yield


def _ours(router: _Router, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    """What a test's method calls of its base class, which is ours once the test's saver has been replaced."""

    @functools.wraps(native)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        kept = router.is_kept(self)
        if kept is None:
            return native(self, *arguments, **keywords)
        return getattr(DurableSaver, name)(kept, *arguments, **keywords)

    return method


def install(ledger: Ledger) -> None:
    """Lead the verbs of every compiled graph through `DurableGraph`, and what reads and writes its state."""
    _tell_bodies()
    router = _Router(ledger)
    native: dict[str, Callable[..., Any]] = {
        verb: getattr(Pregel, verb) for verb in ("invoke", "ainvoke", "stream", "astream")
    }

    def invoke(self: Any, input: Any, config: Any = None, **keywords: Any) -> Any:
        if not router.leads(self, config):
            router.driving(self)
            return native["invoke"](self, input, config, **keywords)
        wrapped = None
        try:
            wrapped = router.durable(self)
            return wrapped.invoke(input, config, **keywords)
        except NotSupported as error:
            if not router.refused(self, wrapped, error):
                raise
        return native["invoke"](self, input, config, **keywords)

    async def ainvoke(self: Any, input: Any, config: Any = None, **keywords: Any) -> Any:
        if not router.leads(self, config):
            router.driving(self)
            return await native["ainvoke"](self, input, config, **keywords)
        wrapped = None
        try:
            wrapped = await router.adurable(self)
            return await wrapped.ainvoke(input, config, **keywords)
        except NotSupported as error:
            if not router.refused(self, wrapped, error):
                raise
        return await native["ainvoke"](self, input, config, **keywords)

    def stream(self: Any, input: Any, config: Any = None, **keywords: Any) -> Iterator[Any]:
        if not router.leads(self, config):
            router.driving(self)
            yield from native["stream"](self, input, config, **keywords)
            return
        wrapped = None
        try:
            wrapped = router.durable(self)
            yield from wrapped.stream(input, config, **keywords)
            return
        except NotSupported as error:
            if not router.refused(self, wrapped, error):
                raise
        yield from native["stream"](self, input, config, **keywords)

    async def astream(self: Any, input: Any, config: Any = None, **keywords: Any) -> AsyncIterator[Any]:
        if not router.leads(self, config):
            router.driving(self)
            async with aclosing(native["astream"](self, input, config, **keywords)) as events:
                async for event in events:
                    yield event
            return
        wrapped = None
        try:
            wrapped = await router.adurable(self)
            async with aclosing(wrapped.astream(input, config, **keywords)) as events:
                async for event in events:
                    yield event
            return
        except NotSupported as error:
            if not router.refused(self, wrapped, error):
                raise
        async with aclosing(native["astream"](self, input, config, **keywords)) as events:
            async for event in events:
                yield event

    for verb in (invoke, ainvoke, stream, astream):
        setattr(Pregel, verb.__name__, verb)
    for name in _SAVER:
        if hasattr(InMemorySaver, name):
            setattr(InMemorySaver, name, _ours(router, name, getattr(InMemorySaver, name)))
    for name in _STATE:
        setattr(Pregel, name, _on_durable_state(router, name, getattr(Pregel, name)))


def _on_durable_state(router: _Router, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    """The native method, called on the durable form of a graph that has a checkpointer."""

    def method(self: Any, config: Any, *arguments: Any, **keywords: Any) -> Any:
        has_state = isinstance(self.checkpointer, BaseCheckpointSaver)
        if not has_state or not _is_outermost(self, config):
            return native(self, config, *arguments, **keywords)
        return getattr(router.durable(self), name)(config, *arguments, **keywords)

    async def amethod(self: Any, config: Any, *arguments: Any, **keywords: Any) -> Any:
        has_state = isinstance(self.checkpointer, BaseCheckpointSaver)
        durable = has_state and _is_outermost(self, config)
        graph = await router.adurable(self) if durable else None
        called = getattr(graph, name) if graph is not None else functools.partial(native, self)
        return await called(config, *arguments, **keywords)

    async def events(self: Any, config: Any, *arguments: Any, **keywords: Any) -> AsyncIterator[Any]:
        has_state = isinstance(self.checkpointer, BaseCheckpointSaver)
        durable = has_state and _is_outermost(self, config)
        graph = await router.adurable(self) if durable else None
        called = getattr(graph, name) if graph is not None else functools.partial(native, self)
        async for each in called(config, *arguments, **keywords):
            yield each

    if inspect.iscoroutinefunction(native):
        return amethod
    return events if inspect.isasyncgenfunction(native) else method
