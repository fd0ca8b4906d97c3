"""The cuts at model and tool calls, through Strands' own middleware.

Middleware added last is the innermost: user middleware, hooks, retries and interrupts run around ours. It lets the
native terminal run with a stand-in for the model or the tool, which gives what the step recorded; so events, spans and
metrics are made natively, live and on replay.

Not seen: models and tools that user code calls itself, outside of the agent's loop. In a tool they are part of that.
"""

import copy
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any
from weakref import WeakSet

from strands import Agent
from strands.middleware import ExecuteToolStage, InvokeModelStage

from .._core import Call, Codec, Execution, Scope, StandIn, begin, described, escape, failure, inside
from .._core.errors import EncodingError
from ._places import Active, InRun, Place, find
from ._played import play
from ._private import (
    AgentAsTool,
    ModelStopReason,
    ToolInterruptEvent,
    ToolResultEvent,
    ToolStreamEvent,
)
from ._traces import Traces
from ._values import model_id, usage_of

_INSTALLED: "WeakSet[Agent]" = WeakSet()
_LAST = (ToolResultEvent, ToolInterruptEvent)
"""Strands leaves a tool's stream with its result, or its question."""
_HANDOFF = "handoff_to_agent"
_STRUCTURED = "structured_output"


def install(agent: Agent) -> None:
    """Add the middleware to an agent, once. Outside of a durable run it lets everything through."""
    if agent not in _INSTALLED:
        _INSTALLED.add(agent)
        agent.add_middleware(InvokeModelStage.Wrap, _model)
        agent.add_middleware(ExecuteToolStage.Wrap, _tool)


# -- models


