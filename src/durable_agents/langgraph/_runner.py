"""Running a graph's native loop once, for the input or the answers of a durable run.

After a crash the loop goes on from the thread's last checkpoint: the run's own rows tell whether it has taken the input
already. Finished tasks come back with that checkpoint, finished steps inside unfinished tasks from their records.
"""

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel
from langgraph.types import Command, GraphOutput, Interrupt

from .._core import RUN, Codec, Execution, Pause, Question, Runner, Store
from .._core.errors import EncodingError, NotSupported, ResultNotRecorded, RunOver
from ._loops import EXIT, LOOP
from ._private import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_THREAD_ID,
    INTERRUPT,
    channels_from_checkpoint,
    patch_configurable,
    read_channels,
)
from ._replay import ReplaySaver
from ._saver import DurableSaver, Head
from ._shape import is_next, lost_nodes, structure_of
from ._tables import MIGRATIONS
from ._tasks import INTERRUPTS, SEGMENT
from ._values import said

PLACE = (CONFIG_KEY_CHECKPOINT_ID, CONFIG_KEY_CHECKPOINT_MAP, CONFIG_KEY_CHECKPOINT_NS)
"""Keys of `configurable` that name a checkpoint of the thread."""
RECORDED_KEYWORDS = ("output_keys", "interrupt_before", "interrupt_after", "context")
"""Arguments of the native verbs that a recovery gives again."""
HEAD = "langgraph.head"
"""In `Execution.memory`: the id of the checkpoint that the graph's loop ended with."""
_VERSION, _IS_WHOLE = "langgraph.version", "langgraph.is_whole"
"""In `Execution.memory`: the version of the output; whether nothing of this segment was done before."""
_CONFIGURABLE = "configurable."


@dataclass(frozen=True, slots=True)
class Live:
    """What only the calling process has: the verb's own arguments, with callbacks and all."""

    config: RunnableConfig
    keywords: dict[str, Any] = field(default_factory=dict)


class Chunks(list[Any]):
    """What `invoke` returns for another `stream_mode` than "values"; `is_whole` if none came before a crash."""

    def __init__(self, chunks: Iterable[Any], run_id: str, is_whole: bool) -> None:
        super().__init__(chunks)
        self.run_id, self.is_whole = run_id, is_whole


def as_returned(result: Any) -> Any:
    """A result as its caller gets it.

    Raises:
        ResultNotRecorded: some of it was only in a process that has died.
    """
    if not isinstance(result, Chunks):
        return result
    if not result.is_whole:
        raise ResultNotRecorded(
            f"run {result.run_id!r} has come to its end, but some of the chunks that invoke(stream_mode=…) returns "
            f"were made before a crash; its state is there: get_state(config)"
        )
    return list(result)


