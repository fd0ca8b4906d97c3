"""ADK's and the Gen AI SDK's objects as JSON, for step records, inputs, answers and sessions.

A framework object is stored by its own serialization, without what has its default; values of the user inside it (an
output, a state delta) by the codec, so that they keep their types.
"""

import json
from collections.abc import Callable, Iterable
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

from .._core import JsonCodec, Usage
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


def adk_codec(types: Iterable[type] = ()) -> JsonCodec:
    """The codec of one app: framework types, and those its user allowed."""
    hooks: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        cls: (_dump, _loader(cls)) for cls in _PLAIN
    }
    hooks[EventActions] = (_dump_actions, _load_actions)
    hooks[Event] = (_dump_event, _load_event)
    hooks[RequestInput] = (_dump_request, _load_request)
    hooks[Outcome] = (lambda o: [o.result, o.actions], lambda parts: Outcome(*parts))
    return JsonCodec((CodeExecutionResult, File, *types), hooks)


def _dump(model: BaseModel) -> Any:
    return json.loads(model.model_dump_json(exclude_defaults=True))


def _loader(cls: type[BaseModel]) -> Callable[[Any], Any]:
    return lambda data: cls.model_validate_json(json.dumps(data))


def _dump_actions(actions: EventActions) -> Any:
    parts = json.loads(actions.model_dump_json(exclude_defaults=True, exclude={"state_delta"}))
    return [parts, dict(actions.state_delta)]


def _load_actions(data: Any) -> EventActions:
    parts, state_delta = data
    actions = EventActions.model_validate_json(json.dumps(parts))
    actions.state_delta.update(state_delta)
    return actions


def _dump_event(event: Event) -> Any:
    parts = event.model_dump_json(exclude_defaults=True, exclude={"actions", "output"})
    return [json.loads(parts), event.actions, event.output]


def _load_event(data: Any) -> Event:
    parts, actions, output = data
    event = Event.model_validate_json(json.dumps(parts))
    event.actions, event.output = actions, output
    return event


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
