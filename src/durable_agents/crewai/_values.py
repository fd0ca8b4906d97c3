"""CrewAI's objects as JSON, for step records, inputs and results.

A model's tool calls are objects of its provider's SDK. They are stored by the names in `_PROVIDERS`, which are this
module's own: a name that stands only in the database is never imported.
"""

import importlib
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pydantic
from crewai.crews.crew_output import CrewOutput
from crewai.lite_agent_output import LiteAgentOutput
from crewai.memory.types import MemoryMatch, MemoryRecord
from crewai.tasks.output_format import OutputFormat
from crewai.tasks.task_output import TaskOutput
from crewai.tools.tool_failure import ToolFailure, ToolFailureReason, ToolFailureRecord
from crewai.types.usage_metrics import UsageMetrics
from crewai.utilities.guardrail import GuardrailResult

from .._core import Codec, JsonCodec, Usage, logger, type_name
from .._core.errors import EncodingError
from ._private import Crew, Flow, HumanFeedbackResult, InputResponse

_TYPES: tuple[type, ...] = (
    CrewOutput, TaskOutput, OutputFormat, UsageMetrics, ToolFailure, ToolFailureReason, ToolFailureRecord,
    LiteAgentOutput, GuardrailResult, HumanFeedbackResult, InputResponse, MemoryMatch, MemoryRecord,
)  # fmt: skip

_PROVIDERS = frozenset(
    {
        "openai.types.chat.chat_completion_message_tool_call:ChatCompletionMessageToolCall",
        "openai.types.chat.chat_completion_message_function_tool_call:ChatCompletionMessageFunctionToolCall",
        "openai.types.responses.response_function_tool_call:ResponseFunctionToolCall",
        "anthropic.types.tool_use_block:ToolUseBlock",
        "google.genai.types:Part",
        "litellm.types.utils:ChatCompletionMessageToolCall",
    }
)


def codec_of(types: Iterable[type]) -> JsonCodec:
    """The codec of one runner: framework types, those of its schema, and those its user allowed."""
    return JsonCodec((*_TYPES, *types))


def types_of_crew(crew: Crew) -> Iterator[type]:
    """Models that may stand in results: what tasks and tools are declared to give."""
    for task in crew.tasks:
        for declared in (task.output_pydantic, task.output_json, getattr(task, "response_model", None)):
            yield from _models(declared, set())
    owners: list[Any] = [*crew.agents, *crew.tasks]
    for owner in owners:
        for tool in owner.tools or ():
            yield from _models(getattr(tool, "result_schema", None), set())


def types_of_flow(flow: Flow[Any]) -> Iterator[type]:
    """Models that may stand in the state, and those that methods say they return."""
    state = flow._state
    if isinstance(state, pydantic.BaseModel):
        yield from _models(type(state), set())
    for method in flow._methods.values():
        try:
            hints = typing.get_type_hints(method)
        except (NameError, TypeError, AttributeError):
            continue  # names that exist only for type checkers
        yield from _models(hints.get("return"), set())


def _models(declared: Any, seen: set[type]) -> Iterator[type]:
    """The pydantic models, dataclasses and enums that a declared type is made of."""
    for argument in typing.get_args(declared):
        yield from _models(argument, seen)
    if not isinstance(declared, type) or declared in seen:
        return
    seen.add(declared)
    if issubclass(declared, pydantic.BaseModel):
        yield declared
        for info in declared.model_fields.values():
            yield from _models(info.annotation, seen)
    elif hasattr(declared, "__dataclass_fields__"):
        yield declared
        for part in declared.__dataclass_fields__.values():
            yield from _models(part.type, seen)
    elif hasattr(declared, "__members__"):
        yield declared


# -- models


@dataclass(slots=True)
class Answer:
    """What a model call gave: the provider's answer, the tokens it used by CrewAI's names, and the events it emitted.

    `completed` are pairs of a call type and the usage as the provider tells it.
    """

    result: Any
    tokens: dict[str, int] = field(default_factory=dict)
    completed: list[tuple[str, Any]] = field(default_factory=list)


class AnswerCodec:
    """An `Answer` as JSON. A structured answer is validated again as what this call asks for."""

    def __init__(self, base: Codec, model: type[pydantic.BaseModel] | None) -> None:
        self._base, self._model = base, model

    def encode(self, answer: Answer) -> Any:
        return {
            "result": self._encode(answer.result),
            "tokens": answer.tokens,
            "completed": [[kind, self._base.encode(usage)] for kind, usage in answer.completed],
        }

    def _encode(self, result: Any) -> Any:
        if self._model is not None and isinstance(result, self._model):
            return {"model": result.model_dump(mode="json")}
        if isinstance(result, list):
            return {"list": [self._encode(item) for item in result]}
        if isinstance(result, pydantic.BaseModel) and (name := _provider_name(type(result))) is not None:
            return {"provider": name, "fields": result.model_dump(mode="json", exclude_none=True)}
        return {"value": self._base.encode(result)}

    def decode(self, data: Any) -> Answer:
        completed = [(kind, self._base.decode(usage)) for kind, usage in data["completed"]]
        return Answer(self._decode(data["result"]), data["tokens"], completed)

    def _decode(self, data: Any) -> Any:
        if "list" in data:
            return [self._decode(item) for item in data["list"]]
        if "model" in data:
            if self._model is None:
                raise EncodingError("a model's structured answer was recorded, and none is asked for now")
            return self._model.model_validate(data["model"])
        if "provider" in data:
            return _provider(data["provider"]).model_validate(data["fields"])
        return self._base.decode(data["value"])


def _provider_name(cls: type) -> str | None:
    return next((name for base in cls.__mro__ if (name := type_name(base)) in _PROVIDERS), None)


def _provider(name: str) -> type[pydantic.BaseModel]:
    if name not in _PROVIDERS:
        raise EncodingError(f"a recorded tool call is a {name}, which is no tool call of a known provider")
    module, _, qualname = name.partition(":")
    found: type[pydantic.BaseModel] = getattr(importlib.import_module(module), qualname)
    return found


def usage_of(answer: Answer, model: str) -> Usage | None:
    """Tokens of a model step."""
    if not answer.tokens:
        return None
    return Usage(model, answer.tokens.get("prompt_tokens", 0), answer.tokens.get("completion_tokens", 0))


# -- tools


@dataclass(slots=True)
class Used:
    """What a tool gave, and how often it had been used then; None when somebody has said what it gave."""

    result: Any
    count: int | None = None


class UsedCodec:
    """A `Used` as JSON. Of a result that cannot be stored the agent's view of it is kept: that is a text."""

    def __init__(self, base: Codec, tool: Any) -> None:
        self._base, self._tool = base, tool

    def encode(self, used: Any) -> Any:
        if not isinstance(used, Used):
            used = Used(used)  # what became of a tool that was cut off, as somebody has said
        try:
            result = self._base.encode(used.result)
        except EncodingError as reason:
            logger.warning("the result of tool %r is kept as text: %s", self._tool.name, reason)
            result = str(self._tool.format_output_for_agent(used.result))
        return {"result": result, "count": used.count}

    def decode(self, data: Any) -> Used:
        return Used(self._base.decode(data["result"]), data["count"])
