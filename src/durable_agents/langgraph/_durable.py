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
from langgraph.errors import UnknownInterruptError
from langgraph.pregel import Pregel
from langgraph.types import Command

from .._core import RUN, Options, Question, Request, Run, acting, default_name, engine, logger
from .._core.errors import ConfigurationError, EncodingError, NotSupported
from ._importing import aimport_thread, import_thread
from ._private import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_STRICT_RESUME,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    GRAPH_ATTRIBUTES,
    ensure_config,
    is_xxh3_128_hexdigest,
)
from ._runner import PLACE, RECORDED_KEYWORDS, GraphRunner, Live, as_returned, staging
from ._saver import DurableSaver, strict_serde
from ._shape import needs_async, types_of, unknown_tools
from ._tasks import EXIT
from ._values import Said, graph_codec

_SURROUNDINGS = ("checkpoint_ns", "checkpoint_id", "checkpoint_map", CONFIG_KEY_THREAD_ID)
_ABOUT_SURROUNDINGS = ("langgraph_", "checkpoint_", CONFIG_KEY_THREAD_ID)
_AMBIGUOUS = (  # as natively
    "When there are multiple pending interrupts, you must specify the interrupt id when resuming. "
    "Docs: https://docs.langchain.com/oss/python/langgraph/interrupts#handling-multiple-interrupts."
)
_RETURNS = ("stream_mode", "version")
"""Arguments of `invoke` that say what it returns."""
_SETTINGS = ("tags", "metadata", "run_name", "recursion_limit", "max_concurrency")


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
        request, run_id = self._request(input, config, kwargs, run_id, is_async=False)
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
        request, run_id = self._request(input, config, kwargs, run_id, is_async=True)
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
        request, run_id = self._request(input, config, kwargs, run_id, is_async=False, streams=True)
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
        request, run_id = self._request(input, config, kwargs, run_id, is_async=True, streams=True)
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
        request, run_id = self._request(
            input, config, kwargs, run_id, is_async=needs_async(self) if is_async is None else is_async
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

    def _request(
        self,
        input: Any,
        config: RunnableConfig | None,
        keywords: dict[str, Any],
        run_id: str | None,
        *,
        is_async: bool,
        streams: bool = False,
    ) -> tuple[Request, str]:
        merged = _merged(self.config, config)
        if CONFIG_KEY_TASK_ID in merged[CONF]:
            merged = _without_surroundings(merged, config)
        thread = merged.setdefault(CONF, {}).get(CONFIG_KEY_THREAD_ID)
        thread = run_id if thread is None else thread
        if thread is not None:
            merged[CONF][CONFIG_KEY_THREAD_ID] = thread
        resumes = isinstance(input, Command) and input.resume is not None
        if isinstance(input, Command) and input.resume is None and input.update is None and not input.goto:
            raise ConfigurationError(
                "Command(resume=None) answers nothing: LangGraph takes None for no answer"
            )
        if resumes and thread is not None and (waiting := self.durable.waiting_run(str(thread))) is not None:
            return self._answer(input, waiting, Live(merged, _native(keywords)), run_id)
        if resumes and run_id is not None and self.durable.asked_run(run_id):
            return Request(None, live=Live(merged, _native(keywords)), answers=_again(input.resume)), run_id
        codec = self.durable.codec
        try:
            recorded_input = codec.encode(input)
        except EncodingError as error:
            raise EncodingError(f"the input of run {run_id!r} cannot be recorded: {error}") from error
        if run_id is None and thread is None and self.durable.needs_thread and not merged[CONF]:
            raise ValueError(
                "Checkpointer requires one or more of the following 'configurable' keys: thread_id, checkpoint_ns, "
                "checkpoint_id. A durable graph also takes run_id=, which is the thread then."
            )
        run_id = self.durable.fresh_id(recorded_input) if run_id is None else run_id
        thread = str(thread if thread is not None else run_id)
        merged[CONF] = {**merged[CONF], CONFIG_KEY_THREAD_ID: thread}
        configurable, gone = _recordable(codec, merged[CONF])
        live_names = [f"configurable.{name}" for name in gone]
        settings, _ = _recordable(codec, {k: v for k, v in merged.items() if k in _SETTINGS})
        given = {k: keywords[k] for k in RECORDED_KEYWORDS if keywords.get(k) is not None}
        kept, gone = _recordable(codec, given)
        live_names += gone
        recorded = {
            "input": recorded_input,
            "configurable": configurable,
            "keywords": kept,
            "output_keys": keywords.get("output_keys"),
        }
        live = Live(merged, _native(keywords))
        durability = keywords.get("durability") or merged[CONF].get(CONFIG_KEY_DURABILITY)
        if keywords.get("checkpoint_during") is False:
            durability = EXIT
        returns = {} if streams else {k: keywords[k] for k in _RETURNS if keywords.get(k) is not None}
        incidental = {"async": is_async, "config": settings, "durability": durability, "returns": returns}
        observers = ("callbacks",) if merged.get("callbacks") else ()
        return Request(recorded, thread, live, tuple(live_names), observers, incidental=incidental), run_id

    def _answer(
        self, command: Command[Any], waiting: tuple[str, Question], live: Live, named: str | None
    ) -> tuple[Request, str]:
        """A `Command(resume=…)` to the run that waits on the thread, its plain value pinned to the open question.

        What else is said, an update or where to go, is recorded with the answer to the first question.
        """
        run_id, pause = waiting
        if named not in (None, run_id):
            raise ConfigurationError(
                f"run {run_id!r} waits on this thread: answer it without run_id=, or with its own, not {named!r}"
            )
        resume: Any = command.resume
        if live.config[CONF].get(CONFIG_KEY_STRICT_RESUME):
            _check_strictly(resume, sorted(pause.questions))
        if _is_by_question(resume):
            answers: dict[str | None, Any] = {k: v for k, v in resume.items() if k in pause.questions}
        elif len(pause.questions) == 1:
            answers = {next(iter(pause.questions)): resume}  # by the time it arrives another one may be open
        else:
            raise RuntimeError(_AMBIGUOUS)
        says_more, place = command.update is not None or bool(command.goto), _elsewhere(live.config, pause)
        if says_more or place:
            if not answers:
                raise ConfigurationError(
                    f"Command(resume=…) answers none of the open questions of run {run_id!r}, so that its update= and "
                    f"goto= would be lost; open are {', '.join(pause.questions)}"
                )
            first = next(iter(answers))
            answers[first] = Said(answers[first], command if says_more else None, place)
        return Request(None, live=live, answers=answers), run_id


def _elsewhere(config: RunnableConfig, pause: Question) -> dict[str, Any]:
    """What of a config names another checkpoint than the one at which the run waits; empty if nothing does."""
    place = {key: config[CONF][key] for key in PLACE if config[CONF].get(key)}
    named = place.get(CONFIG_KEY_CHECKPOINT_ID)
    is_there = named in (None, pause.state["checkpoint"]) and CONFIG_KEY_CHECKPOINT_MAP not in place
    return {} if is_there else place


def _is_by_question(resume: Any) -> bool:
    return isinstance(resume, dict) and bool(resume) and all(is_xxh3_128_hexdigest(key) for key in resume)


def _check_strictly(resume: Any, pending: list[str]) -> None:
    """Refuse, as the native loop does in strict mode, an answer that does not fit the open questions."""
    if resume == {}:
        raise UnknownInterruptError(
            "The resume map names no interrupt", reason="empty_map", pending_ids=pending
        )
    if not _is_by_question(resume):
        if len(pending) > 1:
            raise UnknownInterruptError(_AMBIGUOUS, reason="ambiguous", pending_ids=pending)
    elif unknown := sorted(resume.keys() - set(pending)):
        raise UnknownInterruptError(
            f"Unknown or already-consumed interrupt: {unknown[0]}",
            reason="not_pending",
            interrupt_ids=unknown,
            pending_ids=pending,
        )


def _again(resume: Any) -> dict[str | None, Any]:
    """The answers of a command to a run that may have had them."""
    return {**resume} if _is_by_question(resume) else {None: resume}


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """An input of a batch, with the id of its run."""

    input: Any
    run_id: str


def _items(inputs: Sequence[Any], run_id: str | None) -> list[Any]:
    if run_id is None:
        return list(inputs)
    return [_Item(input, f"{run_id}/{number}") for number, input in enumerate(inputs)]


def _merged(own: RunnableConfig | None, given: RunnableConfig | None) -> RunnableConfig:
    """The graph's own config and the call's, as the native verbs merge them; neither is changed."""
    merged = ensure_config(own, given)
    merged[CONF] = dict(merged.get(CONF) or {})
    return merged


def _without_surroundings(merged: RunnableConfig, given: RunnableConfig | None) -> RunnableConfig:
    """The config of a call in a node of a graph that is not durable, less what that graph put there for its subgraphs.

    It names that graph's checkpointer, thread and checkpoints; this run has its own.
    """
    asked = (given or {}).get(CONF) or {}
    kept = {
        k: v
        for k, v in merged[CONF].items()
        if k in asked or (k not in _SURROUNDINGS and not k.startswith("__pregel"))
    }
    about = {k: v for k, v in (merged.get("metadata") or {}).items() if not k.startswith(_ABOUT_SURROUNDINGS)}
    return {**merged, CONF: kept, "metadata": about}


def _native(keywords: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in keywords.items() if k != "durability"}


def _recordable(codec: Any, values: Any) -> tuple[dict[str, Any], list[str]]:
    """The values that have a durable form, and the names of the others."""
    kept, gone = {}, []
    for name, value in values.items():
        if str(name).startswith("__pregel"):
            continue
        try:
            kept[name] = codec.encode(value)
        except EncodingError:
            gone.append(name)
    return kept, gone