class GraphRunner(Runner):
    """The runner behind a `DurableGraph`. `graph` is the durable copy; its native methods are called on `native`."""

    framework = "langgraph"
    signals = (GraphBubbleUp,)
    needs_thread = False
    """Whether the graph was compiled with a checkpointer: then a call must name a thread, as natively, or a run."""

    def __init__(
        self,
        name: str,
        codec: Codec,
        native: type[Pregel[Any, Any, Any, Any]],
        graph: Any,
        saver: DurableSaver,
        **options: Any,
    ) -> None:
        self.native, self.graph, self.saver = native, graph, saver
        graph.__dict__["durable"] = self
        super().__init__(name, codec, **options)  # from here on workers may drive its runs

    def attach(self, store: Store) -> None:
        store.migrate_tables(self.framework, MIGRATIONS)

    def is_async(self, execution: Execution) -> bool:
        return bool(execution.incidental["async"])

    def fingerprint(self) -> dict[str, Any]:
        return structure_of(self.graph)

    def misfit(self, execution: Execution, then: Mapping[str, Any]) -> str | None:
        """LangGraph passes over nodes that are gone, and what they did: the run would succeed without their work."""
        gone = lost_nodes(then, self.code)
        loaded = self.saver.get_tuple(_at(str(execution.thread), None)) if gone else None
        waiting = [name for name in gone if loaded and is_next(name, loaded.checkpoint)]
        return f"it was to go on at {', '.join(map(repr, waiting))}" if waiting else None

    def check_fork(self, run_id: str) -> None:
        raise NotSupported(
            f"run {run_id!r} is a LangGraph run, whose thread cannot be forked by step yet: "
            f"use LangGraph's time travel, invoke(None, config of a checkpoint from get_state_history())"
        )

    # -- one pass of the native loop

    def drive(self, execution: Execution) -> Any:
        if execution.muted:
            return self._replayed(execution)
        input, config, keywords = self._arguments(execution)
        with _ended(execution):
            result = self.native.invoke(self.graph, input, config, **keywords)
        return self._outcome(execution, result, keywords)

    async def adrive(self, execution: Execution) -> Any:
        if execution.muted:
            return await self._areplayed(execution)
        input, config, keywords = self._arguments(execution)
        with _ended(execution):
            result = await self.native.ainvoke(self.graph, input, config, **keywords)
        return self._outcome(execution, result, keywords)

    def _segments(self, execution: Execution) -> Iterator[tuple[Any, Any, RunnableConfig, dict[str, Any]]]:
        """In a replay: the graph, and what it is called with, once for each segment of the run."""
        graph = self.graph.copy({"checkpointer": ReplaySaver(self.saver, execution)})
        keywords: dict[str, Any] = dict(self.codec.decode(execution.input["keywords"]))
        keywords["durability"] = EXIT if execution.incidental.get("durability") == EXIT else "async"
        input = self.codec.decode(execution.input["input"])
        config = self._recorded_config(execution)
        answered = [pause for pause in execution.pauses if pause.answers and not pause.is_our_own]
        for number in range(len(answered) + 1):
            execution.memory[SEGMENT] = number
            execution.memory.pop(INTERRUPTS, None)
            if number:
                answers = answered[number - 1].answers
                config = _answered_config(config, answers)
                input = _command(answers, by_anybody=len(answers) == 1 and bool(_place(answers)))
            yield graph, input, config, keywords

    def _replayed(self, execution: Execution) -> Any:
        result: Any = None
        for graph, input, config, keywords in self._segments(execution):
            with _ended(execution):
                result = self.native.invoke(graph, input, config, **keywords)
        return self.outcome(execution, result)

    async def _areplayed(self, execution: Execution) -> Any:
        result: Any = None
        for graph, input, config, keywords in self._segments(execution):
            with _ended(execution):
                result = await self.native.ainvoke(graph, input, config, **keywords)
        return self.outcome(execution, result)

    def events(self, execution: Execution) -> Generator[Any, None, Any]:
        input, config, keywords = self._arguments(execution)
        with _ended(execution):
            yield from self.native.stream(self.graph, input, config, **keywords)
        return self.outcome(execution, None)

    async def aevents(self, execution: Execution) -> AsyncGenerator[Any, None]:
        input, config, keywords = self._arguments(execution)
        events = self.native.astream(self.graph, input, config, **keywords)
        with _ended(execution):
            try:
                async for event in events:
                    yield event
            finally:
                await events.aclose()  # type: ignore[attr-defined]

    def _arguments(self, execution: Execution) -> tuple[Any, RunnableConfig, dict[str, Any]]:
        recorded, live = execution.input, execution.live
        asked = [pause for pause in execution.pauses if not pause.is_our_own]
        config: RunnableConfig = live.config if live else self._recorded_config(execution)
        if asked:  # who drives it may have called it before that, and named where it began
            config = _answered_config(config, asked[-1].answers)
        keywords: dict[str, Any] = dict(live.keywords if live else self.codec.decode(recorded["keywords"]))
        for name, value in execution.restored().items():
            if name.startswith(_CONFIGURABLE):
                config[CONF][name.removeprefix(_CONFIGURABLE)] = value
            elif name in RECORDED_KEYWORDS:
                keywords[name] = value
            else:
                config[name] = value  # type: ignore[literal-required]
        if live is None:
            keywords |= execution.incidental.get("returns", {})
        if keywords.get("checkpoint_during") is None:  # else natively that says it
            # But for "exit": what counts is committed with the records, whatever the loop waits for.
            keywords["durability"] = EXIT if execution.incidental.get("durability") == EXIT else "async"
        journal = execution.journal
        execution.memory[_IS_WHOLE] = not any(
            record.kind in ("node", "task") and journal.segment_of(record) == journal.segment
            for record in journal.known.values()
        )
        input = self.codec.decode(recorded["input"])
        if asked:
            input = self._answer(asked[-1], config)
        elif execution.journal.recorded_before > 1 and self._was_taken(execution, config, input):
            input = None
        if input is None and execution.journal.recorded_before > 1:
            config = _at_head(config)
        return input, config, keywords

    def _recorded_config(self, execution: Execution) -> RunnableConfig:
        config: RunnableConfig = self.codec.decode(execution.incidental["config"])
        config[CONF] = self.codec.decode(execution.input["configurable"])
        return config

    def _was_taken(self, execution: Execution, config: RunnableConfig, input: Any) -> bool:
        """Whether the thread's state holds this run's input. The run fails when another one has moved that on."""
        head = self.saver.head(_thread(config))
        if head is None:
            return False
        if head.run == execution.id:
            return True
        if execution.incidental.get("durability") == EXIT:
            return False  # it saves nothing but what is there at its end
        wrote = any("rows" in record.body for record in execution.journal.known.values())
        if input is None or not wrote:
            return False
        if isinstance(input, Command) and head.has_input_writes:
            return True
        reader = self.saver.reader(_thread(config))
        if not reader.has_of(execution.id):
            return False  # what it wrote belongs to a checkpoint that was lost
        last = reader.last_run(head)
        if last != execution.id:
            raise execution.abort(
                RunOver(f"run {execution.id!r} cannot go on: run {last!r} came after it on its thread")
            )
        return True  # and then the state was edited, with `update_state`

    def _answer(self, pause: Question, config: RunnableConfig) -> Command[Any] | None:
        """The answer that opened this segment, or None once the graph has gone on with it."""
        head = self.saver.head(_thread(config))
        if head is None or head.id == pause.state["checkpoint"]:
            asks_anew = len(pause.answers) == 1 and _is_elsewhere(config, head)
            return _command(pause.answers, asks_anew, was_sent=head is not None and head.has_input_writes)
        if head.run is not None or head.has_input_writes or len(pause.answers) != 1:
            return None
        # The state was edited while the run waited (`update_state`): the question has another id now, and natively a
        # plain answer goes to whoever asks.
        return _command(pause.answers, by_anybody=True)

    # -- results

    def _outcome(self, execution: Execution, result: Any, keywords: Mapping[str, Any]) -> Any:
        """`outcome`, where `invoke` was asked for something else than the values of the state."""
        execution.memory[_VERSION] = keywords.get("version", "v1")
        if keywords.get("stream_mode", "values") != "values":
            result = Chunks(result, execution.id, execution.memory[_IS_WHOLE])
        return self.outcome(execution, result)

    def outcome(self, execution: Execution, result: Any) -> Any:
        """The native result, or the pause when the loop stopped at interrupts."""
        asked: dict[str, Any] = execution.memory.get(INTERRUPTS, {})
        if not asked:
            return result
        questions = {}
        for question, interrupt in asked.items():
            try:
                questions[question] = self.codec.encode(interrupt.value)
            except EncodingError:
                questions[question] = repr(interrupt.value)
        return Pause(questions, {"checkpoint": execution.memory[HEAD]}, result)

    def encode_result(self, execution: Execution, result: Any) -> Any:
        """A reference to the thread's state, which holds the result already: it is not stored a second time.

        The chunks that `invoke` returns for another `stream_mode` are stored, when none came before a crash.
        """
        if isinstance(result, Chunks):
            return {
                "chunks": self.codec.encode(list(result)) if result.is_whole else None,
                "run": execution.id,
            }
        place = {
            "thread": execution.thread,
            "checkpoint": execution.memory[HEAD],
            "output_keys": execution.input["output_keys"],
        }
        return {**place, "version": "v2"} if execution.memory.get(_VERSION) == "v2" else place

    def decode_result(self, data: Any) -> Any:
        if "chunks" in data:
            is_whole = data["chunks"] is not None
            return as_returned(Chunks(self.codec.decode(data["chunks"] or []), data["run"], is_whole))
        values = self._values(data["thread"], data["checkpoint"], data["output_keys"])
        return GraphOutput(value=values) if data.get("version") == "v2" else values

    def paused_result(self, run_id: str, request: Any, pause: Question) -> Any:
        """What `invoke` returns for an interrupted graph: the values so far and the open interrupts."""
        thread = str(self.codec.decode(request["configurable"])[CONFIG_KEY_THREAD_ID])
        snapshot = self.native.get_state(self.graph, {CONF: {CONFIG_KEY_THREAD_ID: thread}})
        output_keys = request["output_keys"] or self.graph.output_channels
        values = (
            snapshot.values if isinstance(snapshot.values, dict) and not isinstance(output_keys, str) else {}
        )
        kept = {key: values[key] for key in output_keys if key in values}
        asked = [  # without a snapshot of them when the graph has lost the node that asks
            Interrupt(value=self.codec.decode(value), id=question)
            for question, value in pause.questions.items()
        ]
        return {**kept, INTERRUPT: list(snapshot.interrupts) or asked}

    def _values(self, thread: str, checkpoint: str, output_keys: Any) -> Any:
        config = _at(thread, checkpoint)
        loaded = self.saver.get_tuple(config)
        if loaded is None:
            raise ResultNotRecorded(
                f"the result stood in checkpoint {checkpoint} of thread {thread!r}, which was deleted"
            )
        channels, _ = channels_from_checkpoint(
            self.graph.channels, loaded.checkpoint, saver=self.saver, config=loaded.config
        )
        return read_channels(channels, output_keys if output_keys is not None else self.graph.output_channels)


