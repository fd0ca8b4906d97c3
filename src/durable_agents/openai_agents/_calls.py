"""Model calls, tools, guardrails and handoffs as steps.

The cuts stand between the SDK's loop and what it calls: a model with its retries, a function tool with its timeout and
failure handling, a guardrail, a handoff with its callback. The agent, its tools and models are the user's own objects,
untouched. Outside of a durable run the cuts call the native code and nothing else.

Not steps, so run again in a replay: instructions, hooks, `is_enabled` and `needs_approval` functions, input filters,
error handlers, `tool_use_behavior`, and what an agent that is a tool does around its own steps.
"""

import copy
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agents import (
    Agent,
    InputGuardrailResult,
    ModelResponse,
    OutputGuardrailResult,
    ToolInputGuardrail,
    ToolOutputGuardrail,
)

from .._core import JSON, RUN, Call, Codec, Execution, Usage, aparts, begin, cut, described, having, inside
from .._core.errors import NotSupported, RecordedError
from . import _private
from ._context import OutcomeCodec, astep_on_context
from ._shape import agents_of, check_tools, target_of
from ._values import GuardrailCodec, ModelCodec, Streamed, ToolCodec, as_events, as_response, usage_of

_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed", "error", "response.error")
_SETTLED_AS_ERROR = "UnknownOutcome"


@dataclass(slots=True)
class Frame:
    """One pass of the SDK's loop inside a durable run: that of the run itself, or of an agent it calls.

    Args:
        run: the run.
        codec: the runner's.
        root: the agent the loop starts with.
    """

    run: Execution
    codec: Codec
    root: Agent[Any]
    agent: str = ""
    model: str = ""
    prompt: Any = None
    """Who is about to ask which model what; the loop asks one model at a time."""
    judged: Counter[str] = field(default_factory=Counter)
    """How often each guardrail was asked."""

    def number(self, guardrail: Any) -> str:
        """The use of a guardrail of this name, as the key of its step: guardrails run beside each other."""
        self.judged[name := guardrail.get_name()] += 1
        return str(self.judged[name]) if self.judged[name] > 1 else ""

    def agent_named(self, name: str) -> Agent[Any] | None:
        return next((agent for agent in agents_of(self.root) if agent.name == name), None)


FRAME: ContextVar[Frame | None] = ContextVar("durable_agents_openai_frame", default=None)


def frame_here() -> Frame | None:
    """The loop the calling code belongs to, if that is in a durable run."""
    frame = FRAME.get()
    return frame if frame is not None and RUN.get() is frame.run else None


def install() -> None:
    """Put the cuts in."""
    loop, tools = _private.run_loop, _private.tool_execution
    _cut(loop, "get_model", _noted_model)
    _cut(loop, "maybe_filter_model_input", _noted_prompt)
    _cut(loop, "get_all_tools", _checked_tools)
    _cut(loop, "get_response_with_retry", _response)
    _cut(loop, "stream_response_with_retry", _stream)
    _cut(loop, "get_handoffs", _handoffs)
    _cut(_private.turn_resolution, "get_handoffs", _handoffs)
    _cut(tools, "_invoke_function_tool_with_metadata", _tool)
    _cut(_private.guardrails, "run_single_input_guardrail", _input_guardrail)
    _cut(_private.guardrails, "run_single_output_guardrail", _output_guardrail)
    _cut(ToolInputGuardrail, "run", _tool_guardrail)
    _cut(ToolOutputGuardrail, "run", _tool_guardrail)
    _cut(_private.AgentRunner, "run", _nested_run)
    _cut(_private.AgentRunner, "run_streamed", _nested_run_streamed)


def _cut(owner: Any, name: str, durable: Callable[..., Any]) -> None:
    """`cut` by `durable(native, frame, …)`, for calls of a loop that is the run's."""

    def framed(native: Any, *args: Any, **kwargs: Any) -> Any:
        frame = frame_here()
        return native(*args, **kwargs) if frame is None else durable(native, frame, *args, **kwargs)

    cut(owner, name, framed)


# -- agents inside the run


