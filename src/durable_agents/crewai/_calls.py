"""Model and tool calls as steps, and the scopes they live in.

A model's `call` and `acall` are cut outside of CrewAI's own retries for rate limits, a tool's `run` and `invoke`
outside of its argument checks and usage count. Delegation to a coworker is no step but a scope: the coworker's own
calls are steps. Guardrails are steps that may be made of steps.

Inside one agent's loop calls are known by their order: CrewAI runs the loop's methods one after the other, each in a
thread of its own, to which the loop's scope is lent. Parallel tool calls are told apart by the model's call id.

Not seen: a tool whose class overrides `run` itself and does not call the base's, knowledge queries, and calls from
threads made by user code without copying the context; these run again after a crash.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from .._core import RUN, SCOPE, Call, Execution, Scope, begin, inside, scope
from .._core.context import escape
from . import _usage
from ._lanes import Lane, current_lane, lane_of, retrying
from ._private import (
    Agent,
    AgentExecutor,
    BaseAgentTool,
    BaseLLM,
    BaseTool,
    Crew,
    CrewStructuredTool,
    Memory,
    StepExecutor,
    Task,
    Tool,
    agent_module,
    extract_tool_call_info,
    llm_call_context,
    task_module,
)
from ._values import Answer, AnswerCodec, Used, UsedCodec, text_of, usage_of

# The model, or tool, whose step the current code is inside of: what it calls of itself belongs to that step.
_INSIDE: ContextVar[object] = ContextVar("durable_agents_crewai_inside", default=None)
# The model's id of the native tool call that is being executed.
_CALL_ID: ContextVar[str] = ContextVar("durable_agents_crewai_call_id", default="")

CREW = "crew"
"""In `Execution.memory`: the crew that the run is of. Its tasks stand at the top of the run's paths."""


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    _cut_models()
    for cls, name in ((BaseTool, "run"), (Tool, "run"), (CrewStructuredTool, "invoke")):
        _cut(cls, name, _durable_tool)
    for cls, name in ((BaseTool, "arun"), (Tool, "arun"), (CrewStructuredTool, "ainvoke")):
        _cut(cls, name, _durable_atool)
    _cut(AgentExecutor, "_execute_single_native_tool_call", _native_tool_call)
    _cut(AgentExecutor, "invoke", _invoke)
    _cut(AgentExecutor, "invoke_async", _invoke_async)
    _cut(StepExecutor, "execute", _execute_todo)
    _cut(Agent, "execute_task", _execute_task)
    _cut(Agent, "aexecute_task", _aexecute_task)
    _cut(Agent, "_check_execution_error", _check_execution_error)
    _cut(Task, "_execute_core", _execute_core)
    _cut(Task, "_aexecute_core", _aexecute_core)
    _cut(Task, "_execute_task_async", _execute_task_async)
    _cut(Crew, "kickoff", _kickoff)
    _cut(Crew, "akickoff", _akickoff)
    for name in ("recall", "remember", "remember_many", "extract_memories"):
        _cut(Memory, name, functools.partial(_memory, name))
    for module in (task_module, agent_module):
        native = module.process_guardrail
        module.process_guardrail = functools.wraps(native)(functools.partial(_guardrail, native))


def _cut(cls: type, name: str, cut: Callable[..., Any]) -> None:
    """Replace a method by `cut(native, self, …)`."""
    native = vars(cls)[name] if name in vars(cls) else getattr(cls, name)

    if asyncio.iscoroutinefunction(native):

        @functools.wraps(native)
        async def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await cut(native, self, *args, **kwargs)
    else:

        @functools.wraps(native)
        def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
            return cut(native, self, *args, **kwargs)

    setattr(cls, name, replaced)


@contextmanager
def _being(what: object) -> Iterator[None]:
    token = _INSIDE.set(what)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def segment_scope(segment: str, input: str) -> AbstractContextManager[Scope]:
    """A scope under this segment. Where other threads or tasks open it than the scope's own, its input tells."""
    run, above = RUN.get(), SCOPE.get()
    if run is not None and above is not None and not above.is_ours:
        segment = f"{segment}:{run.digest(input)[:12]}"
    return scope(segment)


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
    _cut(cls, name, _durable_acall if asyncio.iscoroutinefunction(native) else _durable_call)
    vars(cls)[name]._durable_agents_cut = True


