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
from contextlib import AbstractContextManager, aclosing
from contextvars import ContextVar
from typing import Any

from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import BaseModel

from .._core import (
    RUN,
    SCOPE,
    Call,
    StandIn,
    Usage,
    aparts,
    begin,
    cut,
    described,
    having,
    parts,
    type_name,
)
from ._private import BaseChatModel, BaseTool
from ._values import usage_of

# The scope whose own task asks a model for one answer, which LangChain computes in a task of its own.
_ORDERED: ContextVar[object] = ContextVar("durable_agents_ordered", default=None)
# The model whose step the current code is inside of: what it calls of itself belongs to that step.
_MODEL: ContextVar[object] = ContextVar("durable_agents_model", default=None)


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    cut(BaseChatModel, "_generate_with_cache", _generate)
    cut(BaseChatModel, "agenerate", _agenerate_batch)
    cut(BaseChatModel, "_agenerate_with_cache", _agenerate)
    cut(BaseChatModel, "stream", _stream)
    cut(BaseChatModel, "astream", _stream)
    cut(BaseChatModel, "_iter_v2_events", _events)
    cut(BaseChatModel, "_aiter_v2_events", _aevents)
    cut(BaseTool, "run", _run_tool)
    cut(BaseTool, "arun", _run_tool)


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
    name = str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)
    text = json.dumps([fields, stop, settings], default=_fields_of, sort_keys=True)
    ordered = _ORDERED.get() is (SCOPE.get() or run.top)
    return begin("model", name, input=text, codec=run.runner.codec, usage=usage, ordered=ordered)


def _inside_model(model: object) -> AbstractContextManager[Any]:
    return having(_MODEL, model)


def _fields_of(value: object) -> object:
    """What stands for a value inside a prompt that is no JSON: a text may hold an address, and differ on replay."""
    return dict(vars(value)) if isinstance(value, BaseModel) else type_name(type(value))


def _generate(
    native: Any, self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
) -> ChatResult:
    body = functools.partial(native, self, messages, stop=stop, run_manager=run_manager, **kwargs)
    call = _model_call(self, messages, stop, kwargs, usage_of)
    if call is None or call.recorded() is None:
        with _inside_model(self):
            result: ChatResult = body() if call is None else call.do(body)
            return result
    served: ChatResult = call.do(body)
    self._replay_v2_events_for_cache_hit(served.generations, run_manager=run_manager, **kwargs)
    return served


async def _agenerate_batch(native: Any, self: Any, messages: Any, *args: Any, **kwargs: Any) -> Any:
    run = RUN.get()
    assert run is not None
    scope = SCOPE.get() or run.top
    if len(messages) != 1 or not scope.is_ours:
        return await native(self, messages, *args, **kwargs)
    with having(_ORDERED, scope):
        return await native(self, messages, *args, **kwargs)


async def _agenerate(
    native: Any, self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
) -> ChatResult:
    body = functools.partial(native, self, messages, stop=stop, run_manager=run_manager, **kwargs)
    call = _model_call(self, messages, stop, kwargs, usage_of)
    if call is None or call.recorded() is None:
        with _inside_model(self):
            result: ChatResult = await (body() if call is None else call.ado(body))
            return result
    served: ChatResult = await call.ado(body)
    await self._areplay_v2_events_for_cache_hit(served.generations, run_manager=run_manager, **kwargs)
    return served


def _is_last(part: Any) -> bool:
    if isinstance(part, ChatGenerationChunk):
        return getattr(part.message, "chunk_position", None) == "last"
    return isinstance(part, dict) and part.get("event") == "message-finish"


def _usage_of_parts(given: list[Any]) -> Usage | None:
    """Tokens of a streamed call: providers report them on one chunk, or spread over several."""
    chunks = [part for part in given if isinstance(part, ChatGenerationChunk)]
    if not chunks:
        return None
    whole = functools.reduce(operator.add, chunks)
    return usage_of(ChatResult(generations=[whole]))