@contextmanager
def _ended(execution: Execution) -> Iterator[None]:
    """Note where the graph's loop came to, and let go of it: the run holds it, and would be held by it."""
    try:
        yield
    finally:
        loop = execution.memory.pop(LOOP, None)
        if hasattr(loop, "checkpoint"):  # it has none when that could not be read
            execution.memory[HEAD] = loop.checkpoint["id"]


def _at_head(config: RunnableConfig) -> RunnableConfig:
    """The config of a run that goes on: it began at the checkpoint that its config names, and is not there any more."""
    configurable = {key: value for key, value in config[CONF].items() if key not in PLACE}
    return {**config, CONF: configurable}


def _thread(config: RunnableConfig) -> str:
    return str(config[CONF][CONFIG_KEY_THREAD_ID])


def _command(answers: Mapping[str, Any], by_anybody: bool, was_sent: bool = False) -> Command[Any]:
    """The command that gives the graph its answers, and what was said with them.

    Args:
        by_anybody: the only answer goes to whoever asks.
        was_sent: what was said with them is on the checkpoint already, and would be applied twice.
    """
    plain = {question: said(value).answer for question, value in answers.items()}
    resume = next(iter(plain.values())) if by_anybody else plain
    command = next((each.command for each in map(said, answers.values()) if each.command), None)
    if command is None or was_sent:
        return Command(resume=resume)
    return replace(command, resume=resume)


