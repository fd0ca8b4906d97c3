"""`DurableGraph`: a compiled graph whose runs finish, however often their process dies.

It is a copy of the graph, of a class derived from the graph's own: `isinstance` holds, and every method that is not
named here is the native one, on the durable state.
"""

import dataclasses
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Unpack, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel

from .._core import RUN, Options, Run, acting, default_name, engine, logger
from .._core.errors import ConfigurationError, NotSupported
from ._importing import aimport_thread, import_thread
from ._private import (
    CONF,
    CONFIG_KEY_TASK_ID,
    GRAPH_ATTRIBUTES,
)
from ._requests import request_of
from ._runner import GraphRunner, as_returned, staging
from ._saver import DurableSaver, strict_serde
from ._shape import needs_async, types_of, unknown_tools
from ._values import graph_codec


class DurableGraph(Pregel[Any, Any, Any, Any]):
    """The durable form of a compiled graph.

    Args:
        compiled: a compiled `StateGraph`, an `@entrypoint`, or an agent made by `create_agent`; it is copied.
        name: unique in the process and the same after a restart. Default: `<module or script>.<graph's name>`.
        types: classes that may be stored in state, results and inputs beside those of the graph's own schema:
            pydantic models, dataclasses, enums.
        ignore_checkpointer: take a graph that brings a persistent checkpointer of its own, and leave its threads there.
        at_most_once: names of tools that are not run again when a crash has left their outcome unknown: the run waits,
            and `Run.answer` says what became of them.
        restore: `restore(run)` gives back what a run was called with that could not be recorded, when it goes on
            without its caller: a mapping with the names from the error that says so (`context`, `configurable.<name>`),
            and `callbacks` if they are wanted again.
        on_code_change: what becomes of a run that began when the graph had other nodes, edges or channels: "wait" for a
            worker that has that graph, or "continue" with this one.

    Raises:
        ConfigurationError: another runner of the process has this name, or the graph has a persistent checkpointer.
    """

    durable: GraphRunner

    def __new__(
        cls,
        compiled: Pregel[Any, Any, Any, Any],
        name: str | None = None,
        *,
        types: Sequence[type] = (),
        ignore_checkpointer: bool = False,
        **options: Unpack[Options],
    ) -> "DurableGraph":
        if not isinstance(compiled, Pregel):
            raise ConfigurationError(
                f"DurableGraph wraps a compiled graph, not a {type(compiled).__qualname__}: call .compile() first"
            )
        if isinstance(compiled, DurableGraph):
            raise ConfigurationError(f"the graph is durable already, as {compiled.durable.name!r}")
        saver = compiled.checkpointer
        if (
            saver not in (None, True, False)
            and not isinstance(saver, InMemorySaver)
            and not ignore_checkpointer
        ):
            raise ConfigurationError(
                f"the graph has a persistent checkpointer ({type(saver).__qualname__}). DurableGraph keeps its own "
                f"state: give it ignore_checkpointer=True, and take over a thread with import_thread(saver, thread_id)"
            )
        allowed = [*types_of(compiled), *types]
        codec = graph_codec(allowed)
        name = name or default_name(compiled.get_name())
        space = f"{GraphRunner.framework}.{name}"
        saver = DurableSaver(lambda: engine.current().store, space, staging, strict_serde(allowed))
        graph = compiled.copy({"checkpointer": saver})
        graph._serde_allowlist = None  # the saver's own serde is strict already
        for attribute in GRAPH_ATTRIBUTES:
            setattr(graph, attribute, getattr(compiled, attribute))
        graph.__class__ = type(
            f"Durable{type(compiled).__name__}", (DurableGraph, type(compiled)), {"__module__": __name__}
        )
        runner = GraphRunner(name, codec, type(compiled), graph, saver, **options)
        runner.needs_thread = isinstance(compiled.checkpointer, BaseCheckpointSaver)
        if unknown := unknown_tools(compiled, runner.at_most_once):
            logger.warning(
                "%s: no tool of the graph is named %s (at_most_once)", runner.name, ", ".join(unknown)
            )
        return cast(DurableGraph, graph)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything has been done by `__new__`: the object is a copy of the graph."""

    def copy(self, update: dict[str, Any] | None = None) -> "DurableGraph":
        """As natively (`with_config` and others come through here); runs of the copy are this runner's."""
        attributes = {k: v for k, v in self.__dict__.items() if k not in ("__orig_class__", "durable")}
        copied = self.durable.native(**{**attributes, **(update or {})})
        copied._serde_allowlist = None
        copied.__class__ = type(self)
        copied.__dict__["durable"] = self.durable
        return cast(DurableGraph, copied)

    # -- verbs

    def invoke(
        self, input: Any, config: RunnableConfig | None = None, *, run_id: str | None = None, **kwargs: Any
    ) -> Any:
        """As natively, in a durable run.

        Args:
            run_id: the run's identity: the same id and input again attach to the same run. Default: a new one.

        Raises:
            InputMismatch: `run_id` exists with another input. What the graph raises is raised.
        """
        if isinstance(input, _Item):
            input, run_id = input.input, input.run_id
        if self._is_nested(config):
            with acting(self.durable):
                return self.durable.native.invoke(self, input, config, **kwargs)
        request, run_id = request_of(self, self.durable, input, config, kwargs, run_id, is_async=False)
        return as_returned(self.durable.call(request, run_id))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, *, run_id: str | None = None, **kwargs: Any
    ) -> Any:
        """`invoke` for event loops; the graph runs in the caller's task."""
        if isinstance(input, _Item):
            input, run_id = input.input, input.run_id
        if self._is_nested(config):
            with acting(self.durable):
                return await self.durable.native.ainvoke(self, input, config, **kwargs)
        request, run_id = request_of(self, self.durable, input, config, kwargs, run_id, is_async=True)
        return as_returned(await self.durable.acall(request, run_id))

    def stream(
        self, input: Any, config: RunnableConfig | None = None, *, run_id: str | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """As natively, in a durable run: the graph goes on when the next event is asked for.

        Leaving the loop early, or closing the generator, stops the graph as natively and ends the run `cancelled`.
        """
        if self._is_nested(config):
            with acting(self.durable):
                events = self.durable.native.stream(self, input, config, **kwargs)
            while True:
                with acting(self.durable):  # not around the yield: there the consumer's code runs
                    try:
                        event = next(events)
                    except StopIteration:
                        return
                yield event
        request, run_id = request_of(
            self, self.durable, input, config, kwargs, run_id, is_async=False, streams=True
        )
        yield from self.durable.stream_call(request, run_id, self.durable.events)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, *, run_id: str | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """`stream` for event loops."""
        if self._is_nested(config):
            nested = self.durable.native.astream(self, input, config, **kwargs)
            while True:
                with acting(self.durable):
                    try:
                        event = await anext(nested)
                    except StopAsyncIteration:
                        return
                yield event
        request, run_id = request_of(
            self, self.durable, input, config, kwargs, run_id, is_async=True, streams=True
        )
        durable = self.durable
        events = durable.astream_call(
            request, run_id, durable.aevents, lambda run: durable.outcome(run, None)
        )
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def start(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        run_id: str | None = None,
        is_async: bool | None = None,
        **kwargs: Any,
    ) -> Run:
        """Queue a run for any worker that has this graph, and return at once.

        Args:
            input, config, run_id: as `invoke`.
            is_async: whether workers drive it as `ainvoke` or as `invoke`. Default: async when a node or a tool has
                no sync form; say so for a graph where that cannot be seen, such as one with async-only middleware.
            kwargs: `output_keys`, `interrupt_before`, `interrupt_after`, `context`.

        Raises:
            NotRecoverable: an argument that exists only in this process, such as a context object of a type that is not
                allowed.
        """
        request, run_id = request_of(
            self,
            self.durable,
            input,
            config,
            kwargs,
            run_id,
            is_async=needs_async(self) if is_async is None else is_async,
        )
        if request.answers is not None:
            raise NotSupported(
                f"run {run_id!r} waits on this thread: answer it with durable_agents.runs.get(…).answer(value)"
            )
        return self.durable.submit(request, run_id)

    def __copy__(self) -> "DurableGraph":
        return self.copy()

    def batch(
        self, inputs: list[Any], config: Any = None, *, run_id: str | None = None, **kwargs: Any
    ) -> list[Any]:
        """As natively; each item is a run of its own: `<run_id>/0`, `<run_id>/1`, …"""
        return super().batch(_items(inputs, run_id), config, **kwargs)

    async def abatch(
        self, inputs: list[Any], config: Any = None, *, run_id: str | None = None, **kwargs: Any
    ) -> list[Any]:
        """`batch` for event loops."""
        return await super().abatch(_items(inputs, run_id), config, **kwargs)

    def batch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, *, run_id: str | None = None, **kwargs: Any
    ) -> Iterator[tuple[int, Any]]:
        """As natively; runs as in `batch`."""
        return super().batch_as_completed(_items(inputs, run_id), config, **kwargs)

    async def abatch_as_completed(
        self, inputs: Sequence[Any], config: Any = None, *, run_id: str | None = None, **kwargs: Any
    ) -> AsyncIterator[tuple[int, Any]]:
        """`batch_as_completed` for event loops."""
        async for item in super().abatch_as_completed(_items(inputs, run_id), config, **kwargs):
            yield item

    # -- threads

    def import_thread(self, saver: BaseCheckpointSaver[Any], thread_id: str) -> int:
        """Take a thread over from another checkpointer, with its history and its open interrupts.

        Args:
            saver: where the graph kept its threads before, such as a `SqliteSaver` or a `PostgresSaver`; it is only
                read. Nothing may run on the thread meanwhile.

        Returns:
            How many checkpoints the thread has.

        Raises:
            ConfigurationError: the thread is not there, or has state here already.
            EncodingError: it holds a value of a type that is not stored; name it in `types=[…]`.
        """
        return import_thread(self.durable.saver, saver, str(thread_id))

    async def aimport_thread(self, saver: BaseCheckpointSaver[Any], thread_id: str) -> int:
        """`import_thread` for checkpointers that are async, such as `AsyncPostgresSaver`."""
        return await aimport_thread(self.durable.saver, saver, str(thread_id))

    # -- requests

    @staticmethod
    def _is_nested(config: RunnableConfig | None) -> bool:
        """Called inside a run, or as a node of another graph: part of that, not a run."""
        return RUN.get() is not None or CONFIG_KEY_TASK_ID in ((config or {}).get(CONF) or {})


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """An input of a batch, with the id of its run."""

    input: Any
    run_id: str


def _items(inputs: Sequence[Any], run_id: str | None) -> list[Any]:
    if run_id is None:
        return list(inputs)
    return [_Item(input, f"{run_id}/{number}") for number, input in enumerate(inputs)]
