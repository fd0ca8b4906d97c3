"""Model and tool calls as steps, cut *inside* LangChain's callbacks: tracers see start and end in a replay too.

Models: `_generate_with_cache` for results, the provider's `_stream` for token streams, `_iter_v2_events` for protocol
events; a streamed step is recorded at its last part, before that is handed out, for a consumer may never ask for more.
Tools: the tool's own function, so that parsing, error handling and formatting stay native.

Not seen: a model or tool whose class overrides `invoke`, `stream` or `run` themselves, and calls from plain threads
made by user code without copying the context; these run again after a crash, as part of their node.
"""

import functools
import json
import operator
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import BaseModel

from .._core import RUN, SCOPE, Call, Execution, Usage, begin, inside
from .._core.errors import EncodingError
from ._private import BaseChatModel, BaseTool
from ._values import usage_of

_generate_with_cache = BaseChatModel._generate_with_cache
_agenerate_with_cache = BaseChatModel._agenerate_with_cache
_agenerate: Callable[..., Any] = BaseChatModel.agenerate
_stream, _astream = BaseChatModel.stream, BaseChatModel.astream
_iter_v2_events, _aiter_v2_events = BaseChatModel._iter_v2_events, BaseChatModel._aiter_v2_events
_run: Callable[..., Any] = BaseTool.run
_arun: Callable[..., Any] = BaseTool.arun

# The scope whose own task asks a model for one answer, which LangChain computes in a task of its own.
_ORDERED: ContextVar[object] = ContextVar("durable_agents_ordered", default=None)
# The model whose step the current code is inside of: what it calls of itself belongs to that step.
_MODEL: ContextVar[object] = ContextVar("durable_agents_model", default=None)


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    cuts: dict[type, dict[str, Callable[..., Any]]] = {
        BaseChatModel: {
            "_generate_with_cache": _durable_generate,
            "agenerate": _durable_batch,
            "_agenerate_with_cache": _durable_agenerate,
            "stream": _durable_stream,
            "astream": _durable_astream,
            "_iter_v2_events": _durable_events,
            "_aiter_v2_events": _durable_aevents,
        },
        BaseTool: {"run": _durable_run, "arun": _durable_arun},
    }
    for cls, methods in cuts.items():
        for name, method in methods.items():
            setattr(cls, name, functools.wraps(getattr(cls, name))(method))


class _StandIn:
    """Stands in for `self` inside the framework's own method, so that only the innermost call is replaced."""

    def __init__(self, real: Any) -> None:
        object.__setattr__(self, "_real", real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._real)


# -- models


def _model_call(
    model: Any, messages: Any, stop: Any, kwargs: dict[str, Any], usage: Any = None
) -> Call | None:
    run = RUN.get()
    if run is None or _MODEL.get() is model:
        return None
    settings = {k: v for k, v in kwargs.items() if k != "run_manager"}
    # Read off the messages: for a prompt of a few of them LangChain's own serializer takes longer than a whole step.
    fields = [{**vars(message), **(message.model_extra or {}), "id": None} for message in messages]
    prompt = json.dumps(fields, default=_fields_of)
    name = str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)
    text = json.dumps([prompt, stop, settings], default=_type_of, sort_keys=True)
    ordered = _ORDERED.get() is (SCOPE.get() or run.top)
    return begin("model", name, input=text, codec=run.runner.codec, usage=usage, ordered=ordered)


