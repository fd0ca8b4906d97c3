"""Objects that exist in the caller's process only: a context with a client in it, providers, hooks, sessions."""

import asyncio
import datetime as dt
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    Model,
    ModelProvider,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    function_tool,
    input_guardrail,
    output_guardrail,
    tool_output_guardrail,
)

import durable_agents
from core.harness import crash
from durable_agents import runs

from .kit import Brain, calls, durable, says, then_done


@pytest.fixture
def idle(database_url: str) -> Iterator[None]:
    """No worker is quicker than the caller."""
    durable_agents.launch(database_url, poll=3600, heartbeat=3600, grace=3600, lease=3600)
    yield
    durable_agents.shutdown()


@dataclass
class Deps:
    """The usual context: what the tools need, and what they note."""

    lock: Any = field(default_factory=threading.Lock)
    noted: list[str] = field(default_factory=list)
    draft: str | None = "old"


@function_tool
async def note(deps: RunContextWrapper[Deps], text: str) -> str:
    with deps.context.lock:
        deps.context.noted.append(text)
    vars(deps.context).pop("draft", None)
    return f"noted {text}"


def clerk(**options: Any) -> Agent[Deps]:
    return Agent[Deps](name="clerk", model=then_done(("note", {"text": "a"})), tools=[note], **options)


def told(result: Any) -> Any:
    return (
        result.final_output,
        result.to_input_list(),
        [getattr(item, "output", None) for item in result.new_items],
        [response.output for response in result.raw_responses],
        result.context_wrapper.usage,
    )


# -- results


