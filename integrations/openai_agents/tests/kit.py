"""Agents of the tests: models that decide from their input, and runners with names of their own."""

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from agents import Agent, Model, set_tracing_disabled
from agents.items import ModelResponse
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent, ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from durable_agents.openai_agents import DurableRunner

set_tracing_disabled(True)


class Brain(Model):
    """Answers as `plan(outputs of tools so far, items)` says; `asked` are the prompts it has seen."""

    def __init__(self, plan: Callable[[list[Any], list[Any]], list[Any]]) -> None:
        self.plan = plan
        self.asked: list[list[Any]] = []

    def _think(self, input: Any) -> list[Any]:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self.asked.append(items)
        return self.plan([i["output"] for i in items if i.get("type") == "function_call_output"], items)

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        used = Usage(requests=1, input_tokens=3, output_tokens=2, total_tokens=5)
        return ModelResponse(output=self._think(input), usage=used, response_id=None)

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        output = self._think(input)
        for number, word in enumerate(["one", "two"]):
            yield ResponseTextDeltaEvent(
                type="response.output_text.delta", content_index=0, delta=word, item_id="m", output_index=0,
                sequence_number=number, logprobs=[],
            )  # fmt: skip
        usage = ResponseUsage(
            input_tokens=3, output_tokens=2, total_tokens=5,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )  # fmt: skip
        response = Response(
            id="r", created_at=1, model="brain", object="response", output=output, tool_choice="auto", tools=[],
            parallel_tool_calls=True, usage=usage,
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=9)


def says(text: str) -> list[Any]:
    return [assistant_message(text)]


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[Any]:
    """Tool calls, each with an id that tells what it is for."""
    return [
        function_call(name, arguments, call_id="-".join([name, *map(str, arguments.values())]))
        for name, arguments in wanted
    ]


def then_done(*wanted: tuple[str, dict[str, Any]]) -> Brain:
    """Calls these tools at once, and then says what they have returned."""
    return Brain(lambda outputs, items: says(f"done: {outputs}") if outputs else calls(*wanted))


def durable(agent: Agent[Any], **options: Any) -> DurableRunner:
    """A runner with a name of its own: names are unique in a process."""
    return DurableRunner(agent, f"a{uuid.uuid4().hex}", **options)