def _type_of(value: object) -> str:
    """What stands for a value that is no JSON: its text may hold an address, or a set's order, and differ on replay."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _fields_of(value: object) -> object:
    """What stands for a value inside a message that is no JSON."""
    return dict(vars(value)) if isinstance(value, BaseModel) else _type_of(value)


@contextmanager
def _inside_model(model: object) -> Iterator[None]:
    token = _MODEL.set(model)
    try:
        yield
    finally:
        _MODEL.reset(token)


def _durable_generate(
    self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
) -> ChatResult:
    call = _model_call(self, messages, stop, kwargs, usage_of)
    if call is None:
        return _generate_with_cache(self, messages, stop=stop, run_manager=run_manager, **kwargs)
    native = functools.partial(
        _generate_with_cache, self, messages, stop=stop, run_manager=run_manager, **kwargs
    )
    if call.recorded() is None:
        with _inside_model(self):
            return call.do(native)
    served = call.do(native)
    self._replay_v2_events_for_cache_hit(served.generations, run_manager=run_manager, **kwargs)
    return served


async def _durable_batch(self: Any, messages: Any, *args: Any, **kwargs: Any) -> Any:
    run = RUN.get()
    scope = (SCOPE.get() or run.top) if run is not None else None
    if scope is None or len(messages) != 1 or not scope.is_ours:
        return await _agenerate(self, messages, *args, **kwargs)
    token = _ORDERED.set(scope)
    try:
        return await _agenerate(self, messages, *args, **kwargs)
    finally:
        _ORDERED.reset(token)


async def _durable_agenerate(
    self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
) -> ChatResult:
    call = _model_call(self, messages, stop, kwargs, usage_of)
    if call is None:
        return await _agenerate_with_cache(self, messages, stop=stop, run_manager=run_manager, **kwargs)
    native = functools.partial(
        _agenerate_with_cache, self, messages, stop=stop, run_manager=run_manager, **kwargs
    )
    if call.recorded() is None:
        with _inside_model(self):
            return await call.ado(native)
    served = await call.ado(native)
    await self._areplay_v2_events_for_cache_hit(served.generations, run_manager=run_manager, **kwargs)
    return served


def _is_last(part: Any) -> bool:
    if isinstance(part, ChatGenerationChunk):
        return getattr(part.message, "chunk_position", None) == "last"
    return isinstance(part, dict) and part.get("event") == "message-finish"


def _usage_of_parts(parts: list[Any]) -> Usage | None:
    """Tokens of a streamed call: providers report them on one chunk, or spread over several."""
    chunks = [part for part in parts if isinstance(part, ChatGenerationChunk)]
    if not chunks:
        return None
    whole = functools.reduce(operator.add, chunks)
    return usage_of(ChatResult(generations=[whole]))


class _Recorder:
    """Collects the parts of a streamed model call, to be recorded once."""

    def __init__(self, call: Call, model: object) -> None:
        self._call, self._model = call, model
        self.parts: list[Any] = []
        self.open = True

    def __enter__(self) -> "_Recorder":
        self._call.run.enter(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._call.run.leave(True)

    @contextmanager
    def step(self) -> Iterator[None]:
        """The model's scope, for one step of its generator only: it must not leak to the consumer."""
        with inside(self._call.inner()), _inside_model(self._model):
            yield

    def take(self, part: Any) -> bool:
        """Keep a part as the provider gave it, before LangChain writes into it; whether it is the last."""
        self.parts.append(part.model_copy(deep=True) if isinstance(part, ChatGenerationChunk) else part)
        return self.open and _is_last(part)


def _recorded_parts(call: Call, parts: Iterator[Any], model: object) -> Iterator[Any]:
    if (record := call.recorded()) is not None:
        yield from call.value_of(record)
        return
    with _Recorder(call, model) as recorder:
        while True:
            try:
                with recorder.step():
                    part = next(parts)
            except StopIteration:
                break
            except Exception as error:
                if recorder.open and not call.is_signal(error):
                    call.run.journal.commit(call.draft(error=error))
                raise
            together = [part]
            if recorder.take(part):  # what follows is little, such as the usage, and belongs to the record
                with recorder.step():
                    for later in parts:
                        recorder.take(later)
                        together.append(later)
                call.run.journal.commit(call.draft(recorder.parts))
                recorder.open = False
            try:
                yield from together
            except GeneratorExit:
                break  # the consumer stopped early: it gets the same part of the stream again
        if recorder.open:
            call.run.journal.commit(call.draft(recorder.parts))


async def _arecorded_parts(call: Call, parts: AsyncIterator[Any], model: object) -> AsyncIterator[Any]:
    if (record := call.recorded()) is not None:
        for part in call.value_of(record):
            yield part
        return
    with _Recorder(call, model) as recorder:
        while True:
            try:
                with recorder.step():
                    part = await anext(parts)
            except StopAsyncIteration:
                break
            except Exception as error:
                if recorder.open and not call.is_signal(error):
                    await call.run.commit(call.draft(error=error))
                raise
            together = [part]
            if recorder.take(part):
                with recorder.step():
                    async for later in parts:
                        recorder.take(later)
                        together.append(later)
                await call.run.commit(call.draft(recorder.parts))
                recorder.open = False
            try:
                for part in together:
                    yield part
            except GeneratorExit:
                if recorder.open:  # nothing may be awaited here any more
                    call.run.journal.commit(call.draft(recorder.parts))
                raise
        if recorder.open:
            await call.run.commit(call.draft(recorder.parts))