def _nested_run(
    native: Any, frame: Frame, self: Any, agent: Agent[Any], input: Any, **kwargs: Any
) -> Coroutine[Any, Any, Any]:
    async def nested() -> Any:
        with _scope_of(frame, agent, input):
            return await native(self, agent, input, **kwargs)

    return nested()


def _nested_run_streamed(
    native: Any, frame: Frame, self: Any, agent: Agent[Any], input: Any, **kwargs: Any
) -> Any:
    with _scope_of(frame, agent, input):  # the task that drives it is made in here, and keeps the scope
        return native(self, agent, input, **kwargs)


@contextmanager
def _scope_of(frame: Frame, agent: Agent[Any], input: Any) -> Iterator[None]:
    """The steps of an agent that a tool, guardrail or callback runs."""
    call = begin("agent", agent.name, input=described(input), leaf=False)
    assert call is not None
    with inside(call.inner()), having(FRAME, Frame(frame.run, frame.codec, agent)):
        yield


def _call(kind: str, name: str, **options: Any) -> Call:
    """A step of the loop itself: the SDK makes tasks as it likes, but asks for one after the other."""
    call = begin(kind, name, ordered=True, **options)
    assert call is not None
    return call


# -- models


def _noted_model(native: Any, frame: Frame, agent: Agent[Any], run_config: Any) -> Any:
    model = native(agent, run_config)
    frame.agent = agent.name
    named = getattr(model, "model", None) or (agent.model if isinstance(agent.model, str) else None)
    frame.model = str(named or type(model).__name__)
    return model


async def _noted_prompt(native: Any, frame: Frame, *args: Any, **kwargs: Any) -> Any:
    frame.prompt = await native(*args, **kwargs)
    return frame.prompt


async def _checked_tools(native: Any, frame: Frame, agent: Agent[Any], context: Any) -> Any:
    tools = await native(agent, context)
    try:
        check_tools(agent.name, tools)
    except NotSupported as error:  # an agent may get tools while it runs
        raise frame.run.abort(error) from None
    return tools


def _model_call(frame: Frame) -> Call:
    prompt, model = frame.prompt, frame.model

    def usage(result: Any) -> Usage | None:
        response = as_response(result)
        return usage_of(model, response) if response else None

    text = described([prompt.instructions, prompt.input])
    return _call("model", frame.agent, input=text, codec=ModelCodec(frame.codec), usage=usage)


async def _response(native: Any, frame: Frame, **kwargs: Any) -> ModelResponse:
    result = await _model_call(frame).ado(lambda: native(**kwargs))
    response = as_response(result)
    if response is None:
        raise frame.run.abort(NotSupported("a model call was recorded as a stream without its last event"))
    return response


async def _stream(
    native: Any, frame: Frame, *, failed_retry_attempts_out: list[int], **kwargs: Any
) -> AsyncIterator[Any]:
    """A streamed model call: live event by event, recorded at its last one, before that is handed on."""
    call = _model_call(frame)
    attempts = failed_retry_attempts_out
    if (record := call.recorded()) is not None:
        result = call.value_of(record)
        if isinstance(result, Streamed):
            attempts[0] = result.failed_attempts
        for event in as_events(result):
            yield event
        return
    events: list[Any] = []

    def take(event: Any) -> bool:
        events.append(event)
        return getattr(event, "type", "") in _LAST_EVENTS

    native_events = native(failed_retry_attempts_out=attempts, **kwargs)
    async with aclosing(aparts(call, native_events, take, lambda: Streamed(events, attempts[0]))) as live:
        async for event in live:
            yield event


# -- tools


