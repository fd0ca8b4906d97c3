"""Running an agent's native loop once, for the input or the answers of a durable run.

After a crash the loop starts again from the input, or from the `RunState` of the last approval that was answered, and
every finished step is served from its record.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal

from agents import Agent, AgentsException, MultiProvider, RunConfig
from agents.result import RunResultBase, RunResultStreaming

from .._core import RUN, Codec, Execution, Pause, Question, Request, Run, Runner, having, scope
from .._core.errors import CancelRequested, EncodingError, NotSupported, RunCancelled
from . import _approvals, _private, _results, _sessions
from ._calls import FRAME, Frame
from ._context import changes_of, refill
from ._shape import structure_of

RECORDED = ("max_turns", "previous_response_id", "auto_previous_response_id", "conversation_id")
"""Options of the verbs that are plain data."""


@dataclass(frozen=True, slots=True)
class Live:
    """What only the calling process has: the verb's own options, with objects and all.

    Args:
        answers: whether it is the call that answers a pause, and its context what the user has made of it meanwhile.
    """

    options: dict[str, Any] = field(default_factory=dict)
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A streamed run that the SDK is about to drive; its own task opens the durable run first."""

    runner: "AgentsRunner"
    request: Request
    run_id: str | None


STARTED: ContextVar[Started | None] = ContextVar("durable_agents_openai_started", default=None)


class AgentsRunner(Runner):
    """The core's side of a `DurableRunner`."""

    framework = "openai_agents"
    agent: Agent[Any]

    def is_async(self, execution: Execution) -> bool:
        return True

    def check_fork(self, run_id: str) -> None:
        opening = Run(run_id)._records()[0].value()
        if "session" in opening["input"]["options"] or "session" in opening["live"]:
            raise NotSupported(
                f"run {run_id!r} works on a session, which a fork would append to as well; send the input on a session "
                f"of its own instead"
            )

    def check_answer(self, asked: Any, answer: Any) -> None:
        _approvals.check(answer)

    def fingerprint(self) -> dict[str, Any]:
        return structure_of(self.agent)

    # -- one pass of the native loop

    def drive(self, execution: Execution) -> Any:
        raise NotImplementedError("an agent runs on an event loop")

    async def adrive(self, execution: Execution) -> Any:
        with ExitStack() as opened:
            options = self._options(execution, opened)
            input = await self._input(execution, options)
            opened.enter_context(self._loop(execution))
            result = await self._native(input, options, streams=bool(execution.incidental["streams"]))
        if isinstance(result, RunResultStreaming) and not result.interruptions:
            with suppress(EncodingError):  # nobody listens: what is asked for is the result
                context = result.context_wrapper.context
                result = self.decode_result(self.encode_result(execution, result))
                result.context_wrapper.context = context
        return self.outcome(execution, result)

    async def _native(self, input: Any, options: dict[str, Any], streams: bool) -> RunResultBase:
        if not streams:
            result: RunResultBase = await _native_run(_agent_runner(), self.agent, input, **options)
            return result
        streamed: RunResultStreaming = _native_run_streamed(_agent_runner(), self.agent, input, **options)
        async for _ in streamed.stream_events():
            pass
        return streamed

    async def anested(self, request: Request) -> Any:
        """The loop as a part of the run that calls it."""
        run = RUN.get()
        assert run is not None
        options = request.live.options
        with having(FRAME, Frame(run, self.codec, self.agent)):
            return await _native_run(_agent_runner(), self.agent, options["input"], **_without_input(options))

    @contextmanager
    def _loop(self, execution: Execution) -> Iterator[None]:
        """The loop's steps are recorded; those behind an answer have a path of their own."""
        asked = _asked(execution)
        with ExitStack() as entered:
            if asked:
                entered.enter_context(scope(f"segment:{len(asked) + 1}"))
            entered.enter_context(having(FRAME, Frame(execution, self.codec, self.agent)))
            yield

    def _options(self, execution: Execution, opened: ExitStack) -> dict[str, Any]:
        """The options of the native verb: the caller's own, or what was recorded and restored of them."""
        if execution.live is not None:
            return _without_input(execution.live.options)
        recorded = execution.input["options"]
        options = {name: self.codec.decode(recorded[name]) for name in RECORDED if name in recorded}
        if "context" in recorded:
            options["context"] = self.codec.decode(recorded["context"])
        if "run_config" in recorded:
            options["run_config"] = RunConfig(**self.codec.decode(recorded["run_config"]))
        restored: Mapping[str, Any] = execution.restored()
        options.update(restored)
        if "session" in recorded and "session" not in restored:
            options["session"] = session = _sessions.opened(recorded["session"])
            opened.callback(session.close)
        return options

    async def _input(self, execution: Execution, options: dict[str, Any]) -> Any:
        """The user's input, or the state of the last pause with the decisions that answered it."""
        asked = _asked(execution)
        if not asked:
            return self.codec.decode(execution.input["input"])
        pause, live = asked[-1], execution.live
        context, kept = options.get("context"), self.codec.decode(pause.state["context"])
        if kept is not None and (context is None or not live or not (live.answers or refill(context, kept))):
            context = kept
        state = await _results.decode_state(self.agent, pause.state, context, self.codec)
        _approvals.apply(state, pause)
        for name in ("max_turns", "context", "previous_response_id", "conversation_id"):
            options.pop(name, None)  # the state has them
        options.pop("auto_previous_response_id", None)
        return state

    # -- a streamed run, which the SDK's own task drives

    async def stream(self, started: Started, native: Callable[[], Any], streamed: Any) -> None:
        """Open the run, then let the SDK stream it; runs in the task that the SDK made for that."""
        try:
            if RUN.get() is not None:
                await self._stream_nested(started, native)
                return
            events = self.astream_call(
                started.request,
                started.run_id,
                lambda execution: self._streaming(execution, native, streamed),
                lambda execution: self.outcome(execution, streamed),
            )
            async for _ in events:
                pass
        except RunCancelled:
            if streamed._cancel_mode == "none":
                raise
        except AgentsException as error:
            if not hasattr(error, "run_data"):  # from a record, and the SDK looks at it
                error.run_data = None
            raise
        finally:
            streamed.is_complete = True
            streamed._event_queue.put_nowait(_private.QueueCompleteSentinel())

    async def _stream_nested(self, started: Started, native: Callable[[], Any]) -> None:
        run = RUN.get()
        assert run is not None
        with self.as_part(started.run_id), having(FRAME, Frame(run, self.codec, self.agent)):
            await native()

    async def _streaming(
        self, execution: Execution, native: Callable[[], Any], streamed: Any
    ) -> AsyncGenerator[Any, None]:
        setattr(streamed, _RUN, execution)
        with self._loop(execution):
            try:
                await native()
                if isinstance(streamed._stored_exception, asyncio.CancelledError):  # the SDK has swallowed it
                    raise streamed._stored_exception
            except asyncio.CancelledError:
                if streamed._cancel_mode != "none" and not getattr(streamed, _LEFT, False):
                    _stop(execution)
                raise
        if streamed._cancel_mode == "after_turn" and streamed.final_output is None:
            _stop(execution)
        return
        yield

    # -- results

    def outcome(self, execution: Execution, result: RunResultBase) -> Any:
        """The native result, or the pause when tools wait for approval."""
        items = getattr(result, "interruptions", None)
        if not items:
            return result
        questions = _approvals.questions_of(items, _asked(execution))
        return Pause(questions, _results.encode_state(result, self.codec), result)

    def encode_result(self, execution: Execution, result: Any) -> Any:
        # A context that was recorded can be made again by a replay, if nothing else is missing for that.
        again = "context" in execution.input["options"] and not execution.journal.opening["live"]
        return _results.encode_result(result, self.codec, None if again else partial(changes_of, execution))

    def decode_result(self, data: Any) -> Any:
        return _results.decode_result(self.agent, data, self.codec)

    def paused_result(self, run_id: str, request: Any, pause: Question) -> Any:
        """What the native verb has returned: a `RunResult` with the tool calls that wait in `interruptions`."""
        return _results.paused_result(self.agent, pause.state, self.codec)