class _StreamStandIn(_StandIn):
    def _stream(self, messages: Any, stop: Any = None, **kwargs: Any) -> Iterator[Any]:
        call = _model_call(self._real, messages, stop, kwargs, _usage_of_parts)
        parts = self._real._stream(messages, stop=stop, **kwargs)
        return parts if call is None else _recorded_parts(call, iter(parts), self._real)

    def _astream(self, messages: Any, stop: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        call = _model_call(self._real, messages, stop, kwargs, _usage_of_parts)
        parts = self._real._astream(messages, stop=stop, **kwargs)
        return parts if call is None else _arecorded_parts(call, aiter(parts), self._real)


def _stand_in(model: Any) -> Any:
    return _StreamStandIn(model) if RUN.get() is not None and _MODEL.get() is not model else model


def _durable_stream(
    self: Any, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any
) -> Iterator[Any]:
    return _stream(_stand_in(self), input, config, stop=stop, **kwargs)


def _durable_astream(
    self: Any, input: Any, config: Any = None, *, stop: Any = None, **kwargs: Any
) -> AsyncIterator[Any]:
    return _astream(_stand_in(self), input, config, stop=stop, **kwargs)


def _durable_events(
    self: Any, messages: Any, *, run_manager: Any, stream: Any, stop: Any = None, **kwargs: Any
) -> Iterator[Any]:
    native = functools.partial(
        _iter_v2_events, self, messages, run_manager=run_manager, stream=stream, stop=stop, **kwargs
    )
    call = _model_call(self, messages, stop, kwargs)
    if call is None:
        yield from native()
    elif (record := call.recorded()) is not None:
        for event in call.value_of(record):
            stream.dispatch(event)
            run_manager.on_stream_event(event)
            yield event
    else:
        yield from _recorded_parts(call, iter(native()), self)


async def _durable_aevents(
    self: Any, messages: Any, *, run_manager: Any, stream: Any, stop: Any = None, **kwargs: Any
) -> AsyncIterator[Any]:
    native = functools.partial(
        _aiter_v2_events, self, messages, run_manager=run_manager, stream=stream, stop=stop, **kwargs
    )
    call = _model_call(self, messages, stop, kwargs)
    if call is None:
        async for event in native():
            yield event
    elif (record := call.recorded()) is not None:
        for event in call.value_of(record):
            stream.dispatch(event)
            await run_manager.on_stream_event(event)
            yield event
    else:
        async for event in _arecorded_parts(call, aiter(native()), self):
            yield event


# -- tools


class _ToolStandIn(_StandIn):
    """A tool whose own function is a step."""

    def __init__(self, real: Any, call: Call) -> None:
        super().__init__(real)
        object.__setattr__(self, "_call", call)

    @property
    def _run(self) -> Callable[..., Any]:
        call, function = self._call, self._real._run

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            return self._as_returned(call.do(lambda: function(*args, **kwargs)))

        return body

    @property
    def _arun(self) -> Callable[..., Any]:
        call, function = self._call, self._real._arun

        @functools.wraps(function)
        async def body(*args: Any, **kwargs: Any) -> Any:
            return self._as_returned(await call.ado(lambda: function(*args, **kwargs)))

        return body

    def _as_returned(self, result: Any) -> Any:
        """What somebody said the tool had returned is JSON, which has no pairs."""
        is_pair = self._real.response_format == "content_and_artifact"
        return tuple(result) if is_pair and isinstance(result, list) else result


def _described(run: Execution, value: Any) -> Any:
    try:
        return run.runner.codec.encode(value)
    except EncodingError:
        return _type_of(value)


def _tool_call(tool: Any, tool_input: Any, kwargs: dict[str, Any]) -> Call | None:
    run = RUN.get()
    if run is None:
        return None
    arguments = tool._filter_injected_args(tool_input) if isinstance(tool_input, dict) else tool_input
    named = arguments if isinstance(arguments, dict) else {"": arguments}
    text = json.dumps({name: _described(run, value) for name, value in named.items()}, sort_keys=True)
    key = str(kwargs.get("tool_call_id") or "")
    return begin("tool", tool.name, key=key, input=text, codec=run.runner.codec)


def _durable_run(self: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
    call = _tool_call(self, tool_input, kwargs)
    return _run(self if call is None else _ToolStandIn(self, call), tool_input, *args, **kwargs)


def _durable_arun(self: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
    call = _tool_call(self, tool_input, kwargs)
    return _arun(self if call is None else _ToolStandIn(self, call), tool_input, *args, **kwargs)
