"""The cuts: model calls, tool calls and function nodes are durable steps, as far inside as they can be.

ADK's loop, callbacks, plugins, spans, limits and confirmation gates around them stay native and run again in a replay.
A model's responses are recorded before the last of them is handed out, for ADK runs the tools while the model's
generator is suspended. With a tool's or node's result is recorded what it left on its context: state, artifacts,
control flow.

Not seen: models that user code calls directly, outside of agents, tools and nodes.
"""

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from google.adk.agents.context import Context
from google.adk.events.event_actions import EventActions
from google.adk.models.llm_response import LlmResponse

from .._core import RUN, Call, StandIn, aparts, begin, cut, described, parts
from .._core.errors import EncodingError
from ._private import (
    AgentTool,
    BaseLlmFlow,
    FunctionNode,
    LlmEventSummarizer,
    NodeTool,
    ToolNode,
    caller,
    code_execution,
    invoke_callable,
)
from ._sessions import log_of
from ._values import Outcome, Response, content_text, usage_of

_ACTIONS = "durable_agents_actions"
"""What a tool had left on its context when it raised is recorded as this attribute of its error."""


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    cut(BaseLlmFlow, "_get_llm", _get_llm)
    cut(LlmEventSummarizer, "maybe_summarize_events", _summarize)
    cut(caller, "_call_tool_async", _call_tool)
    cut(FunctionNode, "_run_impl", _run_function)
    cut(ToolNode, "_run_tool_with_plugin_callbacks", _run_tool_node)
    code_execution.asyncio = _Threads()


# -- models


class _Model(StandIn):
    """A model whose calls are steps."""

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        responses = functools.partial(self.real.generate_content_async, llm_request, stream=stream)
        call = _model_call(self.real, llm_request)
        recorded = responses() if call is None else _recorded_responses(call, responses)
        try:
            async for response in recorded:
                yield response
        finally:
            await recorded.aclose()


def _model_call(llm: Any, llm_request: Any) -> Call | None:
    if (run := RUN.get()) is None:
        return None
    name = str(llm_request.model or getattr(llm, "model", "") or type(llm).__name__)
    text = _prompt(llm_request)
    usage = functools.partial(usage_of, model=name)
    return begin("model", name, input=text, codec=run.runner.codec, usage=usage, ordered=True)


def _prompt(llm_request: Any) -> str:
    instruction = llm_request.config.system_instruction if llm_request.config else None
    contents = map(content_text, llm_request.contents)
    return "\n".join([str(instruction), *sorted(llm_request.tools_dict), *contents])


async def _recorded_responses(
    call: Call, responses: Callable[[], AsyncGenerator[LlmResponse, None]]
) -> AsyncGenerator[LlmResponse, None]:
    if (record := call.recorded()) is not None:
        for response in call.value_of(record):
            yield response
        return
    taken: list[LlmResponse] = []

    def take(response: LlmResponse) -> bool:
        """Partial responses are live; the first whole one and what follows it belong together."""
        taken.append(response.model_copy(deep=True))  # before ADK writes into it
        return not response.partial

    async with aclosing(aparts(call, responses(), take, lambda: taken, may_be_left=True)) as live:
        async for response in live:
            yield response


async def _get_llm(native: Any, self: Any, invocation_context: Any) -> Any:
    return _Model(await native(self, invocation_context))


class _Summarizer(StandIn):
    @property
    def _llm(self) -> Any:
        return _Model(self.real._llm)


async def _summarize(native: Any, self: Any, *, events: Any) -> Any:
    return await native(_Summarizer(self), events=events)


# -- what tools and nodes have in common


async def _outcome(
    call: Call, context: Context, body: Callable[[], Awaitable[Any]], made: type[Outcome] = Outcome
) -> Any:
    """The result of a body that works with a context; a recorded one is put on the context again, events and all."""
    is_served = call.recorded() is not None

    async def acted() -> Outcome:
        try:
            result = await body()
        except Exception as error:
            _note_actions(call, context, error)
            raise
        return made(result, context.actions)

    try:
        outcome = await call.ado(acted)
    except Exception as error:
        if is_served and (noted := vars(error).get(_ACTIONS)) is not None:
            await _reapply(call, context, call.codec.decode(noted))
        raise
    if not isinstance(outcome, Outcome):
        return outcome  # somebody has said what became of a tool that was cut off
    if is_served:
        await _reapply(call, context, outcome.actions)
    return outcome.result


def _note_actions(call: Call, context: Context, error: Exception) -> None:
    if context.actions != EventActions():
        with suppress(AttributeError, EncodingError):
            setattr(error, _ACTIONS, call.codec.encode(context.actions))


async def _reapply(call: Call, context: Context, actions: EventActions) -> None:
    """Leave on the context what the body had left there, and send the events again that came from inside of it."""
    apply_actions(context, actions)
    enqueue = context.get_invocation_context()
    if enqueue._event_queue is not None:
        for event in (await log_of(call.run)).pending_under(call.path):
            await enqueue._enqueue_event(event)


def apply_actions(context: Context, actions: EventActions) -> None:
    context.state.update(actions.state_delta)
    plain = EventActions()
    for name in EventActions.model_fields:
        value = getattr(actions, name)
        if name == "state_delta" or value == getattr(plain, name):
            continue
        there = getattr(context.actions, name)
        if isinstance(value, dict) and isinstance(there, dict):
            there.update(value)
        else:
            setattr(context.actions, name, value)


