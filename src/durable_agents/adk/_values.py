"""ADK's and the Gen AI SDK's objects as JSON, for step records, inputs, answers and sessions.

A framework object is stored by its own serialization, without what has its default; values of the user inside it (an
output, a state delta) by the codec, so that they keep their types. What a tool returned is JSON in its event, as with
every session service of ADK, and keeps its types in the tool's own record.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents.run_config import RunConfig
from google.adk.code_executors.code_execution_utils import CodeExecutionResult, File
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.events.request_input import RequestInput
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types as genai
from pydantic import BaseModel

from .._core import JsonCodec, Usage, type_name
from .._core.errors import EncodingError
from ._plain import Results, plain
from ._private import schema_to_json_schema

_GENAI = tuple(
    cls
    for cls in vars(genai).values()
    if isinstance(cls, type) and issubclass(cls, BaseModel) and cls.__module__ == genai.__name__
)
_PLAIN: tuple[type[BaseModel], ...] = (*_GENAI, LlmResponse, RunConfig, ToolConfirmation)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool or node did: its result, and what it left on its context for the event that tells of it."""

    result: Any
    actions: EventActions = field(default_factory=EventActions)


@dataclass(frozen=True, slots=True)
class Response(Outcome):
    """The outcome of a tool that a model has called."""


def adk_codec(types: Iterable[type] = ()) -> JsonCodec:
    """The codec of one app: framework types, and those its user allowed."""
    hooks: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        cls: (_dump, _loader(cls)) for cls in _PLAIN
    }
    hooks[EventActions] = (_dump_actions, _load_actions)
    hooks[Event] = (_dump_event, _load_event)
    hooks[RequestInput] = (_dump_request, _load_request)
    results = Results()
    hooks[Outcome] = (lambda o: [results.output(o.result), o.actions], lambda parts: Outcome(*parts))
    hooks[Response] = (lambda o: [results.response(o.result), o.actions], lambda parts: Response(*parts))
    results.codec = codec = JsonCodec((CodeExecutionResult, File, *types), hooks)
    return codec


def _dump(model: BaseModel, exclude: Any = None) -> Any:
    try:
        return json.loads(model.model_dump_json(exclude_defaults=True, exclude=exclude))
    except Exception as error:
        raise EncodingError(f"there is no JSON of a {type(model).__name__}: {error}") from error


def _loader(cls: type[BaseModel]) -> Callable[[Any], Any]:
    return lambda data: cls.model_validate_json(json.dumps(data))


def _dump_actions(actions: EventActions) -> Any:
    return [_dump(actions, {"state_delta"}), dict(actions.state_delta)]


def _load_actions(data: Any) -> EventActions:
    parts, state_delta = data
    actions = EventActions.model_validate_json(json.dumps(parts))
    actions.state_delta.update(state_delta)
    return actions


_RESPONSES = {"parts": {"__all__": {"function_response": {"response"}}}}


def _dump_event(event: Event) -> Any:
    parts = _dump(event, {"actions": True, "output": True, "content": _RESPONSES})
    return [parts, event.actions, event.output, _dump_responses(event.content)]


def _load_event(data: Any) -> Event:
    parts, actions, output, responses = data
    event = Event.model_validate_json(json.dumps(parts))
    event.actions, event.output = actions, output
    for at, response in _responses(event.content):
        response.response = responses[at]
    return event


def _responses(content: genai.Content | None) -> Iterator[tuple[str, genai.FunctionResponse]]:
    """What tools have returned, by the number of its part."""
    for at, part in enumerate((content.parts if content else None) or ()):
        if part.function_response is not None:
            yield str(at), part.function_response


def _dump_responses(content: genai.Content | None) -> dict[str, Any]:
    """By themselves: in a value of the user also what has its default counts, and a lone surrogate can be stored."""
    found = {}
    for at, response in _responses(content):
        try:
            found[at] = plain(response.response)
        except EncodingError as error:
            raise EncodingError(f"the result of tool {response.name!r} has no JSON: {error}") from error
    return found


def content_text(content: genai.Content) -> str:
    """A content of a prompt, whose text is the same for a tool's result and for the record of that."""
    try:
        responses = _dump_responses(content)
        text = content.model_dump_json(exclude_defaults=True, exclude=_RESPONSES)
        return text + json.dumps(responses) if responses else text
    except (ValueError, EncodingError):
        return type_name(type(content))


def _dump_request(request: RequestInput) -> Any:
    schema = request.response_schema
    if not (schema is None or isinstance(schema, dict)):
        schema = schema_to_json_schema(schema)  # which is what the request tells of it
    return [request.message, request.payload, request.interrupt_id, schema]


def _load_request(data: Any) -> RequestInput:
    message, payload, interrupt_id, schema = data
    return RequestInput(message=message, payload=payload, interrupt_id=interrupt_id, response_schema=schema)


def usage_of(responses: list[LlmResponse], model: str = "") -> Usage | None:
    """Tokens of a model call, from the last of its responses that tells."""
    for response in reversed(responses):
        if (used := response.usage_metadata) is not None:
            answered = (used.candidates_token_count or 0) + (used.thoughts_token_count or 0)
            return Usage(str(response.model_version or model), used.prompt_token_count or 0, answered)
    return None