async def _model(
    context: Any, native: Callable[[Any], AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    found = find(context.agent)
    if found is None:
        async for event in native(context):
            yield event
        return
    run, place, active = found
    InRun.of(run).check(run)
    model = _Model(context, active.codec, place.next_turn())
    async for event in native(context.replace(model=model)):
        if isinstance(event, ModelStopReason):
            await model.stopped(event)
        yield event


class _Model(StandIn):
    """A model whose stream is a step."""

    def __init__(self, context: Any, codec: Codec, turn: Scope) -> None:
        super().__init__(context.model)
        self.__dict__.update(
            agent=context.agent, codec=codec, turn=turn, heard=None, step=None, parts=None, began=0.0
        )

    async def stream(self, *args: Any, model_state: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        name = model_id(self.real)
        text = described([args, {k: kwargs.get(k) for k in ("tool_choice", "system_prompt_content")}])
        with inside(self.turn):
            call = begin(
                "model",
                name,
                input=text,
                codec=self.codec,
                ordered=True,
                usage=lambda kept: usage_of(name, kept["usage"]),
            )
        if call is None:
            raise RuntimeError("a durable model was called outside of its run")
        self.step = call
        if (record := call.recorded()) is not None:
            self.heard = heard = call.value_of(record)
            for number, chunk in enumerate([*heard["chunks"], None]):
                if number == heard.get("cancelled_at"):
                    self.agent.cancel(message=heard["cancelled"])
                if chunk is not None:
                    yield copy.deepcopy(chunk)
        else:
            self.heard = heard = {"chunks": [], "usage": None, "first": None, "state": None}
            chunks = self.real.stream(*args, model_state=model_state, **kwargs)
            self.began = time.time()
            self.parts = play(call, aiter(chunks), self._take, lambda: self._heard_all(model_state))
            async for chunk in self.parts:
                yield chunk
        if model_state is not None and heard["state"] is not None:
            model_state.clear()
            model_state.update(copy.deepcopy(heard["state"]))

    def _take(self, chunk: Any) -> bool:
        """What is to be known of a chunk later."""
        heard = self.heard
        heard["chunks"].append(copy.deepcopy(chunk))
        if heard["first"] is None and ("contentBlockDelta" in chunk or "contentBlockStart" in chunk):
            heard["first"] = int(1000 * (time.time() - self.began))
        if "metadata" in chunk:
            heard["usage"] = copy.deepcopy(chunk["metadata"].get("usage"))
        return False

    def _heard_all(self, model_state: Any) -> Any:
        """The stream has come to its end; natively one without a stop was aborted by the provider, when cancelled."""
        self.heard["state"] = copy.deepcopy(model_state)
        if self.agent.cancel_signal.is_set() and not any(
            "messageStop" in chunk for chunk in self.heard["chunks"]
        ):
            self._note_cancellation(len(self.heard["chunks"]))
        return self.heard

    def _note_cancellation(self, number: int) -> None:
        self.heard.update(cancelled_at=number, cancelled=self.agent._cancel_message)

    async def stopped(self, event: Any) -> None:
        """The native end of the call: times are those of the first time; a native cancellation is recorded."""
        heard = self.heard
        if heard is None:
            return
        metrics = event["stop"][3]
        metrics.pop("timeToFirstByteMs", None)
        if heard["first"]:
            metrics["timeToFirstByteMs"] = heard["first"]
        if event.stop_reason == "cancelled" and self.parts is not None and self.step.recorded() is None:
            await self.parts.aclose()
            self._note_cancellation(len(heard["chunks"]) - 1)  # noticed with a chunk that nobody has seen
            await self.step.run.commit(self.step.draft(heard))


# -- tools


async def _tool(
    context: Any, native: Callable[[Any], AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    found = find(context.agent)
    tool = context.tool
    if found is None or tool is None or _acts_in_memory(found[0], context):
        async for event in native(context):
            yield event
        return
    run, place, active = found
    InRun.of(run).check(run)
    standing_in: StandIn
    if isinstance(tool, AgentAsTool) and find_active(run, tool.agent, active):
        standing_in = _Agent(tool, _scope_of(run, place, context))
    else:
        standing_in = _Tool(run, context, active, place)
    async for event in native(context.replace(tool=standing_in)):
        yield event


def _acts_in_memory(run: Execution, context: Any) -> bool:
    """Whether a tool acts on the loop itself: it runs again in every replay, and is not recorded."""
    if context.tool.tool_type == _STRUCTURED:
        return True
    return context.tool_use["name"] == _HANDOFF and id(context.agent) in InRun.of(run).handing_off


def find_active(run: Execution, agent: Any, above: Active) -> bool:
    """Whether the agent behind a tool is durable in this run; one that became a tool meanwhile is from now on."""
    if not isinstance(agent, Agent):
        return False
    install(agent)
    InRun.of(run).active.setdefault(id(agent), Active("", above.codec, above.at_most_once))
    return True


def _id_of(run: Execution, context: Any) -> str:
    """The model's id of a call. Where it gave one to several calls at once, their input tells them apart."""
    tool_use = context.tool_use
    key = str(tool_use["toolUseId"])
    said = context.agent.messages[-1]["content"] if context.agent.messages else []
    if sum(block.get("toolUse", {}).get("toolUseId") == key for block in said) > 1:
        return f"{key}:{run.digest(described(tool_use['input']))[:8]}"
    return key


def _scope_of(run: Execution, place: Place, context: Any) -> Scope:
    """The scope of an agent that is called as a tool: it is made of steps and is none itself."""
    used = place.turn.use(f"tool:{escape(context.tool_use['name'])}:{escape(_id_of(run, context))}")
    above = place.turn
    return Scope(above.child(used), above.child_key(used), in_step=above.in_step, events=above.events)


class _Agent(StandIn):
    """An agent as a tool: its calls live under the tool call."""

    def __init__(self, tool: Any, scope: Scope) -> None:
        super().__init__(tool, scope=scope)

    async def stream(self, tool_use: Any, invocation_state: Any, **kwargs: Any) -> AsyncIterator[Any]:
        events = self.real.stream(tool_use, invocation_state, **kwargs)
        try:
            while True:
                try:
                    with inside(self.scope):
                        event = await anext(events)
                except StopAsyncIteration:
                    return
                yield event
        finally:
            with inside(self.scope):
                await events.aclose()


class _Tool(StandIn):
    """A tool whose stream is a step."""

    def __init__(self, run: Execution, context: Any, active: Active, place: Place) -> None:
        super().__init__(
            context.tool, run=run, context=context, active=active, codec=active.codec, place=place
        )

    async def stream(self, tool_use: Any, invocation_state: Any, **kwargs: Any) -> AsyncIterator[Any]:
        call = self._call(tool_use, invocation_state)
        if (record := await call.afinished()) is not None:
            for event in self._given(call.value_of(record), tool_use, invocation_state):
                yield event
            return
        kept: list[Any] = []
        traces = Traces(self.context.agent, invocation_state, self.codec)
        native = self.real.stream(tool_use, invocation_state, **kwargs)

        def take(event: Any) -> bool:
            kept.extend(_as_kept(event, self.codec))
            return isinstance(event, _LAST)

        def result() -> Any:
            has_asked = bool(kept) and kept[-1][0] == "interrupt"  # it runs again once it is answered
            return None if has_asked else {"events": kept, **traces.left()}

        async for event in play(call, _to_the_last(native), take, result, traces.noting):
            yield event

    def _call(self, tool_use: Any, invocation_state: Any) -> Call:
        """The step: told from others by the model's call id, or by its input when user code calls the tool itself."""
        name, key = tool_use["name"], _id_of(self.run, self.context)
        if "event_loop_cycle_id" not in invocation_state:
            key = ""  # a direct call's id is random
        attempt = self.place.turn.count(f"try of {name}:{key}") if key else 1
        with inside(self.place.turn):
            call = begin(
                "tool",
                name,
                key=key,
                input=described(tool_use["input"]),
                codec=self.codec,
                attempt=attempt,
                effect="at_most_once" if name in self.active.at_most_once else "at_least_once",
            )
        if call is None:
            raise RuntimeError("a durable tool was called outside of its run")
        return call

    def _given(self, kept: Any, tool_use: Any, invocation_state: Any) -> list[Any]:
        """The events of a recorded call, once what it changed in memory is changed again."""
        if not (isinstance(kept, dict) and "events" in kept):  # what somebody has said became of it
            kept = {"events": [["result", _as_result(kept, tool_use), None]]}
        Traces.leave(self.context.agent, invocation_state, kept)
        return [_event(event, tool_use) for event in kept["events"]]


async def _to_the_last(events: Any) -> AsyncGenerator[Any, None]:
    """The events as far as Strands asks for them."""
    async for event in events:
        yield event
        if isinstance(event, _LAST):
            return


def _as_kept(event: Any, codec: Codec) -> list[Any]:
    """An event as it is recorded, in a list; an empty one when it is not."""
    if isinstance(event, ToolInterruptEvent):
        return [["interrupt"]]
    if isinstance(event, ToolResultEvent):
        error = failure.encode(event.exception) if event.exception is not None else None
        return [["result", copy.deepcopy(event.tool_result), error]]
    if isinstance(event, ToolStreamEvent):
        data = event["tool_stream_event"].get("data")
        return [["stream", copy.deepcopy(data)]] if _is_durable(codec, data) else []
    return [["raw", copy.deepcopy(event)]]


def _is_durable(codec: Codec, value: Any) -> bool:
    """Whether a streamed value can be given again. If not, only its stream is poorer; a tool's result must be."""
    try:
        codec.encode(value)
    except EncodingError:
        return False
    return True


def _event(kept: list[Any], tool_use: Any) -> Any:
    kind, value = kept[0], copy.deepcopy(kept[1])
    if kind == "result":
        return ToolResultEvent(value, exception=failure.decode(kept[2]) if kept[2] else None)
    return ToolStreamEvent(tool_use, value) if kind == "stream" else value


def _as_result(said: Any, tool_use: Any) -> dict[str, Any]:
    if isinstance(said, dict) and {"status", "content"} <= said.keys():
        return {**said, "toolUseId": tool_use["toolUseId"]}
    return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": str(said)}]}
