"""LangGraph's and LangChain's objects as JSON, for step records, inputs and answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from langchain_core import messages
from langchain_core.documents import Document
from langchain_core.messages.base import TextAccessor
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langgraph.types import Command, Interrupt, Overwrite, Send

from .._core import JsonCodec, Usage


@dataclass(frozen=True, slots=True)
class Said:
    """What came with a plain answer, recorded with that to the first question.

    Args:
        answer: the plain answer.
        command: it stood in this `Command`, which has an update or says where to go.
        place: what the caller's `configurable` named: another checkpoint than the one at which the run waited.
    """

    answer: Any
    command: Command[Any] | None = None
    place: dict[str, Any] = field(default_factory=dict)


def said(given: Any) -> Said:
    """An answer as it was given: a plain value, or what `Run.answer` takes as well, a whole `Command`."""
    if isinstance(given, Said):
        return given
    return Said(given.resume, given) if isinstance(given, Command) else Said(given)


_MESSAGES = tuple(
    cls
    for cls in vars(messages).values()
    if isinstance(cls, type) and issubclass(cls, messages.BaseMessage) and cls is not messages.BaseMessage
)
_TYPES: tuple[type, ...] = (
    *_MESSAGES, ChatResult, ChatGeneration, ChatGenerationChunk, Document, ChatPromptValue, StringPromptValue, Command,
    Interrupt, Overwrite, Said,
)  # fmt: skip


def graph_codec(types: Iterable[type]) -> JsonCodec:
    """The codec of one graph: framework types, those of its schema, and those its user allowed."""
    hooks: dict[type, Any] = {Send: (_encode_send, _decode_send), TextAccessor: (str, TextAccessor)}
    return JsonCodec((*_TYPES, *types), hooks)


def _encode_send(send: Any) -> Any:
    return [send.node, send.arg, send.timeout]


def _decode_send(data: Any) -> Send:
    node, arg, timeout = data
    return Send(node, arg, timeout=timeout)


def usage_of(result: ChatResult) -> Usage | None:
    """Tokens of a model call, from the message's usage metadata."""
    if not result.generations:
        return None
    message = result.generations[0].message
    used: Any = getattr(message, "usage_metadata", None)
    if not used:
        return None
    metadata = message.response_metadata
    return Usage(
        str(metadata.get("model_name") or metadata.get("model") or ""),
        int(used["input_tokens"]),
        int(used["output_tokens"]),
    )
