"""The SDK's objects as JSON, for step records, inputs and answers."""

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pydantic
from agents import (
    GuardrailFunctionOutput,
    ModelResponse,
    ModelSettings,
    SessionSettings,
    ToolExecutionConfig,
    ToolGuardrailFunctionOutput,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from agents.usage import RequestUsage
from agents.usage import Usage as SdkUsage
from openai.types import responses, shared
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage

from .._core import Codec, JsonCodec, Usage, logger
from .._core.errors import EncodingError

_SDK: tuple[type, ...] = (
    ModelResponse, SdkUsage, RequestUsage, GuardrailFunctionOutput, ToolGuardrailFunctionOutput, ModelSettings,
    SessionSettings, ToolExecutionConfig, ToolOutputText, ToolOutputImage, ToolOutputFileContent,
)  # fmt: skip


def _models_of(package: ModuleType) -> set[type]:
    """The pydantic models that a package of the OpenAI client defines."""
    modules = [package, *(importlib.import_module(found.name) for found in _modules(package))]
    return {
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, pydantic.BaseModel)
        and cls.__module__.startswith("openai.types.")
    }


def _modules(package: ModuleType) -> Iterable[pkgutil.ModuleInfo]:
    return pkgutil.walk_packages(package.__path__, f"{package.__name__}.")


_OPENAI = _models_of(responses) | _models_of(shared)


def sdk_codec(types: Iterable[type]) -> JsonCodec:
    """The codec of one agent: the SDK's and the client's types, those of its own signatures, those its user allowed."""
    return JsonCodec((*_SDK, *_details(), *_OPENAI, *types))


def _details() -> set[type]:
    """Types of the client inside the SDK's usage."""
    usage = SdkUsage()
    return {type(usage.input_tokens_details), type(usage.output_tokens_details)}


def usage_of(model: str, response: ModelResponse) -> Usage:
    """Tokens of a model call."""
    return Usage(model, response.usage.input_tokens, response.usage.output_tokens)


@dataclass(frozen=True, slots=True)
class Streamed:
    """A model call that was streamed: its events, and how many attempts had failed before."""

    events: list[Any]
    failed_attempts: int = 0


def as_response(result: ModelResponse | Streamed) -> ModelResponse | None:
    """What the model answered, however it was asked; None for a stream that did not complete."""
    if not isinstance(result, Streamed):
        return result
    for event in reversed(result.events):
        if isinstance(event, ResponseCompletedEvent):
            used = event.response.usage
            usage = SdkUsage(requests=1 + result.failed_attempts)
            if used is not None:
                usage.input_tokens, usage.output_tokens = used.input_tokens, used.output_tokens
                usage.total_tokens = used.total_tokens
                usage.input_tokens_details = used.input_tokens_details
                usage.output_tokens_details = used.output_tokens_details
            return ModelResponse(
                output=list(event.response.output), usage=usage, response_id=event.response.id
            )
    return None


def as_events(result: ModelResponse | Streamed) -> list[Any]:
    """The events of a model call; of one that was not streamed, the one that completes it."""
    if isinstance(result, Streamed):
        return result.events
    used = result.usage
    usage = ResponseUsage(
        input_tokens=used.input_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens=used.output_tokens,
        output_tokens_details=used.output_tokens_details,
        total_tokens=used.total_tokens,
    )
    response = Response.model_construct(
        id=result.response_id or "", created_at=0, model="", object="response", output=result.output,
        tool_choice="auto", tools=[], parallel_tool_calls=True, usage=usage,
    )  # fmt: skip
    return [
        ResponseCompletedEvent.model_construct(
            type="response.completed", response=response, sequence_number=0
        )
    ]


class ModelCodec:
    """The result of a model call, asked for at once or streamed."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, value: Any) -> Any:
        if isinstance(value, Streamed):
            return {"events": self._codec.encode(value.events), "failed_attempts": value.failed_attempts}
        return {"response": self._codec.encode(value)}

    def decode(self, data: Any) -> Any:
        if "events" in data:
            return Streamed(self._codec.decode(data["events"]), data["failed_attempts"])
        return self._codec.decode(data["response"])


class ToolCodec:
    """What a tool returned. A value without durable form is kept as the text that the model gets to read of it.

    Args:
        name: the tool, for the warning.
        exact: whether the value itself is needed again, because more than its text goes to the model.
    """

    def __init__(self, codec: Codec, name: str, exact: bool) -> None:
        self._codec, self._name, self._exact = codec, name, exact

    def encode(self, value: Any) -> Any:
        try:
            return self._codec.encode(value)
        except EncodingError as reason:
            if self._exact:
                raise
            logger.warning("the result of tool %r is kept as text: %s", self._name, reason)
            return str(value)

    def decode(self, data: Any) -> Any:
        return self._codec.decode(data)


class GuardrailCodec:
    """A guardrail's verdict; what in its `output_info` has no durable form is kept as text.

    Args:
        name: the guardrail, for the warning.
    """

    def __init__(self, codec: Codec, name: str) -> None:
        self._codec, self._name = codec, name

    def encode(self, value: Any) -> Any:
        verdict, reason = durable_verdict(value, self._codec)
        if reason is not None:
            logger.warning("the output_info of guardrail %r is kept as text: %s", self._name, reason)
        return self._codec.encode(verdict)

    def decode(self, data: Any) -> Any:
        return self._codec.decode(data)


def durable_verdict(verdict: Any, codec: Codec) -> tuple[Any, EncodingError | None]:
    """A verdict that can be encoded, and why it is not the very one that was given."""
    try:
        codec.encode(verdict)
    except EncodingError as reason:
        if not hasattr(verdict, "output_info"):
            raise
        try:
            info = _in_parts(verdict.output_info, codec)
        except RecursionError:  # it contains itself
            info = str(verdict.output_info)
        durable = object.__new__(type(verdict))
        durable.__dict__.update({**vars(verdict), "output_info": info})
        return durable, reason
    return verdict, None


def _in_parts(value: Any, codec: Codec) -> Any:
    """The value with text in the place of what cannot be encoded; a model that is not allowed is its fields."""
    try:
        codec.encode(value)
    except EncodingError:
        if isinstance(value, pydantic.BaseModel):
            value = {name: getattr(value, name) for name in type(value).model_fields}
        if type(value) is dict:
            return {_in_parts(key, codec): _in_parts(each, codec) for key, each in value.items()}
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(_in_parts(each, codec) for each in value)
        return str(value)
    return value
