"""Model and tool calls as steps.

A model's `call` and `acall` are cut outside of CrewAI's own retries for rate limits, a tool's `run` and `invoke`
outside of its argument checks and usage count. Delegation to a coworker is no step but a scope: the coworker's own
calls are steps.

Inside one agent's loop calls are known by their order: CrewAI runs the loop's methods one after the other, each in a
thread of its own, to which the loop's scope is lent. Parallel tool calls are told apart by the model's call id, and
where it gave none, or one to several, by their input; which of those with equal inputs is which does not matter.

Not seen: a tool whose class overrides `run` itself and does not call the base's, knowledge queries, and calls from
threads made by user code without copying the context; these run again after a crash.
"""

import asyncio
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from .._core import RUN, SCOPE, Call, Scope, begin, cut, described, escape, having, scope
from . import _usage
from ._lanes import current_lane
from ._private import (
    AgentExecutor,
    BaseAgentTool,
    BaseLLM,
    BaseTool,
    CrewStructuredTool,
    Tool,
    extract_tool_call_info,
    llm_call_context,
)
from ._scopes import segment_scope
from ._values import Answer, AnswerCodec, Used, UsedCodec, usage_of

# The model, or tool, whose step the current code is inside of: what it calls of itself belongs to that step.
_INSIDE: ContextVar[object] = ContextVar("durable_agents_crewai_inside", default=None)
# The model's id of the native tool call that is being executed.
_CALL_ID: ContextVar[str] = ContextVar("durable_agents_crewai_call_id", default="")


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    _cut_models()
    for cls, name in ((BaseTool, "run"), (Tool, "run"), (CrewStructuredTool, "invoke")):
        cut(cls, name, _durable_tool)
    for cls, name in ((BaseTool, "arun"), (Tool, "arun"), (CrewStructuredTool, "ainvoke")):
        cut(cls, name, _durable_atool)
    cut(AgentExecutor, "_execute_single_native_tool_call", _native_tool_call)


def _being(what: object) -> AbstractContextManager[Any]:
    return having(_INSIDE, what)


# -- models


def _cut_models() -> None:
    """Cut the models there are, and those that are defined from now on."""
    native: Any = vars(BaseLLM)["_wrap_call_method"].__func__

    def wrap(cls: Any, method_name: str) -> None:
        native(cls, method_name)
        _cut_model(cls, method_name)

    wrapped: Any = classmethod(functools.wraps(native)(wrap))
    BaseLLM._wrap_call_method = wrapped  # type: ignore[method-assign]
    left = list(BaseLLM.__subclasses__())
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        for name in ("call", "acall"):
            _cut_model(cls, name)
    _usage.install()


def _cut_model(cls: type, name: str) -> None:
    native: Any = vars(cls).get(name)
    if native is None or getattr(native, "_durable_agents_cut", False):
        return
    cut(cls, name, _durable_acall if asyncio.iscoroutinefunction(native) else _durable_call)
    vars(cls)[name]._durable_agents_cut = True


def _model_call(llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    run = RUN.get()
    if run is None or _INSIDE.get() is llm:
        return None
    named = _named(args, kwargs)
    prompt = described([named.get("messages"), named.get("tools")])
    name = str(llm.model)
    call = begin(
        "model",
        name,
        input=prompt,
        codec=AnswerCodec(run.runner.codec, named.get("response_model")),
        usage=lambda answer: usage_of(answer, name),
    )
    return _tried(call)


_NAMES = (
    "messages",
    "tools",
    "callbacks",
    "available_functions",
    "from_task",
    "from_agent",
    "response_model",
)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_NAMES, args, strict=False)), **kwargs}