@pytest.mark.parametrize("streams", [False, True])
async def test_a_result_is_given_again_with_the_context_of_who_asks(
    engine: None, streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = durable(clerk())
    if streams:
        first: Any = app.run_streamed("hi", run_id="r1", context=Deps())
        async for _ in first.stream_events():
            pass
    else:
        first = await app.run("hi", run_id="r1", context=Deps())
    deps, noted = Deps(), []
    deps.noted = noted
    again = await app.run("hi", run_id="r1", context=deps)
    assert told(again) == told(first)
    assert again.context_wrapper.context is deps
    assert noted == deps.noted == ["a"], "what the run has changed is changed in it, in the very list"
    assert "draft" not in vars(deps)
    without = await runs.get("r1").aresult()
    assert told(without) == told(first)
    assert without.context_wrapper.context is None
    assert not caplog.records


def test_what_a_worker_has_finished_is_given_with_the_callers_context(engine: None) -> None:
    app = durable(clerk(), restore=lambda run: {"context": Deps()})
    app.start("hi", run_id="r1", context=Deps()).result(timeout=20)
    deps = Deps()
    assert app.run_sync("hi", run_id="r1", context=deps).context_wrapper.context is deps
    assert deps.noted == ["a"]


async def test_a_context_of_another_class_is_left_as_it_is(engine: None) -> None:
    class Others:
        lock = threading.Lock()

    app = durable(clerk())
    await app.run("hi", run_id="r1", context=Deps())
    others = Others()
    result = await app.run("hi", run_id="r1", context=others)
    assert result.context_wrapper.context is others
    assert vars(others) == {}


async def test_a_paused_result_has_the_context_of_who_asks(engine: None) -> None:
    @function_tool(needs_approval=True)
    async def refund(deps: RunContextWrapper[Deps], order: int) -> str:
        deps.context.noted.append(f"refunded {order}")
        return "refunded"

    app = durable(Agent(name="clerk", model=then_done(("refund", {"order": 55})), tools=[refund]))
    await app.run("hi", run_id="r1", context=Deps())
    deps = Deps()
    paused = await app.run("hi", run_id="r1", context=deps)
    assert paused.context_wrapper.context is deps
    state = paused.to_state()
    state.approve(state.get_interruptions()[0])
    assert (await app.run(state)).context_wrapper.context is deps
    assert deps.noted == ["refunded 55"]
    later = Deps()
    assert (await app.run("hi", run_id="r1", context=later)).final_output == "done: ['refunded']"
    assert later.noted == ["refunded 55"]


async def test_what_a_tool_has_returned_and_ended_the_run_with_is_kept_as_the_tools_output(
    engine: None,
) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd but readable"

    @function_tool
    def odd() -> Any:
        return Odd()

    agent = Agent[Any](
        name="clerk", model=then_done(("odd", {})), tools=[odd], tool_use_behavior="stop_on_first_tool"
    )
    app = durable(agent)
    await app.run("hi", run_id="r1", context=Deps())
    assert (await app.run("hi", run_id="r1", context=Deps())).final_output == "odd but readable"


async def test_a_recorded_context_that_got_something_live_is_made_again(engine: None) -> None:
    """By a replay: what can be recorded of it is not lost."""

    @function_tool
    async def connect(basket: RunContextWrapper[dict[str, Any]]) -> str:
        basket.context.update(client=threading.Lock(), paid=7)
        return "connected"

    app = durable(Agent(name="clerk", model=then_done(("connect", {})), tools=[connect]))
    await app.run("hi", run_id="r1", context={"order": 1})
    result = await runs.get("r1").aresult()
    assert result.context_wrapper.context == {"order": 1, "paid": 7}


# -- guardrails


@input_guardrail
async def exact(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput({"seen": {1, 2}, "at": (dt.date(2026, 1, 2), b"x")}, False)


@input_guardrail
async def odd_one(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput({"seen": {3}, "client": Client()}, False)


@output_guardrail
async def after(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(frozenset({4}), False)


@tool_output_guardrail
async def limit(data: Any) -> ToolGuardrailFunctionOutput:
    return ToolGuardrailFunctionOutput.allow({5: dt.timedelta(6)})


class Client:
    def __str__(self) -> str:
        return "a client"


EXACT = {"seen": {1, 2}, "at": (dt.date(2026, 1, 2), b"x")}
ODD = {"seen": {3}, "client": "a client"}


def verdicts(result: Any) -> dict[str, Any]:
    given = [
        *result.input_guardrail_results,
        *result.output_guardrail_results,
        *result.tool_output_guardrail_results,
    ]
    return {each.guardrail.get_name(): each.output.output_info for each in given}


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("crashes", [False, True])
async def test_what_a_guardrail_tells_is_kept(
    engine: None, asks: bool, crashes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """In a result that is given again, in a recovered run, and behind an approval."""

    @function_tool(needs_approval=asks, tool_output_guardrails=[limit])
    async def look() -> Any:
        return {"rows": {1, 2}}

    agent = Agent[Any](
        name="clerk", model=then_done(("look", {})), tools=[look],
        input_guardrails=[exact, odd_one], output_guardrails=[after],
    )  # fmt: skip
    app = durable(agent)
    first: Any = await app.run("hi", run_id="r1")
    if asks:
        assert verdicts(await app.run("hi", run_id="r1")) == {"exact": EXACT, "odd_one": ODD}
        state = first.to_state()
        state.approve(state.get_interruptions()[0])
        first = await app.run(state)
    if crashes:
        await asyncio.to_thread(crash, "r1")
        await runs.get("r1").aresult(timeout=20)
    again = await app.run("hi", run_id="r1")
    told = {"exact": EXACT, "odd_one": ODD, "after": frozenset({4})}
    if not asks:  # the SDK itself leaves it out behind an approval
        told["limit"] = {5: dt.timedelta(6)}
    assert verdicts(again) == told
    assert again.output_guardrail_results[0].agent_output == first.final_output
    assert {"rows": {1, 2}} in [getattr(item, "output", None) for item in again.new_items]
    assert [record.message for record in caplog.records if "guardrail" in record.message] == [
        "the output_info of guardrail 'odd_one' is kept as text: value.output_info.client is a "
        f"{__name__}.Client, which may not be stored; use plain data, or a pydantic model, dataclass or enum that is "
        "named in types=[…]"
    ]


# -- a caller who comes back


class Noting(RunHooks[Any]):
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.heard.append("model")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self.heard.append(tool.name)


class Provider(ModelProvider):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_model(self, model_name: str | None) -> Model:
        def think(outputs: list[Any], items: list[Any]) -> list[Any]:
            self.asked.append("model")
            if len(outputs) == 1:
                return says(f"after {outputs}")
            return calls(("note", {"text": "a"}))

        return Brain(think)


class Kept(SQLiteSession):
    """A session of the application's own."""


async def test_who_comes_back_and_drives_brings_every_live_object(idle: None) -> None:
    """The first process has died behind the tool; what is driven again is driven with what this call brings."""
    agent = Agent[Deps](name="clerk", model="mine", tools=[note])
    app = durable(agent)
    gave_up: list[str] = []

    def options(said: str) -> dict[str, Any]:
        return {
            "context": Deps(),
            "run_config": RunConfig(model_provider=Provider()),
            "hooks": Noting(),
            "session": Kept("s"),
            "error_handlers": {"max_turns": lambda data: gave_up.append(said) or said},
            "max_turns": 1,
        }

    assert (await app.run("hi", run_id="r1", **options("gave up"))).final_output == "gave up"
    steps = [step.path for step in runs.get("r1").steps()]
    await asyncio.to_thread(crash, "r1", after=2 + steps.index("tool:note:note-a"))
    brought = options("gave up again")
    result = await app.run("hi", run_id="r1", **brought)
    assert result.final_output == "gave up again"
    assert gave_up == ["gave up", "gave up again"]
    assert result.context_wrapper.context is brought["context"]
    assert brought["context"].noted == ["a"]
    assert brought["hooks"].heard == ["model", "note"], "of the records, too"
    assert brought["run_config"].model_provider.asked == [], "the model call has a record"
    assert await brought["session"].get_items()