def _model_call(llm: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    run = RUN.get()
    if run is None or _INSIDE.get() is llm:
        return None
    named = _named(args, kwargs)
    prompt = text_of(named.get("messages"), named.get("tools"))
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


def _execute_task(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with retrying(self):
        return native(self, *args, **kwargs)


async def _aexecute_task(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with retrying(self):
        return await native(self, *args, **kwargs)


def _check_execution_error(native: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Natively a retry begins the conversation anew, and tools that have acted act again."""
    native(self, *args, **kwargs)
    if RUN.get() is not None:
        retrying.again(self)


# -- tools


def _owner(tool: Any) -> Any:
    return getattr(tool, "_original_tool", None) or tool


def _tool_call(tool: Any, arguments: Any) -> Call | None:
    run = RUN.get()
    if run is None:
        return None
    codec = UsedCodec(run.runner.codec, tool)
    call = begin("tool", str(tool.name), key=_call_id(), input=text_of(arguments), codec=codec)
    return _tried(call)


def _call_id() -> str:
    """The model's id of the call, for the tool that it calls and not for what that tool calls."""
    lane = current_lane()
    return _CALL_ID.get() if lane is not None and SCOPE.get() is lane.scope else ""


def _is_native(tool: Any) -> bool:
    return RUN.get() is None or _INSIDE.get() is _owner(tool)


def _delegation(tool: Any, arguments: Any) -> AbstractContextManager[Scope]:
    name, key = escape(str(tool.name)), escape(_call_id())
    return scope(f"tool:{name}:{key}") if key else segment_scope(f"tool:{name}", text_of(arguments))


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
    token = _CALL_ID.set(_id_of(tool_call))
    try:
        return native(self, tool_call)
    finally:
        _CALL_ID.reset(token)


def _id_of(tool_call: Any) -> str:
    """The model's own id. CrewAI makes one of the object's address where there is none; then the arguments tell."""
    given = tool_call.get if isinstance(tool_call, dict) else functools.partial(getattr, tool_call)
    for name in ("call_id", "id", "toolUseId"):
        if isinstance(found := given(name, None), str) and found:
            return found
    info = extract_tool_call_info(tool_call)
    return hashlib.sha256(text_of(info[1:] if info else "").encode()).hexdigest()[:12]


# -- scopes


def _invoke(native: Any, self: Any, inputs: dict[str, Any]) -> Any:
    if RUN.get() is None or _has_loop():
        return native(self, inputs)  # inside a loop this is only a way to `invoke_async`
    with _agent_loop(self, inputs):
        return native(self, inputs)


async def _invoke_async(native: Any, self: Any, inputs: dict[str, Any]) -> Any:
    with _agent_loop(self, inputs):
        return await native(self, inputs)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _agent_loop(executor: Any, inputs: dict[str, Any]) -> Iterator[None]:
    if RUN.get() is None:
        yield
        return
    retried = lane_of(executor.agent)
    if retried is not None:
        again = retried.again()
        with inside(again.scope), again:
            yield
        return
    segment = f"agent:{escape(executor.agent.role.strip())}"
    with segment_scope(segment, text_of(inputs)) as opened, Lane(executor.agent, opened):
        yield


def _execute_todo(native: Any, self: Any, todo: Any, *args: Any, **kwargs: Any) -> Any:
    with scope(f"todo:{todo.step_number}") if RUN.get() is not None else nullcontext():
        return native(self, todo, *args, **kwargs)


def _task_scope(task: Any, agent: Any, context: str | None) -> AbstractContextManager[Any]:
    if RUN.get() is None:
        return nullcontext()
    crew = getattr(agent or task.agent, "crew", None)
    tasks = [] if crew is None or isinstance(crew, str) else crew.tasks
    index = next((i for i, each in enumerate(tasks) if each is task), None)
    name = escape(task.name or "")
    if index is None:
        return segment_scope(f"task:{name or task.key[:8]}", text_of(task.description, context))
    return scope(f"task:{index}:{name}" if name else f"task:{index}")


def _execute_core(native: Any, self: Any, agent: Any, context: Any, tools: Any) -> Any:
    with _task_scope(self, agent, context):
        return native(self, agent, context, tools)


async def _aexecute_core(native: Any, self: Any, agent: Any, context: Any, tools: Any) -> Any:
    with _task_scope(self, agent, context):
        return await native(self, agent, context, tools)


def _execute_task_async(native: Any, self: Any, agent: Any, context: Any, tools: Any, future: Any) -> None:
    """Natively only an `Exception` reaches whoever waits for the task; our signals would leave them waiting."""
    try:
        native(self, agent, context, tools, future)
    except BaseException as signal:
        with contextlib.suppress(Exception):
            future.set_exception(signal)


def _crew_scope(crew: Any, inputs: Any) -> AbstractContextManager[Any]:
    run = RUN.get()
    if run is None or run.memory.get(CREW) is crew:
        return nullcontext()
    return segment_scope(f"crew:{escape(crew.name or 'crew')}", text_of(crew.key, inputs))


def _kickoff(native: Any, self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    with _crew_scope(self, inputs):
        return native(self, inputs, *args, **kwargs)


async def _akickoff(native: Any, self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    with _crew_scope(self, inputs):
        return await native(self, inputs, *args, **kwargs)


# -- guardrails and memory


def _guardrail(native: Any, *args: Any, **kwargs: Any) -> Any:
    run = RUN.get()
    guardrail = kwargs["guardrail"] if "guardrail" in kwargs else args[1]
    output = kwargs["output"] if "output" in kwargs else args[0]
    name = str(getattr(guardrail, "__name__", type(guardrail).__name__)).strip("<>")
    if run is None:
        return native(*args, **kwargs)
    text = text_of(getattr(output, "raw", ""))
    call = begin("guardrail", name, input=text, codec=run.runner.codec, leaf=False)
    return native(*args, **kwargs) if call is None else call.do(lambda: native(*args, **kwargs))


def _memory(name: str, native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A memory operation is one step, with the models that it asks and the writing that it leaves to threads."""
    run = RUN.get()
    if run is None:
        return native(self, *args, **kwargs)

    def body() -> Any:
        with _outside(run):
            result = native(self, *args, **kwargs)
            self.drain_writes()
            return result

    call = begin("tool", f"memory.{name}", input=text_of(args, kwargs), codec=run.runner.codec)
    return body() if call is None else call.do(body)


@contextmanager
def _outside(run: Execution) -> Iterator[None]:
    """Code inside belongs to no run."""
    token = RUN.set(None)
    try:
        yield
    finally:
        RUN.reset(token)
