"""Results and paused runs as JSON: the SDK's own `RunState`, and a `RunResult` made of it again."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

from agents import Agent, OutputGuardrailResult, RunResult, RunState
from agents.items import ToolCallOutputItem
from agents.result import RunResultBase

from .._core import Codec, type_name
from .._core.errors import EncodingError
from ._context import make_changes
from ._values import durable_verdict

T = TypeVar("T")


_VERDICTS = (
    "input_guardrail_results", "output_guardrail_results", "tool_input_guardrail_results",
    "tool_output_guardrail_results",
)  # fmt: skip


def encode_state(result: RunResultBase, codec: Codec) -> dict[str, Any]:
    """What a pause keeps: the run's state as the SDK writes it, and the context as the runner's codec does."""
    state: Any = result.to_state()  # type: ignore[attr-defined]
    context = result.context_wrapper.context
    try:
        kept = codec.encode(context)
    except EncodingError:
        kept = None  # a live argument: it comes from the caller, or from restore=
    return {"state": _json_of(state), "context": kept, **_values_of(result, codec)}


def _values_of(result: RunResultBase, codec: Codec) -> dict[str, Any]:
    """What the SDK would write as text where it is no JSON: what tools returned, and what guardrails said of it."""
    outputs = {
        str(number): _or_text(item.output, codec)
        for number, item in enumerate(result.new_items)
        if isinstance(item, ToolCallOutputItem) and not isinstance(item.output, str)
    }
    verdicts = {name: [_verdict(each, codec) for each in getattr(result, name)] for name in _VERDICTS}
    return {"outputs": outputs, "verdicts": verdicts}


def _verdict(result: Any, codec: Codec) -> dict[str, Any]:
    """A guardrail's output, and what it judged where the SDK keeps that."""
    data = {"output": codec.encode(durable_verdict(result.output, codec)[0])}
    if isinstance(result, OutputGuardrailResult):
        data["judged"] = _or_text(result.agent_output, codec)
    return data


def _or_text(value: Any, codec: Codec) -> Any:
    """The value, or its text as the record of its step has it, where that was said."""
    try:
        return codec.encode(value)
    except EncodingError:
        return str(value)


def _set_values(state: Any, data: dict[str, Any], codec: Codec) -> None:
    for number, output in data["outputs"].items():
        state._session_items[int(number)].output = codec.decode(output)
    for name, verdicts in data["verdicts"].items():
        for result, verdict in zip(getattr(state, f"_{name}"), verdicts, strict=True):
            result.output = codec.decode(verdict["output"])
            if "judged" in verdict:
                result.agent_output = codec.decode(verdict["judged"])


def _json_of(state: Any) -> dict[str, Any]:
    data: dict[str, Any] = state.to_json(context_serializer=lambda context: {})
    _drop_contexts(data)
    return data


def _drop_contexts(data: Any) -> None:
    """The SDK writes the user's context as it can, in each nested state again; ours is kept apart."""
    if isinstance(data, dict):
        if "context_meta" in data:
            data["context"] = data["context_meta"] = None
        for value in data.values():
            _drop_contexts(value)
    elif isinstance(data, list):
        for value in data:
            _drop_contexts(value)


async def decode_state(agent: Agent[Any], data: dict[str, Any], context: Any, codec: Codec) -> RunState[Any]:
    """The state of a paused run, for the user's own agents."""
    state: RunState[Any] = await RunState.from_json(agent, data["state"], context_override=context)
    _set_values(state, data, codec)
    return state


def encode_result(
    result: RunResultBase, codec: Codec, changes: Callable[[Any], dict[str, Any]] | None
) -> dict[str, Any]:
    """A finished run.

    Args:
        changes: what the run has changed in a context that has no durable form and is left out; None for a run whose
            context must be stored.

    Raises:
        EncodingError: its output, or such a context, has no durable form.
    """
    data = _json_of(result.to_state())  # type: ignore[attr-defined]
    data["last_processed_response"] = None  # only a run that goes on needs it
    values, context = _values_of(result, codec), result.context_wrapper.context
    stored = {
        "state": data,
        "input": codec.encode(result.input),
        "final_output": _final_output(result, codec, values["outputs"]),
        **values,
    }
    try:
        return {**stored, "context": codec.encode(context)}
    except EncodingError:
        if changes is None:
            raise
        return {**stored, "context": None, "changes": {"type": type_name(type(context)), **changes(context)}}


def _final_output(result: RunResultBase, codec: Codec, outputs: dict[str, Any]) -> Any:
    """What a tool has returned as the run's output is kept as the tool's own output is."""
    for number in outputs:
        item: Any = result.new_items[int(number)]
        if item.output is result.final_output:
            return outputs[number]
    return codec.encode(result.final_output)


def decode_result(agent: Agent[Any], data: dict[str, Any], codec: Codec) -> RunResult:
    context = codec.decode(data["context"])
    result = result_of(_now(lambda: decode_state(agent, data, context, codec)))
    result.input = codec.decode(data["input"])
    result.final_output = codec.decode(data["final_output"])
    vars(result)["_changes"] = data.get("changes")
    return result


def give_context(result: RunResult, context: Any, codec: Codec) -> None:
    """A result without a context gets the reader's own, with what the run has changed in it."""
    result.context_wrapper.context = context
    changes = vars(result).get("_changes")
    if changes is not None and changes["type"] == type_name(type(context)):
        make_changes(context, changes, codec)


def paused_result(agent: Agent[Any], data: dict[str, Any], codec: Codec) -> RunResult:
    """What the native verb has returned for a run that waits."""
    context = codec.decode(data["context"])
    return result_of(_now(lambda: decode_state(agent, data, context, codec)))


def _now(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The outcome of a coroutine, for callers that may stand in an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(Context().run, lambda: asyncio.run(work())).result()


def result_of(state: Any) -> RunResult:
    """A `RunResult` as `agents.run` builds it, out of the state that this one would give."""
    result = RunResult(
        input=state._original_input,
        new_items=list(state._session_items),
        raw_responses=list(state._model_responses),
        final_output=None,
        input_guardrail_results=list(state._input_guardrail_results),
        output_guardrail_results=list(state._output_guardrail_results),
        tool_input_guardrail_results=list(state._tool_input_guardrail_results),
        tool_output_guardrail_results=list(state._tool_output_guardrail_results),
        context_wrapper=state._context,
        _last_agent=state._current_agent,
        _last_processed_response=state._last_processed_response,
        _tool_use_tracker_snapshot=state.get_tool_use_tracker_snapshot(),
        _current_turn_persisted_item_count=state._current_turn_persisted_item_count,
        _current_turn=state._current_turn,
        _model_input_items=list(state._generated_items),
        _original_input=state._original_input,
        _conversation_id=state._conversation_id,
        _previous_response_id=state._previous_response_id,
        _auto_previous_response_id=state._auto_previous_response_id,
        max_turns=state._max_turns,
        interruptions=state.get_interruptions(),
    )
    result._replay_from_model_input_items = list(state._generated_items) != list(state._session_items)
    result._nested_history_owned_session_item_refs = list(state._nested_history_owned_session_item_refs)
    result._starting_agent_for_state = state._starting_agent
    result._current_step_for_state = state._current_step
    result._generated_prompt_cache_key = state._generated_prompt_cache_key
    result._reasoning_item_id_policy = state._reasoning_item_id_policy
    return result
