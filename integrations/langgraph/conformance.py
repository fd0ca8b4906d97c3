"""LangGraph's own tests through `DurableGraph`, for `python -m conformance langgraph`.

Each outermost call of a verb wraps the graph as it is at that moment, since tests change compiled graphs: as in a
process that was started again, the runner is new and the state is in the database. Graphs that share a checkpointer
share its threads, so their runners have one name. What a test reads from that checkpointer is the durable state, as the
methods of our saver are put over those of the test's.
"""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel

from conformance.ledger import Ledger
from durable_agents._core.context import RUN
from durable_agents._core.engine import RUNNERS
from durable_agents.errors import NotSupported
from durable_agents.langgraph import DurableGraph
from durable_agents.langgraph._private import CONF, CONFIG_KEY_TASK_ID, ensure_config
from durable_agents.langgraph._saver import DurableSaver

_STATE = (
    "get_state", "aget_state", "get_state_history", "aget_state_history", "update_state", "aupdate_state",
    "bulk_update_state", "abulk_update_state",
)  # fmt: skip
_SAVER = [name for name in vars(DurableSaver) if not name.startswith("_")]


class _Router:
    """Makes the durable form of graphs, and tells what became of calls of them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._numbers = itertools.count(1)
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._driven: WeakSet[Any] = WeakSet()
        self._left: WeakKeyDictionary[Any, NotSupported] = WeakKeyDictionary()

    def durable(self, graph: Any) -> Any:
        saver = graph.checkpointer
        is_saver = isinstance(saver, BaseCheckpointSaver)
        name = self._names.get(saver) if is_saver else None
        if name is None:
            name = f"graph-{next(self._numbers)}"
        wrapped = DurableGraph(graph, name, ignore_checkpointer=True, on_code_change="continue")
        del RUNNERS[wrapped.durable.name]  # the next call's runner may have its name
        if is_saver:
            self._names[saver] = name
            kept: Any = wrapped.checkpointer
            saver.__dict__.update({method: getattr(kept, method) for method in _SAVER})
        return wrapped

    def driving(self, graph: Any) -> None:
        """The native loop is called; in a durable graph, by its run."""
        if isinstance(graph, DurableGraph) and RUN.get() is not None and graph.durable not in self._driven:
            self._driven.add(graph.durable)
            self.ledger.ran()

    def leads(self, graph: Any, config: Any) -> bool:
        """Whether a call of a verb is to be durable: it is outermost, and its threads were not moved on natively."""
        if not _is_outermost(graph, config):
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


def install(ledger: Ledger) -> None:
    """Lead the verbs of every compiled graph through `DurableGraph`, and what reads and writes its state."""
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
            wrapped = router.durable(self)
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
            wrapped = router.durable(self)
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
    for name in _STATE:
        setattr(Pregel, name, _on_durable_state(router, name, getattr(Pregel, name)))


def _on_durable_state(router: _Router, name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    """The native method, called on the durable form of a graph that has a checkpointer."""

    def method(self: Any, config: Any, *arguments: Any, **keywords: Any) -> Any:
        has_state = isinstance(self.checkpointer, BaseCheckpointSaver)
        if not has_state or not _is_outermost(self, config):
            return native(self, config, *arguments, **keywords)
        return getattr(router.durable(self), name)(config, *arguments, **keywords)

    return method
