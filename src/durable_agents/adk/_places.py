"""Where the calls of a run stand: a scope for every agent and node, and ids that are the same in every replay.

An agent runs as an async generator, whose context is its consumer's, so its scope is put on for each of its steps. A
node is told from others by its name and the number of its turn under the same parent; in a workflow where branches meet
again without a join, turns follow the order in which the branches arrive, and its input tells it instead.

Ids of events, function calls and invocations are made from the scope and a count in it. The callbacks of parallel tool
calls come in any order: each call counts for itself.
"""

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from .._core import RUN, SCOPE, Execution, Scope, cut, described, escape, having, inside, scope
from .._core.errors import ConcurrentPathError
from ._private import BaseAgent, NodeRunner, Workflow, batch_executor, id_provider

_NAMESPACE = uuid.UUID("6f1d1f5e-8a0f-4b5a-9d38-0b7c2f6c9a11")
_PLACES = "adk places of ids"

# The scope that was opened for a node, and the node's name: an agent that runs as this node needs none of its own.
_NODE: ContextVar[tuple[Scope, str] | None] = ContextVar("durable_agents_adk_node", default=None)
# The agent's scope while one of its tool calls is executed, and where that call counts its ids.
_EXECUTED: ContextVar[tuple[Scope, Scope] | None] = ContextVar("durable_agents_adk_call", default=None)


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    cut(BaseAgent, "run_async", _run_async)
    cut(NodeRunner, "run", _run_node)
    cut(batch_executor, "_execute_single_prepared_call_async", _execute_call)


# -- scopes


def here(run: Execution) -> Scope:
    return SCOPE.get() or run.top


async def within(
    enter: Callable[[], AbstractContextManager[Any]], events: AsyncGenerator[Any, None]
) -> AsyncGenerator[Any, None]:
    """The generator, each of its steps inside of `enter()`: what it sets does not leak to its consumer."""
    try:
        while True:
            with enter():
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
            yield event
    finally:
        with enter():
            await events.aclose()


def _run_async(native: Any, self: Any, parent_context: Any) -> AsyncGenerator[Any, None]:
    run = RUN.get()
    assert run is not None
    return _in_agent(run, self.name, native(self, parent_context))


async def _in_agent(
    run: Execution, name: str, events: AsyncGenerator[Any, None]
) -> AsyncGenerator[Any, None]:
    above, node = here(run), _NODE.get()
    if node is not None and node[0] is above and node[1] == name:
        async for event in events:
            yield event
        return
    segment = escape(name)
    if not above.occupy(segment):
        where = f"agent {name!r} runs twice at once under {above.path or 'the run'!r} of run {run.id!r}"
        raise run.abort(ConcurrentPathError(f"{where}: give each copy a name of its own"))
    try:
        used = above.use(segment)
        own = Scope(above.child(used), above.child_key(used), in_step=above.in_step, events=above.events)
        stepped = within(lambda: inside(own), events)
        try:
            async for event in stepped:
                yield event
        finally:
            await stepped.aclose()
    finally:
        above.vacate(segment)


async def _run_node(native: Any, self: Any, node_input: Any = None, *, resume_inputs: Any = None) -> Any:
    run = RUN.get()
    assert run is not None
    with scope(_node_segment(run, self, node_input)) as own, having(_NODE, (own, self._node.name)):
        return await native(self, node_input, resume_inputs=resume_inputs)


def _node_segment(run: Execution, runner: Any, node_input: Any) -> str:
    name = escape(runner._node.name)
    around = runner._parent_ctx.node
    if isinstance(around, Workflow) and _is_racy(around):
        return f"{name}:{run.digest(described(node_input))[:12]}"
    # ADK's own numbers are dealt out in order of arrival, also to parallel tool calls; a scope counts its own.
    return name if runner.run_id.isdigit() else f"{name}:{escape(runner.run_id)}"


def _is_racy(workflow: Any) -> bool:
    """Whether branches of the workflow may reach one node in any order: they part, and meet without a join."""
    if workflow.graph is None:
        return False
    ways: dict[tuple[str, str], int] = {}
    arrivals: dict[str, int] = {}
    for edge in workflow.graph.edges:
        taken = (edge.from_node.name, repr(edge.route))
        ways[taken] = ways.get(taken, 0) + 1
        if not edge.to_node._requires_all_predecessors:
            arrivals[edge.to_node.name] = arrivals.get(edge.to_node.name, 0) + 1
    return any(count > 1 for count in ways.values()) and any(count > 1 for count in arrivals.values())


# -- ids


def durable_ids() -> AbstractContextManager[Any]:
    """ADK makes its ids with `_new_id` inside."""
    return having(id_provider, _new_id)


def _new_id() -> str:
    run = RUN.get()
    if run is None:
        return str(uuid.uuid4())
    at = here(run)
    executed = _EXECUTED.get()
    if executed is not None and executed[0] is at:
        at = executed[1]
    made = str(uuid.uuid5(_NAMESPACE, f"{run.id}\0{at.path}\0{at.count('id')}"))
    run.memory.setdefault(_PLACES, {})[made] = at.path
    return made


def place_of(run: Execution, id: str) -> str | None:
    """The path under which an id was made in this execution; None for an id that comes from elsewhere."""
    found: str | None = run.memory.get(_PLACES, {}).get(id)
    return found


def instead_of(id: str) -> str:
    """Another id, the same in every replay, for what cannot have this one."""
    return str(uuid.uuid5(_NAMESPACE, id))


async def _execute_call(native: Any, invocation_context: Any, prepared_call: Any, agent: Any) -> Any:
    run = RUN.get()
    assert run is not None
    around = here(run)
    used = around.use(f"call:{escape(str(prepared_call.function_call.id))}")
    with having(_EXECUTED, (around, Scope(around.child(used)))):
        return await native(invocation_context, prepared_call, agent)
