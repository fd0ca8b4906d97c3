"""What the scenarios are made of: models that decide from their input, the native verbs, results as plain data."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelProvider,
    Runner,
    RunResult,
    function_tool,
    set_tracing_disabled,
)
from agents.items import ItemHelpers, ModelResponse
from agents.testing import assistant_message, function_call
from agents.usage import Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemDoneEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from crashmatrix import Answer, Resume, Scenario, Turn, World
from durable_agents.openai_agents import DurableRunner

set_tracing_disabled(True)
RunResult.__repr__ = lambda self: repr(told(self))  # type: ignore[method-assign]  # what the harness compares

ASK = "please"
Plan = Callable[[list[Any], list[Any]], list[Any]]


class Native:
    """The agent without the runner, with the runner's verbs."""

    def __init__(self, agent: Agent[Any]) -> None:
        self.agent = agent

    async def run(self, input: Any, **options: Any) -> Any:
        return await Runner.run(self.agent, input, **options)

    def run_sync(self, input: Any, **options: Any) -> Any:
        return Runner.run_sync(self.agent, input, **options)

    def run_streamed(self, input: Any, **options: Any) -> Any:
        return Runner.run_streamed(self.agent, input, **options)


def says(text: str) -> list[Any]:
    return [assistant_message(text)]


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[Any]:
    """Tool calls, each with an id of its own that tells what it is for."""
    return [
        function_call(name, arguments, call_id=f"{name}-{'-'.join(map(str, arguments.values()))}")
        for name, arguments in wanted
    ]