def _place(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint that was named with the answers, as a part of `configurable`."""
    return next((each.place for each in map(said, answers.values()) if each.place), {})


def _answered_config(config: RunnableConfig, answers: Mapping[str, Any]) -> RunnableConfig:
    """The config of a run that was answered: it goes on where it waited, or where its answers say."""
    return patch_configurable(_at_head(config), _place(answers))


def _is_elsewhere(config: RunnableConfig, head: Head | None) -> bool:
    """Whether a call goes on from a checkpoint that it names, before the head or of a subgraph.

    From there the graph asks again, and its questions have other ids: a plain answer goes to whoever asks.
    """
    addressed = config[CONF].get(CONFIG_KEY_CHECKPOINT_ID)
    latest = head.id if head else None
    return bool(config[CONF].get(CONFIG_KEY_CHECKPOINT_MAP)) or addressed not in (None, latest)


def _at(thread: str, checkpoint: str | None) -> RunnableConfig:
    place = {CONFIG_KEY_THREAD_ID: thread, CONFIG_KEY_CHECKPOINT_NS: "", CONFIG_KEY_CHECKPOINT_ID: checkpoint}
    return {CONF: place}


def staging() -> Any:
    """The journal of the run the calling code belongs to."""
    run = RUN.get()
    return run.journal if run is not None else None