class _Taken:
    """What a streamed model call has given."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def take(self, part: Any) -> bool:
        """Keep a part as the provider gave it, before LangChain writes into it; whether it is the last.

        What follows the last is little, such as the usage, and belongs to the record.
        """
        self.parts.append(part.model_copy(deep=True) if isinstance(part, ChatGenerationChunk) else part)
        return _is_last(part)

    def result(self) -> list[Any]:
        return self.parts


def _recorded_parts(call: Call, body: Iterator[Any], model: object) -> Iterator[Any]:
    if (record := call.recorded()) is not None:
        yield from call.value_of(record)
        return
    taken, around = _Taken(), functools.partial(_inside_model, model)
    yield from parts(call, body, taken.take, taken.result, may_be_left=True, around=around)


async def _arecorded_parts(call: Call, body: AsyncIterator[Any], model: object) -> AsyncIterator[Any]:
    if (record := call.recorded()) is not None:
        for part in call.value_of(record):
            yield part
        return
    taken, around = _Taken(), functools.partial(_inside_model, model)
    async with aclosing(
        aparts(call, body, taken.take, taken.result, may_be_left=True, around=around)
    ) as running:
        async for part in running:
            yield part


class _StreamStandIn(StandIn):
    def _stream(self, messages: Any, stop: Any = None, **kwargs: Any) -> Iterator[Any]:
        call = _model_call(self.real, messages, stop, kwargs, _usage_of_parts)
        native = self.real._stream(messages, stop=stop, **kwargs)
        return native if call is None else _recorded_parts(call, iter(native), self.real)

    def _astream(self, messages: Any, stop: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        call = _model_call(self.real, messages, stop, kwargs, _usage_of_parts)
        native = self.real._astream(messages, stop=stop, **kwargs)
        return native if call is None else _arecorded_parts(call, aiter(native), self.real)


def _stream(native: Any, self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
    model = self if _MODEL.get() is self else _StreamStandIn(self)
    return native(model, input, config, **kwargs)


def _events(
    native: Any, self: Any, messages: Any, *, run_manager: Any, stream: Any, stop: Any = None, **kwargs: Any
) -> Iterator[Any]:
    body = functools.partial(
        native, self, messages, run_manager=run_manager, stream=stream, stop=stop, **kwargs
    )
    call = _model_call(self, messages, stop, kwargs)
    if call is None:
        yield from body()
    elif (record := call.recorded()) is not None:
        for event in call.value_of(record):
            stream.dispatch(event)
            run_manager.on_stream_event(event)
            yield event
    else:
        yield from _recorded_parts(call, iter(body()), self)


async def _aevents(
    native: Any, self: Any, messages: Any, *, run_manager: Any, stream: Any, stop: Any = None, **kwargs: Any
) -> AsyncIterator[Any]:
    body = functools.partial(
        native, self, messages, run_manager=run_manager, stream=stream, stop=stop, **kwargs
    )
    call = _model_call(self, messages, stop, kwargs)
    if call is None:
        async for event in body():
            yield event
    elif (record := call.recorded()) is not None:
        for event in call.value_of(record):
            stream.dispatch(event)
            await run_manager.on_stream_event(event)
            yield event
    else:
        async for event in _arecorded_parts(call, aiter(body()), self):
            yield event


# -- tools


class _ToolStandIn(StandIn):
    """A tool whose own function is a step."""

    @property
    def _run(self) -> Callable[..., Any]:
        call, function = self.call, self.real._run

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            return self._as_returned(call.do(lambda: function(*args, **kwargs)))

        return body

    @property
    def _arun(self) -> Callable[..., Any]:
        call, function = self.call, self.real._arun

        @functools.wraps(function)
        async def body(*args: Any, **kwargs: Any) -> Any:
            return self._as_returned(await call.ado(lambda: function(*args, **kwargs)))

        return body

    def _as_returned(self, result: Any) -> Any:
        """What somebody said the tool had returned is JSON, which has no pairs."""
        is_pair = self.real.response_format == "content_and_artifact"
        return tuple(result) if is_pair and isinstance(result, list) else result


def _tool_call(tool: Any, tool_input: Any, kwargs: dict[str, Any]) -> Call | None:
    run = RUN.get()
    if run is None:
        return None
    arguments = tool._filter_injected_args(tool_input) if isinstance(tool_input, dict) else tool_input
    key = str(kwargs.get("tool_call_id") or "")
    return begin("tool", tool.name, key=key, input=described(arguments), codec=run.runner.codec)


def _run_tool(native: Any, self: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
    call = _tool_call(self, tool_input, kwargs)
    return native(self if call is None else _ToolStandIn(self, call=call), tool_input, *args, **kwargs)