class _ToolOutcomeCodec:
    """What the SDK's own invocation of a tool returns. What a person says it has returned is an output alone."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, value: Any) -> Any:
        outcome = value if isinstance(value, _private.ToolOutcome) else _private.ToolOutcome(value)
        data = {"output": self._codec.encode(outcome.output)}
        return {**data, "by_sdk": True} if outcome.is_sdk_generated_error else data

    def decode(self, data: Any) -> Any:
        return _private.ToolOutcome(self._codec.decode(data["output"]), data.get("by_sdk", False))


async def _tool(native: Any, frame: Frame, *, function_tool: Any, context: Any, arguments: str) -> Any:
    async def invoke() -> Any:
        return await native(function_tool=function_tool, context=context, arguments=arguments)

    key = str(context.tool_call_id)
    if function_tool._is_agent_tool:  # made of steps, and its usage is counted while they are served
        call = _call("tool", function_tool.name, key=key, leaf=False)
        with inside(call.inner()):
            return await invoke()
    exact = function_tool.output_json_schema is not None
    values = _ToolOutcomeCodec(ToolCodec(frame.codec, function_tool.name, exact))
    call = _call("tool", function_tool.name, key=key, input=arguments, codec=OutcomeCodec(values))
    try:
        return await astep_on_context(call, context.context, frame.codec, invoke)
    except RecordedError as error:
        if error.type != _SETTLED_AS_ERROR:
            raise
        told = await _private.handled_failure(function_tool=function_tool, context=context, error=error)
        if told is None:
            raise
        return _private.ToolOutcome(told)


# -- guardrails


def _input_guardrail(
    native: Any, frame: Frame, agent: Agent[Any], guardrail: Any, input: Any, context: Any
) -> Coroutine[Any, Any, Any]:
    """Guardrails that run beside each other are told apart by their order in the agent: it is asked here, at once."""
    call = _guardrail_call(frame, guardrail, frame.number(guardrail))
    return _judged(
        call, frame, context, lambda: native(agent, guardrail, input, context),
        lambda verdict: InputGuardrailResult(guardrail=guardrail, output=verdict),
    )  # fmt: skip


def _output_guardrail(
    native: Any, frame: Frame, guardrail: Any, agent: Agent[Any], agent_output: Any, context: Any
) -> Coroutine[Any, Any, Any]:
    call = _guardrail_call(frame, guardrail, frame.number(guardrail))
    return _judged(
        call, frame, context, lambda: native(guardrail, agent, agent_output, context),
        lambda verdict: OutputGuardrailResult(
            guardrail=guardrail, agent=agent, agent_output=agent_output, output=verdict
        ),
    )  # fmt: skip


def _guardrail_call(frame: Frame, guardrail: Any, key: str) -> Call:
    codec = OutcomeCodec(GuardrailCodec(frame.codec, guardrail.get_name()))
    return _call("guardrail", guardrail.get_name(), key=key, codec=codec)


async def _judged(
    call: Call, frame: Frame, context: Any, judge: Callable[[], Any], result_of: Callable[[Any], Any]
) -> Any:
    result = None

    async def body() -> Any:
        nonlocal result
        result = await judge()
        return result.output

    verdict = await astep_on_context(call, context.context, frame.codec, body)
    return result if result is not None else result_of(verdict)


async def _tool_guardrail(native: Any, frame: Frame, self: Any, data: Any) -> Any:
    call = _guardrail_call(frame, self, str(data.context.tool_call_id))
    return await astep_on_context(call, data.context.context, frame.codec, lambda: native(self, data))


# -- handoffs


async def _handoffs(native: Any, frame: Frame, agent: Agent[Any], context: Any) -> list[Any]:
    return [_durable_handoff(handoff) for handoff in await native(agent, context)]


def _durable_handoff(handoff: Any) -> Any:
    """A copy of the handoff whose invocation is a step. The agent it leads to is the user's own, in a replay too."""
    native = handoff.on_invoke_handoff

    async def invoke(context: Any, arguments: str) -> Agent[Any]:
        frame = frame_here()
        if frame is None:
            target: Agent[Any] = await native(context, arguments)
            return target
        found: Agent[Any] | None = None

        async def body() -> str:
            nonlocal found
            found = await native(context, arguments)
            return found.name

        call = _call("handoff", handoff.tool_name, input=arguments or "", codec=OutcomeCodec(JSON))
        name = await astep_on_context(call, context.context, frame.codec, body)
        found = found or target_of(handoff) or frame.agent_named(name)
        if found is None:
            why = (
                f"a handoff led to agent {name!r}, which is not among those that the agents name as handoffs"
            )
            raise frame.run.abort(NotSupported(why))
        return found

    durable = copy.copy(handoff)
    durable.on_invoke_handoff = invoke
    return durable