def _stop(execution: Execution) -> None:
    execution.stop(CancelRequested(f"run {execution.id!r} was stopped with cancel() on its stream"))


def _asked(execution: Execution) -> list[Question]:
    """The run's pauses for approval, all of them answered."""
    return [pause for pause in execution.pauses if not pause.is_our_own]


def _without_input(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "input"}


def _agent_runner() -> Any:
    """The runner that `agents.Runner` uses in this process."""
    return _private.run.get_default_agent_runner()


def recordable(codec: Codec, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options that have a durable form, as JSON data, and the names of the others that the behaviour depends on."""
    kept: dict[str, Any] = {}
    gone: list[str] = []
    for name, value in options.items():
        if value is None and name != "max_turns":
            continue
        if name == "session":
            kept[name], can_be_opened = _sessions.described(value)
            gone += [] if can_be_opened else [name]
        elif name in (*RECORDED, "context", "run_config"):
            try:
                kept[name] = codec.encode(_changed(value) if name == "run_config" else value)
            except EncodingError:
                gone.append(name)
        elif name == "error_handlers":
            gone.append(name)
    return kept, gone


def _changed(config: RunConfig | dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that are not as the SDK sets them."""
    if isinstance(config, dict):
        return config
    default = RunConfig()
    return {
        each.name: value
        for each in fields(config)
        if (value := getattr(config, each.name)) != getattr(default, each.name)
        and not (each.name == "model_provider" and type(value) is MultiProvider)
    }


_native_run: Any = _private.AgentRunner.run
_native_run_streamed: Any = _private.AgentRunner.run_streamed
_start_streaming: Any = _private.run.start_streaming
_native_cancel: Any = RunResultStreaming.cancel
_stream_events = RunResultStreaming.stream_events.__code__
_LEFT, _RUN = "_durable_agents_left", "_durable_agents_run"


def install() -> None:
    """Let the SDK's task that drives a streamed run open the durable run first, and know why it is cancelled."""
    _private.run.start_streaming = _started
    RunResultStreaming.cancel = _cancelled  # type: ignore[method-assign]


async def _started(**arguments: Any) -> None:
    started = STARTED.get()
    if started is None:
        await _start_streaming(**arguments)
        return
    STARTED.set(None)
    await started.runner.stream(started, lambda: _start_streaming(**arguments), arguments["streamed_result"])


def _cancelled(self: RunResultStreaming, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
    """The SDK calls `cancel` itself when the task that listens is cancelled; that ends no durable run."""
    if sys._getframe(1).f_code is _stream_events:
        setattr(self, _LEFT, True)
    elif mode == "immediate" and (execution := getattr(self, _RUN, None)) is not None:
        _stop(execution)  # first: tools under way are cancelled then, as natively
    _native_cancel(self, mode)
