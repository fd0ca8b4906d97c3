"""The task hook: a node's or `@task`'s writes are durable, together with its record, before anybody sees its result.

`run_with_retry` and `arun_with_retry` are the one place through which Pregel runs every task: nodes, Sends, error
handlers, `@task`s, and those of subgraphs. The native code runs; the hook adds, inside a durable run only:

- a path: `<superstep>/node:<name>`, below the path of the node, tool or graph call the task belongs to;
- each failed attempt as an error record, so that a replay takes the same course through the retry policy;
- the record of the finished task, committed in one transaction with its writes and the checkpoint it started from;
- the answers of the run, pinned to the interrupts they belong to.

Paths name the place in the graph and never a checkpoint id: those are random, and may be made anew after a crash.
"""

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.constants import START
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.types import Interrupt, PregelExecutableTask, RetryPolicy, Send

from .._core import (
    RUN,
    SCOPE,
    Draft,
    Execution,
    Question,
    Record,
    Scope,
    Statement,
    dumps,
    escape,
    failure,
    inside,
    logger,
    now_us,
)
from .._core.errors import EncodingError
from ._loops import EXIT, LOOP, number_of
from ._private import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_THREAD_ID,
    CONTROL_WRITES,
    NO_WRITES,
    PUSH,
    RETURN,
    TASKS,
    UntrackedValue,
    ensure_message_ids,
    interrupt_id,
    pregel_runner,
    sanitize_untracked_values_in_send,
    task_path_str,
)
from ._saver import DurableSaver
from ._values import said

_run_with_retry: Callable[..., Any] = pregel_runner.run_with_retry
_arun_with_retry: Callable[..., Any] = pregel_runner.arun_with_retry

INTERRUPTS = "langgraph.interrupts"
SEGMENT = "langgraph.segment"
"""In `Execution.memory` of a replay: the number of the segment it is in, from 0."""
# Attempts of a task number their `@task` calls apart: those of a failed one are made again, as natively.
_BY_ATTEMPT = 10**14


def install() -> None:
    """Put the hook in; outside a durable run it calls the native code and nothing else."""
    pregel_runner.run_with_retry = _durable_run_with_retry
    pregel_runner.arun_with_retry = _durable_arun_with_retry