# -- tools


async def _call_tool(native: Any, tool: Any, args: dict[str, Any], tool_context: Context) -> Any:
    run = RUN.get()
    assert run is not None
    call = begin(
        "tool",
        tool.name,
        key=tool_context.function_call_id or "",
        input=described(args),
        codec=run.runner.codec,
        leaf=not isinstance(tool, AgentTool | NodeTool),
    )
    assert call is not None
    return await _outcome(call, tool_context, lambda: native(tool, args, tool_context), Response)


class _Tool(StandIn):
    """A tool that a workflow runs as a node."""

    async def run_async(self, *, args: dict[str, Any], tool_context: Context) -> Any:
        run = RUN.get()
        assert run is not None
        real, attempt = self.real, tool_context.attempt_count
        leaf = not isinstance(real, AgentTool | NodeTool)
        call = begin(
            "tool", real.name, input=described(args), codec=run.runner.codec, leaf=leaf, ordered=True,
            attempt=attempt,
        )  # fmt: skip
        assert call is not None
        return await _outcome(
            call, tool_context, lambda: real.run_async(args=args, tool_context=tool_context)
        )


class _ToolNode(StandIn):
    @property
    def tool(self) -> Any:
        return _Tool(self.real.tool)


async def _run_tool_node(native: Any, self: Any, *, ctx: Any, args: Any) -> Any:
    return await native(_ToolNode(self), ctx=ctx, args=args)


# -- code executors


class _Threads:
    """`asyncio` for the module that runs code executors: the run of one is a step."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def to_thread(function: Callable[..., Any], *args: Any) -> Any:
        run = RUN.get()
        if run is None or len(args) != 2:
            return await asyncio.to_thread(function, *args)
        call = begin("tool", "execute_code", input=args[1].code, codec=run.runner.codec, ordered=True)
        assert call is not None
        return await call.ado(lambda: asyncio.to_thread(function, *args))


# -- function nodes


class _Function(StandIn):
    """A function node whose function is a step."""

    @property
    def _func(self) -> Callable[..., Any]:
        real, context = self.real, self.context
        function = real._func
        if inspect.isasyncgenfunction(real._unwrapped_func):
            return lambda **kwargs: _recorded_items(
                _node_call(real, context, kwargs), context, function(**kwargs)
            )
        if inspect.isgeneratorfunction(real._unwrapped_func):
            return lambda **kwargs: _recorded_list(
                _node_call(real, context, kwargs), context, function(**kwargs)
            )

        async def body(**kwargs: Any) -> Any:
            call = _node_call(real, context, kwargs)
            native = functools.partial(invoke_callable, function, kwargs, unwrapped=real._unwrapped_func)
            return await _outcome(call, context, native)

        return body


def _node_call(node: Any, context: Context, kwargs: dict[str, Any]) -> Call:
    run = RUN.get()
    assert run is not None
    arguments = {k: v for k, v in kwargs.items() if k != node._context_param_name}
    call = begin(
        "node", node.name, input=described(arguments), codec=run.runner.codec, ordered=True,
        attempt=context.attempt_count,
    )  # fmt: skip
    assert call is not None
    return call


def _run_function(native: Any, self: Any, *, ctx: Any, node_input: Any) -> Any:
    return native(_Function(self, context=ctx), ctx=ctx, node_input=node_input)


class _Items:
    """The items of a node that yields, each with what the body had left on the context by then."""

    def __init__(self, call: Call, context: Context) -> None:
        self._call, self._context = call, context
        self._taken: list[Outcome] = []

    def take(self, item: Any) -> bool:
        self._taken.append(Outcome(item, self._context.actions.model_copy(deep=True)))
        return False

    def result(self) -> list[Outcome]:
        self.take(None)  # what the body did after its last item
        return self._taken

    @contextmanager
    def noting(self) -> Iterator[None]:
        """An error of the body is recorded with what the body had left."""
        try:
            yield
        except (StopIteration, StopAsyncIteration):
            raise
        except Exception as error:
            _note_actions(self._call, self._context, error)
            raise


async def _recorded_items(
    call: Call, context: Context, items: AsyncGenerator[Any, None]
) -> AsyncGenerator[Any, None]:
    """A node that yields: its items are recorded when it has ended; events it made before are known by their ids."""
    if (record := call.recorded()) is not None:
        served: list[Outcome] = call.value_of(record)
        for outcome in served[:-1]:
            await _reapply(call, context, outcome.actions)
            yield outcome.result
        apply_actions(context, served[-1].actions)
        return
    taken = _Items(call, context)
    async with aclosing(aparts(call, items, taken.take, taken.result, around=taken.noting)) as live:
        async for item in live:
            yield item


def _recorded_list(call: Call, context: Context, items: Iterator[Any]) -> Iterator[Any]:
    """`_recorded_items` for functions that are no coroutines."""
    if (record := call.recorded()) is not None:
        served: list[Outcome] = call.value_of(record)
        for outcome in served[:-1]:
            apply_actions(context, outcome.actions)
            yield outcome.result
        apply_actions(context, served[-1].actions)
        return
    taken = _Items(call, context)
    yield from parts(call, items, taken.take, taken.result, around=taken.noting)