def _durable_call(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    call = _model_call(self, args, kwargs)
    if call is None:
        return native(self, *args, **kwargs)

    def body() -> Answer:
        with _being(self), _usage.metered(self) as meter:
            result = native(self, *args, **kwargs)
        return Answer(result, meter.tokens(), meter.completed)

    served = call.recorded() is not None
    with _watched(call):
        answer = call.do(body)
    return _answered(call, self, answer, served, _named(args, kwargs))


async def _durable_acall(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    call = _model_call(self, args, kwargs)
    if call is None:
        return await native(self, *args, **kwargs)

    async def body() -> Answer:
        with _being(self), _usage.metered(self) as meter:
            result = await native(self, *args, **kwargs)
        return Answer(result, meter.tokens(), meter.completed)

    served = call.recorded() is not None
    with _watched(call):
        answer = await call.ado(body)
    return _answered(call, self, answer, served, _named(args, kwargs))


def _answered(call: Call, llm: Any, answer: Answer, served: bool, named: dict[str, Any]) -> Any:
    """Count the tokens of this run; of an answer that is served, listeners hear as they would have natively."""
    _usage.count(call.run, llm, answer.tokens)
    if served and answer.completed and not call.run.muted:
        about = {name: named.get(name) for name in ("from_task", "from_agent", "messages")}
        with llm_call_context():
            llm._emit_call_started_event(tools=named.get("tools"), **about)
            for kind, usage in answer.completed:
                llm._emit_call_completed_event(
                    response=answer.result, call_type=_usage.CALL_TYPES[kind], usage=usage, **about
                )
    return answer.result


# -- retries: a task that is tried again goes on where it failed


def _tried(call: Call | None) -> Call | None:
    """The call, as another attempt when it is the one that an agent's retry was made for."""
    lane = current_lane()
    if call is None or lane is None or (attempt := lane.attempt_of(call.path)) == 1:
        return call
    return dataclasses.replace(call, path=f"{call.path}@{attempt}", attempt=attempt)


@contextmanager
def _watched(call: Call) -> Iterator[None]:
    """Note for the agent's loop how its last step ended."""
    lane = current_lane()
    if lane is None:
        yield
        return
    try:
        yield
    except Exception:
        lane.ended(call, failed=True)
        raise
    lane.ended(call, failed=False)


# -- tools


def _owner(tool: Any) -> Any:
    return getattr(tool, "_original_tool", None) or tool


def _tool_call(tool: Any, arguments: Any) -> Call | None:
    run = RUN.get()
    if run is None:
        return None
    codec, key = UsedCodec(run.runner.codec, tool), _call_id()
    call = begin("tool", str(tool.name), key=key, input=described(arguments), codec=codec)
    if call is not None and key:  # equal calls of one answer run side by side
        call = dataclasses.replace(call, alone=False)
    return _tried(call)


def _call_id() -> str:
    """The model's id of the call, for the tool that it calls and not for what that tool calls."""
    lane = current_lane()
    return _CALL_ID.get() if lane is not None and SCOPE.get() is lane.scope else ""


def _is_native(tool: Any) -> bool:
    return RUN.get() is None or _INSIDE.get() is _owner(tool)


def _delegation(tool: Any, arguments: Any) -> AbstractContextManager[Scope]:
    name, key = escape(str(tool.name)), escape(_call_id())
    return scope(f"tool:{name}:{key}") if key else segment_scope(f"tool:{name}", described(arguments))


def _used(tool: Any, used: Used, served: bool) -> Any:
    """Put back how often a served tool has been used: it may only be used so often."""
    if served:
        count = max(tool.current_usage_count, used.count or tool.current_usage_count + 1)
        tool.current_usage_count = _owner(tool).current_usage_count = count
    return used.result


def _durable_tool(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_native(self):
        return native(self, *args, **kwargs)
    arguments = _arguments(self, args, kwargs)
    if isinstance(_owner(self), BaseAgentTool):
        with _delegation(self, arguments), _being(_owner(self)):
            return native(self, *args, **kwargs)
    call = _tool_call(self, arguments)
    if call is None:
        return native(self, *args, **kwargs)

    def body() -> Used:
        with _being(_owner(self)):
            result = native(self, *args, **kwargs)
        return Used(result, self.current_usage_count)

    served = call.recorded() is not None
    with _watched(call):
        used = call.do(body)
    return _result(self, used, served)


async def _durable_atool(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if _is_native(self):
        return await native(self, *args, **kwargs)
    arguments = _arguments(self, args, kwargs)
    if isinstance(_owner(self), BaseAgentTool):
        with _delegation(self, arguments), _being(_owner(self)):
            return await native(self, *args, **kwargs)
    call = _tool_call(self, arguments)
    if call is None:
        return await native(self, *args, **kwargs)

    async def body() -> Used:
        with _being(_owner(self)):
            result = await native(self, *args, **kwargs)
        return Used(result, self.current_usage_count)

    served = call.recorded() is not None
    with _watched(call):
        used = await call.ado(body)
    return _result(self, used, served)


def _result(tool: Any, used: Any, served: bool) -> Any:
    return _used(tool, used, served) if isinstance(used, Used) else used


def _arguments(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the tool is called with. A structured tool is told about its surroundings, too, by `config`."""
    if isinstance(tool, CrewStructuredTool):
        return args[0] if args else kwargs.get("input")
    return [list(args), kwargs] if args else kwargs


def _native_tool_call(native: Any, self: Any, tool_call: Any) -> Any:
    if RUN.get() is None:
        return native(self, tool_call)
    with having(_CALL_ID, _id_of(self, tool_call)):
        return native(self, tool_call)


def _id_of(executor: Any, tool_call: Any) -> str:
    """The model's id of a call. Where there is none, or one for several calls of an answer, their input tells."""
    info = extract_tool_call_info(tool_call)
    if info is None:
        return ""  # of no known form: CrewAI calls no tool
    reported, *wanted = info
    digest = hashlib.sha256(described(wanted).encode()).hexdigest()[:12]
    given = tool_call.get if isinstance(tool_call, dict) else functools.partial(getattr, tool_call)
    names = ("call_id", "id", "toolUseId")
    own = next((found for name in names if isinstance(found := given(name, None), str) and found), None)
    if own is None:
        return digest  # CrewAI makes an id of the object's address
    said = (calls for message in reversed(executor.state.messages) if (calls := message.get("tool_calls")))
    shared = sum(call["id"] == reported for call in next(said, ())) > 1
    return f"{own}:{digest}" if shared else own