class _TaskStep:
    """One task of one superstep, in this execution."""

    def __init__(self, run: Execution, task: PregelExecutableTask, configurable: dict[str, Any]) -> None:
        self._run, self._task = run, task
        self._loop: Any = configurable[CONFIG_KEY_CALL].keywords["schedule_task"].__self__
        saver = self._loop.checkpointer
        keeps = isinstance(saver, DurableSaver) and self._loop.durability != EXIT
        self._saver: DurableSaver | None = saver if keeps else None
        segment, self._kind = _segment(task, self._loop.step)
        above: Scope = SCOPE.get() or run.top if self._kind == "task" else self._loop._durable_scope
        self._path, self._key = above.child(segment), above.child_key(segment)
        self._attempt = 1
        self._next_question = ""
        self._started = now_us()
        call = configurable[CONFIG_KEY_CALL]
        scheduler = _Scheduler(call.keywords["schedule_task"], self)
        self.configurable = {
            **configurable,
            CONFIG_KEY_CALL: functools.partial(
                call.func, *call.args, **{**call.keywords, "schedule_task": scheduler}
            ),
        }
        self.task = dataclasses.replace(task, proc=cast(Any, _Attempts(task.proc, self)))
        self._pin_answers()

    def let_go(self) -> None:
        """Of what holds this step, and the loop with it."""
        del self.task, self.configurable

    @property
    def path(self) -> str:
        return self._path if self._attempt == 1 else f"{self._path}@{self._attempt}"

    @property
    def checkpoint_saved(self) -> Any:
        """The future of the checkpoint this task starts from; it must be staged before any record below the task."""
        return getattr(self._loop, "_put_checkpoint_fut", None) if self._saver else None

    def _pin_answers(self) -> None:
        """An answer belongs to its interrupt. Natively, sent again after a crash, it answers the next one."""
        config = self._task.config[CONF]
        pad, pauses = config.get(CONFIG_KEY_SCRATCHPAD), self._pauses()
        if pad is None or not pauses:
            return
        answers = {question: answer for pause in pauses for question, answer in pause.answers.items()}
        known: list[Any] = []
        while (question := interrupt_id(config[CONFIG_KEY_CHECKPOINT_NS], len(known))) in answers:
            known.append(said(answers[question]).answer)
        if known:
            pad.resume[:] = known
        self._next_question = question

    def _pauses(self) -> Sequence[Question]:
        """The pauses of the run; in a replay those before its segment."""
        return self._run.pauses[: self._run.memory.get(SEGMENT)]

    def ask_again(self) -> None:
        """In a replay: a task without a record asks what it asked, instead of running up to there."""
        segment = self._run.memory.get(SEGMENT)
        if segment is None or segment >= len(self._run.pauses):
            return
        asked = self._run.pauses[segment].questions
        question = self._next_question or interrupt_id(self._task.config[CONF][CONFIG_KEY_CHECKPOINT_NS], 0)
        if question in asked:
            error = GraphInterrupt((Interrupt(self._run.runner.codec.decode(asked[question]), id=question),))
            self.failed(error)
            raise error

    @contextmanager
    def attempt(self, config: Any) -> Iterator[None]:
        """One try of the retry policy. A failed one that is recorded fails again without running."""
        runtime = config.get(CONF, {}).get(CONFIG_KEY_RUNTIME)
        info = getattr(runtime, "execution_info", None)
        self._attempt = info.node_attempt if info is not None else 1
        record = self._run.journal.known.get(self.path)
        if record is not None and record.status == "error":
            error = failure.decode(record.value())
            failure.tag(error, self._run.id, self.path)
            raise error
        self._run.enter(leaf=False)
        with inside(Scope(self.path, self._key, in_step=True)):
            yield

    def failed(self, error: Exception) -> Draft | None:
        """The record of a failed attempt; None for what is no failure, or was recorded before."""
        if isinstance(error, GraphInterrupt) and self._run.memory.get(LOOP) is self._loop:
            self._run.memory.setdefault(INTERRUPTS, {}).update(
                {i.id: i for i in (error.args[0] if error.args else ())}
            )
        known = self._run.journal.known.get(self.path)
        if isinstance(error, GraphBubbleUp) or known is not None:
            return None
        failure.tag(error, self._run.id, self.path)
        return self._draft(dumps(failure.encode(error)), "error")

    def recorded_writes(self) -> bool:
        """Restore the writes of a finished task, in a replay or when its graph has saved none of them."""
        record = self._record()
        if record is None or record.status == "opaque" or (self._saver is not None and not self._run.muted):
            self._attempt = 1
            return False
        self._task.writes.extend(self._writes(record))
        return True

    def _record(self) -> Record | None:
        """The record of the task's last attempt, if it is of this segment of the run.

        A graph that saves at its exit has saved at each pause what was before that: a task that runs again is meant to,
        since the graph was told to go on from an earlier checkpoint. A replay goes through all segments.
        """
        journal, record = self._run.journal, None
        for attempt in range(1, 1000):
            self._attempt = attempt
            record = journal.known.get(self.path)
            if record is None or record.status != "error":
                break
        if record is None:
            return None
        if self._run.muted:
            is_now = journal.segment_of(record) <= self._run.memory[SEGMENT]
        else:
            saves = isinstance(self._loop.checkpointer, DurableSaver)
            is_now = not saves or journal.segment_of(record) == journal.segment
        return record if is_now else None

    def _writes(self, record: Record) -> Iterator[tuple[str, Any]]:
        if self._saver is None:
            yield from ((c, v) for c, v in self._run.runner.codec.decode(record.value()["writes"]))
            return
        saver: Any = self._saver  # that of the replay
        thread = str(self._task.config[CONF][CONFIG_KEY_THREAD_ID])
        namespace = self._loop.config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, "")
        yield from saver.writes_of(thread, namespace, self._loop.checkpoint["id"], self._task.id)

    def number(self, call: Any) -> int:
        """The number of a `@task` call among those of this task: by order, or by its input when other tasks make it.

        LangGraph numbers in the order of arrival, and finds a finished call's result by that number after a crash.
        """
        scope = SCOPE.get() or self._run.top
        name = getattr(call.func, "__name__", "")
        return (self._attempt - 1) * _BY_ATTEMPT + number_of(self._run, scope, "@task", (name, call.input))

    def returned(self) -> Any:
        return next((value for channel, value in self._task.writes if channel == RETURN), None)

    def finished(self) -> tuple[Draft, Sequence[Statement]]:
        """The record of the finished task, and the rows to commit with it."""
        writes = self._durable_writes()
        if self._saver is not None:
            conf = self._loop.config[CONF]
            config: RunnableConfig = {
                CONF: {
                    CONFIG_KEY_THREAD_ID: str(self._loop.checkpoint_config[CONF][CONFIG_KEY_THREAD_ID]),
                    CONFIG_KEY_CHECKPOINT_NS: conf.get(CONFIG_KEY_CHECKPOINT_NS, ""),
                    CONFIG_KEY_CHECKPOINT_ID: self._loop.checkpoint["id"],
                }
            }
            rows = self._saver.record_writes(config, writes, self._task.id, task_path_str(self._task.path))
            return self._draft(dumps({"writes": len(writes), "task": self._task.id})), rows
        try:
            payload, status = (
                dumps({"writes": self._run.runner.codec.encode([list(write) for write in writes])}),
                "",
            )
        except EncodingError as reason:
            payload, status = dumps({"reason": str(reason)}), "opaque"
            logger.warning(
                "step %r of run %r: its writes are not stored: %s", self.path, self._run.id, reason
            )
        return self._draft(payload, status), ()

    def _draft(self, payload: str, status: str = "") -> Draft:
        return Draft(
            self._kind, self.path, payload, name=self._task.name, status=status, started=self._started,
            attempt=self._attempt,
        )  # fmt: skip

    def _durable_writes(self) -> list[tuple[str, Any]]:
        """What the loop's own `put_writes` will store for this task (langgraph/pregel/_loop.py)."""
        loop, writes = self._loop, list(self._task.writes)
        if all(channel in CONTROL_WRITES for channel, _ in writes):
            writes.append((NO_WRITES, None))
        ensure_message_ids(loop.specs, writes)
        if not loop._has_untracked_channels:
            return writes
        return [
            (c, sanitize_untracked_values_in_send(v, loop.channels))
            if c == TASKS and isinstance(v, Send)
            else (c, v)
            for c, v in writes
            if not isinstance(loop.specs.get(c), UntrackedValue)
        ]


