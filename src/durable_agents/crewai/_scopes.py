"""What steps live in: crews, tasks, agents' loops and their retries; also guardrails and memory, which are steps.

A guardrail is a step that may be made of steps. A memory operation is one step, with the models that it asks.
"""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .._core import RUN, SCOPE, Scope, begin, cut, described, escape, having, inside, scope
from ._lanes import Lane, lane_of, retrying
from ._private import Agent, AgentExecutor, Crew, Memory, StepExecutor, Task, agent_module, task_module

CREW = "crew"
"""In `Execution.memory`: the crew that the run is of. Its tasks stand at the top of the run's paths."""


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    cut(AgentExecutor, "invoke", _invoke)
    cut(AgentExecutor, "invoke_async", _invoke_async)
    cut(StepExecutor, "execute", _execute_todo)
    cut(Agent, "execute_task", _execute_task)
    cut(Agent, "aexecute_task", _aexecute_task)
    cut(Agent, "_check_execution_error", _check_execution_error)
    cut(Task, "_execute_core", _execute_core)
    cut(Task, "_aexecute_core", _aexecute_core)
    cut(Task, "_execute_task_async", _execute_task_async)
    cut(Crew, "kickoff", _kickoff)
    cut(Crew, "akickoff", _akickoff)
    each_class(Memory, _cut_memory)
    for module in (task_module, agent_module):
        cut(module, "process_guardrail", _guardrail)


def segment_scope(segment: str, input: str) -> AbstractContextManager[Scope]:
    """A scope under this segment. Where other threads or tasks open it than the scope's own, its input tells."""
    run, above = RUN.get(), SCOPE.get()
    if run is not None and above is not None and not above.is_ours:
        segment = f"{segment}:{run.digest(input)[:12]}"
    return scope(segment)


# -- retries


def _execute_task(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with retrying(self):
        return native(self, *args, **kwargs)


async def _aexecute_task(native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with retrying(self):
        return await native(self, *args, **kwargs)


def _check_execution_error(native: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Natively a retry begins the conversation anew, and tools that have acted act again."""
    native(self, *args, **kwargs)
    retrying.again(self)


# -- agents, tasks and crews


def _invoke(native: Any, self: Any, inputs: dict[str, Any]) -> Any:
    if _has_loop():
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
    retried = lane_of(executor.agent)
    if retried is not None:
        again = retried.again()
        with inside(again.scope), again:
            yield
        return
    segment = f"agent:{escape(executor.agent.role.strip())}"
    with segment_scope(segment, described(inputs)) as opened, Lane(executor.agent, opened):
        yield


def _execute_todo(native: Any, self: Any, todo: Any, *args: Any, **kwargs: Any) -> Any:
    with scope(f"todo:{todo.step_number}"):
        return native(self, todo, *args, **kwargs)


def _task_scope(task: Any, agent: Any, context: str | None) -> AbstractContextManager[Any]:
    crew = getattr(agent or task.agent, "crew", None)
    tasks = [] if crew is None or isinstance(crew, str) else crew.tasks
    index = next((i for i, each in enumerate(tasks) if each is task), None)
    name = escape(task.name or "")
    if index is None:
        return segment_scope(f"task:{name or task.key[:8]}", described([task.description, context]))
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
    assert run is not None
    if run.memory.get(CREW) is crew:
        return nullcontext()
    return segment_scope(f"crew:{escape(crew.name or 'crew')}", described([crew.key, inputs]))


def _kickoff(native: Any, self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    with _crew_scope(self, inputs):
        return native(self, inputs, *args, **kwargs)


async def _akickoff(native: Any, self: Any, inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
    with _crew_scope(self, inputs):
        return await native(self, inputs, *args, **kwargs)


# -- guardrails and memory


def _guardrail(native: Any, *args: Any, **kwargs: Any) -> Any:
    run = RUN.get()
    assert run is not None
    guardrail = kwargs["guardrail"] if "guardrail" in kwargs else args[1]
    output = kwargs["output"] if "output" in kwargs else args[0]
    name = str(getattr(guardrail, "__name__", type(guardrail).__name__)).strip("<>")
    text = described(getattr(output, "raw", ""))
    call = begin("guardrail", name, input=text, codec=run.runner.codec, leaf=False, user_code=True)
    assert call is not None
    return call.do(lambda: native(*args, **kwargs))


def each_class(base: Any, do: Callable[[type], None]) -> None:
    """Do something to the pydantic classes there are of a kind, and to those that are defined from now on."""
    native: Any = base.__pydantic_init_subclass__.__func__

    def defined(cls: Any, /, **options: Any) -> None:
        native(cls, **options)
        do(cls)

    base.__pydantic_init_subclass__ = classmethod(defined)
    left: list[type] = [base]
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        do(cls)


def _cut_memory(cls: type) -> None:
    for name in ("recall", "remember", "remember_many", "extract_memories"):
        if inspect.isfunction(vars(cls).get(name)):
            cut(cls, name, functools.partial(_memory, name))


def _memory(name: str, native: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A memory operation is one step, with the models that it asks and the writing that it leaves to threads."""
    run = RUN.get()
    assert run is not None

    def body() -> Any:
        with having(RUN, None):  # code inside belongs to no run
            result = native(self, *args, **kwargs)
            self.drain_writes()
            return result

    call = begin("tool", f"memory.{name}", input=described([args, kwargs]), codec=run.runner.codec)
    assert call is not None
    return call.do(body)