class Brain(Model):
    """Decides from its prompt: `plan` gets the outputs of tools so far, and all items."""

    def __init__(self, world: World, label: str, plan: Plan) -> None:
        self.world, self.label, self.plan = world, label, plan

    def _think(self, instructions: Any, input: Any) -> tuple[list[Any], int]:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        outputs = [item["output"] for item in items if item.get("type") == "function_call_output"]
        self.world.effect(f"{self.label} over {len(items)} items, told {instructions!r}")
        return self.plan(outputs, items), len(items)

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> ModelResponse:
        await asyncio.sleep(0)
        output, count = self._think(system_instructions, input)
        usage = Usage(requests=1, input_tokens=10 * count, output_tokens=5, total_tokens=10 * count + 5)
        return ModelResponse(output=output, usage=usage, response_id=f"{self.label}-{count}")

    async def stream_response(
        self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        output, count = self._think(system_instructions, input)
        number = 0
        for index, item in enumerate(output):
            if item.type == "message":
                for word in item.content[0].text.split():
                    number += 1
                    yield ResponseTextDeltaEvent(
                        type="response.output_text.delta", content_index=0, delta=word, item_id=item.id,
                        output_index=index, sequence_number=number, logprobs=[],
                    )  # fmt: skip
            number += 1
            yield ResponseOutputItemDoneEvent(
                type="response.output_item.done", item=item, output_index=index, sequence_number=number
            )
        usage = ResponseUsage(
            input_tokens=10 * count, output_tokens=5, total_tokens=10 * count + 5,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )  # fmt: skip
        response = Response(
            id=f"{self.label}-{count}", created_at=1, model=self.label, object="response", output=output,
            tool_choice="auto", tools=[], parallel_tool_calls=True, usage=usage,
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=number + 1)


class Provider(ModelProvider):
    """A provider of the application's own: a model by its name."""

    def __init__(self, world: World, plans: dict[str, Plan]) -> None:
        self._world, self._plans = world, plans

    def get_model(self, model_name: str | None) -> Model:
        name = str(model_name)
        return Brain(self._world, name, self._plans[name])


def two_tools(outputs: list[Any], items: list[Any]) -> list[Any]:
    """Both tools at once, then the end."""
    if not outputs:
        return calls(("charge", {"amount": 1}), ("mail", {"to": "ann"}))
    return says("done: " + ", ".join(map(str, outputs)))


def one_tool(outputs: list[Any], items: list[Any]) -> list[Any]:
    return says(f"done: {outputs[0]}") if outputs else calls(("charge", {"amount": 1}))


def charge_and_mail(world: World) -> list[FunctionTool]:
    """A sync and an async tool."""

    @function_tool
    def charge(amount: int) -> str:
        """Charge an amount."""
        world.effect(f"charge {amount}")
        return f"receipt {amount}"

    @function_tool
    async def mail(to: str) -> str:
        """Send a mail."""
        await asyncio.sleep(0)
        world.effect(f"mail {to}")
        return f"mailed {to}"

    return [charge, mail]


# -- what is said, and what is shown of the answer


def run(input: Any = ASK, run_id: str = "r1", **options: Any) -> Turn:
    """`run`, with options made anew for each call: an object may be changed by the run."""

    async def call(app: Any, **named: Any) -> Any:
        return told(await app.run(input, **_made(options), **named))

    return Turn(run_id, call)


def run_sync(input: Any = ASK, run_id: str = "r1", **options: Any) -> Turn:
    return Turn(run_id, lambda app, **named: told(app.run_sync(input, **_made(options), **named)))


def run_streamed(input: Any = ASK, run_id: str = "r1", **options: Any) -> Turn:
    async def call(app: Any, **named: Any) -> Any:
        result = app.run_streamed(input, **_made(options), **named)
        events = [_event(event) async for event in result.stream_events()]
        return told(result), events

    return Turn(run_id, call, attaches=False)


def queued(input: Any = ASK, run_id: str = "r1", **options: Any) -> Turn:
    async def call(app: Any, **named: Any) -> Any:
        return told(await app.start(input, **_made(options), **named).aresult(timeout=20))

    async def native(app: Any) -> Any:
        return told(await app.run(input, **_made(options)))

    return Turn(run_id, call, native)


def _made(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value() if callable(value) else value for name, value in options.items()}


def decide(decisions: dict[str, Any], input: Any = ASK, run_id: str = "r1", **options: Any) -> Resume:
    """`run(state)`: approve (True) or reject (a message) the calls of tools by name; the others stay open."""

    async def call(app: Any, **named: Any) -> Any:
        paused = await app.run(input, **_made(options), **named)
        if not paused.interruptions:
            return told(paused)  # the decision was taken before the crash
        return told(await app.run(decided(paused, decisions), **_made(options), **named))

    async def native(app: Any) -> Any:
        return await _natively(app, decisions, options)

    return Resume(run_id, call, native)


def answer(tool: str, value: Any, run_id: str = "r1", **options: Any) -> Answer:
    """`Run.answer` to the question about this tool."""

    def pick(questions: dict[str, Any]) -> str:
        return next(question for question, asked in questions.items() if asked["tool"] == tool)

    async def native(app: Any) -> Any:
        return await _natively(app, {tool: value}, options)

    return Answer(run_id, value, pick, native)


async def _natively(app: Any, decisions: dict[str, Any], options: dict[str, Any]) -> Any:
    app.last = await Runner.run(app.agent, decided(app.last, decisions), **_made(options))
    return told(app.last)


def decided(paused: Any, decisions: dict[str, Any]) -> Any:
    state = paused.to_state()
    for item in state.get_interruptions():
        decision = decisions.get(item.tool_name)
        if decision is True:
            state.approve(item)
        elif decision is not None:
            message = decision["message"] if isinstance(decision, dict) else decision
            state.reject(item, rejection_message=message if isinstance(message, str) else None)
    return state


class Remembering(Native):
    """For approvals natively: the last result is what a decision is about."""

    last: Any = None

    async def run(self, input: Any, **options: Any) -> Any:
        self.last = await super().run(input, **options)
        return self.last


def told(result: Any) -> dict[str, Any]:
    """A result as plain data."""
    used = result.context_wrapper.usage
    return {
        "output": result.final_output,
        "agent": result.last_agent.name,
        "items": [(item.type, item.agent.name) for item in result.new_items],
        "text": ItemHelpers.text_message_outputs(result.new_items),
        "input": json.dumps(result.to_input_list(), sort_keys=True),
        "responses": [response.response_id for response in result.raw_responses],
        "usage": (used.requests, used.input_tokens, used.output_tokens, len(used.request_usage_entries)),
        "open": sorted(item.tool_name for item in result.interruptions),
        "guardrails": [
            sorted((each.guardrail.get_name(), repr(each.output.output_info)) for each in results)
            for results in (result.input_guardrail_results, result.output_guardrail_results)
        ],
        "tool guardrails": [
            sorted(each.output.behavior["type"] for each in results)
            for results in (result.tool_input_guardrail_results, result.tool_output_guardrail_results)
        ],
        "context": result.context_wrapper.context,
    }


def _event(event: Any) -> Any:
    if event.type == "raw_response_event":
        return event.data.type, getattr(event.data, "delta", None)
    if event.type == "run_item_stream_event":
        return event.name, event.item.type
    return event.type, event.new_agent.name


def scene(
    agent: Agent[Any],
    *turns: Turn | Resume | Answer,
    is_async: bool = True,
    remembers: bool = False,
    **extra: Any,
) -> Scenario:
    """The agent, durably and natively, and what is said to it."""
    options = {name: extra.pop(name) for name in ("restore", "at_most_once", "types") if name in extra}
    native = Remembering(agent) if remembers else Native(agent)
    return Scenario(
        runner=DurableRunner(agent, "agent", **options),
        native=native,
        turns=turns,
        is_async=is_async,
        **extra,
    )


def outputs_named(items: Sequence[Any], name: str) -> bool:
    """Whether the tool of this name was called already."""
    return any(item.get("type") == "function_call" and item.get("name") == name for item in items)