def _segment(task: PregelExecutableTask, superstep: int) -> tuple[str, str]:
    """The task's part of the path, and its kind."""
    name = escape(task.name)
    if task.path[0] != PUSH:
        return f"{superstep}/node:{name}", "node"
    if isinstance(task.path[1], tuple):  # a @task: numbered by its caller, which is its scope
        number = cast(int, task.path[2])
        return f"task:{name}:{number % _BY_ATTEMPT}", "task"
    return f"{superstep}/node:{name}:{task.path[1]}", "node"  # a Send, by its place among the Sends


class _Scheduler:
    """Stands in for `loop.accept_push`, so that a `@task` call has the same number in every replay."""

    def __init__(self, accept: Any, step: _TaskStep) -> None:
        self._accept: Any = accept._accept if isinstance(accept, _Scheduler) else accept
        self._step = step
        self.__self__ = self._accept.__self__

    def __call__(self, task: PregelExecutableTask, number: int, call: Any = None) -> Any:
        return self._accept(task, number if call is None else self._step.number(call), call)


class _Attempts:
    """Stands in for a task's `proc`, so that each try of the retry policy is known by its number."""

    def __init__(self, proc: Any, step: _TaskStep) -> None:
        self._proc, self._step, self._run = proc, step, step._run

    def invoke(self, input: Any, config: Any) -> Any:
        with self._step.attempt(config):
            try:
                return self._proc.invoke(input, config)
            except Exception as error:
                if (draft := self._step.failed(error)) is not None:
                    self._run.journal.commit(draft)
                raise

    async def ainvoke(self, input: Any, config: Any) -> Any:
        with self._step.attempt(config):
            try:
                return await self._proc.ainvoke(input, config)
            except Exception as error:
                if (draft := self._step.failed(error)) is not None:
                    await self._run.commit(draft)
                raise

    async def astream(self, input: Any, config: Any) -> AsyncIterator[Any]:
        with self._step.attempt(config):
            try:
                async for chunk in self._proc.astream(input, config):
                    yield chunk
            except Exception as error:
                if (draft := self._step.failed(error)) is not None:
                    await self._run.commit(draft)
                raise


@functools.wraps(_run_with_retry)
def _durable_run_with_retry(
    task: PregelExecutableTask,
    retry_policy: Sequence[RetryPolicy] | None,
    configurable: dict[str, Any] | None = None,
) -> Any:
    run = RUN.get()
    if run is None or configurable is None or task.name == START:
        return _run_with_retry(task, retry_policy, configurable)
    step = _TaskStep(run, task, configurable)
    if step.recorded_writes():
        return step.returned()
    step.ask_again()
    if (saved := step.checkpoint_saved) is not None:
        saved.result()
    try:
        with run.body():
            result = _run_with_retry(step.task, retry_policy, step.configurable)
            run.journal.commit(*step.finished())
    finally:
        step.let_go()
    return result


@functools.wraps(_arun_with_retry)
async def _durable_arun_with_retry(
    task: PregelExecutableTask,
    retry_policy: Sequence[RetryPolicy] | None,
    stream: bool = False,
    configurable: dict[str, Any] | None = None,
) -> Any:
    run = RUN.get()
    if run is None or configurable is None or task.name == START:
        return await _arun_with_retry(task, retry_policy, stream, configurable)
    step = _TaskStep(run, task, configurable)
    if step.recorded_writes():
        return step.returned()
    step.ask_again()
    if (saved := step.checkpoint_saved) is not None:
        await asyncio.shield(saved)
    try:
        with run.body():
            result = await _arun_with_retry(step.task, retry_policy, stream, step.configurable)
            await run.commit(*step.finished())
    finally:
        step.let_go()
    return result
