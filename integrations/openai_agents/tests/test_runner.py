"""`DurableRunner` behaves as the SDK's `Runner`, and what it cannot do it says at once."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    ApplyPatchTool,
    MaxTurnsExceeded,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    RunState,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
)
from agents.result import RunResultStreaming
from pydantic import BaseModel

import durable_agents
from durable_agents import runs
from durable_agents._core.engine import RUNNERS
from durable_agents.errors import (
    AlreadyAnswered,
    ConfigurationError,
    InputMismatch,
    NotRecoverable,
    NotSupported,
    NotWaiting,
    RunCancelled,
    RunWaiting,
)

from .kit import Brain, calls, durable, says, then_done

pytestmark = pytest.mark.usefixtures("engine")


def counting(log: list[str]) -> Any:
    @function_tool
    def charge(amount: int) -> str:
        log.append(f"charge {amount}")
        return f"receipt {amount}"

    return charge


def clerk(log: list[str], **options: Any) -> Agent[Any]:
    return Agent(name="clerk", model=then_done(("charge", {"amount": 7})), tools=[counting(log)], **options)


# -- verbs


async def test_a_run_is_the_native_one_with_the_users_own_objects() -> None:
    log: list[str] = []
    agent = clerk(log)
    app = durable(agent)
    result, native = await app.run("hi", run_id="r1"), await Runner.run(agent, "hi")
    assert type(result) is RunResult
    assert result.last_agent is agent
    assert all(item.agent is agent for item in result.new_items)
    assert result.final_output == native.final_output == "done: ['receipt 7']"
    assert result.to_input_list() == native.to_input_list()
    assert result.context_wrapper.usage == native.context_wrapper.usage
    assert log == ["charge 7", "charge 7"]
    steps = {step.path: step.usage for step in runs.get("r1").steps()}
    assert list(steps) == ["model:clerk", "tool:charge:charge-7", "model:clerk#2"]
    assert steps["model:clerk"] == durable_agents.Usage("Brain", 3, 2)


async def test_the_same_id_and_input_attach_and_another_input_is_an_error() -> None:
    log: list[str] = []
    agent = clerk(log)
    app = durable(agent)
    first, again = await app.run("hi", run_id="r1"), await app.run("hi", run_id="r1")
    assert log == ["charge 7"]
    assert again.final_output == first.final_output
    assert again.to_input_list() == first.to_input_list()
    assert again.context_wrapper.usage == first.context_wrapper.usage
    assert again.last_agent is agent
    with pytest.raises(InputMismatch):
        await app.run("ho", run_id="r1")
    with pytest.raises(InputMismatch):
        await app.run("hi", run_id="r1", max_turns=3)


def test_the_sync_verb_runs_without_a_loop_and_not_inside_one() -> None:
    log: list[str] = []
    app = durable(clerk(log))
    assert app.run_sync("hi", run_id="r1").final_output == "done: ['receipt 7']"

    async def inside() -> None:
        app.run_sync("hi")

    with pytest.raises(ConfigurationError, match="event loop"):
        asyncio.run(inside())


def test_a_started_run_is_driven_by_a_worker() -> None:
    log: list[str] = []
    app = durable(clerk(log))
    run = app.start("hi", run_id="r1")
    assert run.result(timeout=10).final_output == "done: ['receipt 7']"
    assert run.status == "succeeded"
    assert run.usage.input_tokens == 6


async def test_a_stream_is_live() -> None:
    """The first word is there while the model still speaks."""
    go_on = asyncio.Event()

    class Slow(Brain):
        async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            async for event in super().stream_response(*args, **kwargs):
                yield event
                await go_on.wait()

    app = durable(Agent(name="clerk", model=Slow(lambda outputs, items: says("one two"))))
    result = app.run_streamed("hi", run_id="r1")
    assert type(result) is RunResultStreaming
    words = []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            words.append(event.data.delta)
            assert runs.get("r1").steps() == [] or go_on.is_set()
            go_on.set()
    assert words == ["one", "two"]
    assert result.final_output == "one two"
    assert result.context_wrapper.usage.input_tokens == 3
    assert runs.get("r1").status == "succeeded"
    assert isinstance(runs.get("r1").result(), RunResult)


async def test_a_stream_goes_on_when_nobody_listens() -> None:
    log: list[str] = []
    durable(clerk(log)).run_streamed("hi", run_id="r1")
    assert (await runs_of("r1")).final_output == "done: ['receipt 7']"


async def runs_of(run_id: str) -> Any:
    while not runs.list():  # the task that opens the run has only been made
        await asyncio.sleep(0.01)
    return await runs.get(run_id).aresult(timeout=10)


@pytest.mark.parametrize("mode", ["immediate", "after_turn"])
async def test_cancel_on_the_stream_ends_the_run(mode: Any) -> None:
    log: list[str] = []
    result = durable(clerk(log)).run_streamed("hi", run_id="r1")
    async for event in result.stream_events():
        if event.type == "raw_response_event":
            result.cancel(mode)
    for _ in range(500):
        if runs.get("r1").status == "cancelled":
            break
        await asyncio.sleep(0.01)
    assert runs.get("r1").status == "cancelled"
    with pytest.raises(RunCancelled):
        runs.get("r1").result()


async def test_a_stream_cannot_be_attached_to() -> None:
    app = durable(clerk([]))
    await app.run("hi", run_id="r1")
    with pytest.raises(NotSupported, match="succeeded already"):
        async for _ in app.run_streamed("hi", run_id="r1").stream_events():
            pass


async def test_the_agent_is_untouched_and_runs_natively_at_the_same_time() -> None:
    log: list[str] = []
    agent = clerk(log)
    await Runner.run(agent, "hi")  # the SDK notes something on the agent itself
    before = dict(vars(agent))
    app = durable(agent)
    results = await asyncio.gather(
        app.run("hi", run_id="r1"), Runner.run(agent, "hi"), app.run("hi", run_id="r2")
    )
    assert [result.final_output for result in results] == ["done: ['receipt 7']"] * 3
    assert dict(vars(agent)) == before
    assert len(runs.list()) == 2


# -- hooks, contexts, outputs


async def test_hooks_are_called_in_order_with_the_users_agent() -> None:
    heard: list[str] = []

    class Listening(RunHooks[Any]):
        async def on_agent_start(self, context: Any, agent: Any) -> None:
            heard.append(f"start {agent is clerk_}")

        async def on_llm_start(self, *args: Any) -> None:
            heard.append("ask")

        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            heard.append(f"tool {tool is clerk_.tools[0]}")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            heard.append(f"got {result}")

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            heard.append("end")

    class Own(AgentHooks[Any]):
        async def on_end(self, context: Any, agent: Any, output: Any) -> None:
            heard.append("own end")

    clerk_ = clerk([], hooks=Own())
    await durable(clerk_).run("hi", run_id="r1", hooks=Listening())
    durable_order, heard = heard, []
    assert durable_order[:-2] == ["start True", "ask", "tool True", "got receipt 7", "ask"]
    assert sorted(durable_order[-2:]) == ["end", "own end"]


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)
    client: Any = None


async def test_the_callers_own_context_is_what_tools_change() -> None:
    @function_tool
    async def put(basket: RunContextWrapper[Basket], what: str) -> str:
        basket.context.items.append(what)
        return "ok"

    agent = Agent[Basket](name="clerk", model=then_done(("put", {"what": "lamp"})), tools=[put])
    basket = Basket()
    result = await durable(agent).run("hi", run_id="r1", context=basket)
    assert result.context_wrapper.context is basket
    assert basket.items == ["lamp"]
    assert runs.get("r1").result().context_wrapper.context == Basket(["lamp"])


async def test_an_attached_callers_context_gets_the_changes_too() -> None:
    @function_tool
    async def put(basket: RunContextWrapper[Basket], what: str) -> str:
        basket.context.items.append(what)
        return "ok"

    app = durable(Agent[Basket](name="clerk", model=then_done(("put", {"what": "lamp"})), tools=[put]))
    await app.run("hi", run_id="r1", context=Basket())
    basket, items = Basket(), []
    basket.items = items
    result = await app.run("hi", run_id="r1", context=basket)
    assert result.context_wrapper.context is basket
    assert items == ["lamp"], "the very list that the caller holds"


async def test_a_context_without_durable_form_is_live() -> None:
    app = durable(clerk([]))
    basket = Basket(client=threading.Lock())
    assert (await app.run("hi", run_id="r1", context=basket)).context_wrapper.context is basket
    with pytest.raises(NotRecoverable, match="context"):
        app.start("hi", context=basket)
    restoring = durable(clerk([]), restore=lambda run: {"context": basket})
    run = restoring.start("hi", run_id="r2", context=basket)
    assert run.result(timeout=10).final_output == "done: ['receipt 7']"
    assert (await restoring.run("hi", run_id="r2", context=basket)).context_wrapper.context is basket


class Verdict(BaseModel):
    paid: bool


async def test_structured_output_is_the_users_type_from_anywhere() -> None:
    agent = Agent[Any](
        name="judge", model=Brain(lambda outputs, items: says('{"paid": true}')), output_type=Verdict
    )
    assert (await durable(agent).run("hi", run_id="r1")).final_output == Verdict(paid=True)
    assert runs.get("r1").result().final_output == Verdict(paid=True)


async def test_a_tools_own_type_and_one_nobody_named() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd but readable"

    @function_tool
    def named() -> Verdict:
        return Verdict(paid=False)

    @function_tool
    def odd() -> Any:
        return Odd()

    app = durable(Agent(name="clerk", model=then_done(("named", {}), ("odd", {})), tools=[named, odd]))
    await app.run("hi", run_id="r1")
    outputs = [
        item.output for item in runs.get("r1").result().new_items if item.type == "tool_call_output_item"
    ]
    assert outputs[0] == Verdict(paid=False)
    assert str(outputs[1]) == "odd but readable"


# -- errors


async def test_errors_keep_their_type_and_text() -> None:
    app = durable(
        Agent(
            name="clerk",
            model=Brain(lambda outputs, items: calls(("charge", {"amount": len(outputs)}))),
            tools=[counting([])],
        )
    )
    for _ in range(2):
        with pytest.raises(MaxTurnsExceeded, match="Max turns \\(2\\) exceeded"):
            await app.run("hi", run_id="r1", max_turns=2)
    assert isinstance(runs.get("r1").error, MaxTurnsExceeded)


def test_what_is_not_supported_is_said_at_once() -> None:
    class Editor:
        pass

    patching: Any = Agent(name="patcher", tools=[ApplyPatchTool(editor=Editor())])  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="ApplyPatchTool"):
        durable(patching)
    with pytest.raises(NotSupported, match="patcher"):
        durable(Agent(name="first", handoffs=[handoff(patching)]))
    with pytest.raises(ConfigurationError, match="Agent"):
        durable("agent")  # type: ignore[arg-type]


async def test_a_tool_that_acts_and_comes_later_ends_the_run() -> None:
    class Editor:
        pass

    agent = clerk([])
    app = durable(agent)
    agent.tools.append(ApplyPatchTool(editor=Editor()))  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="ApplyPatchTool"):
        await app.run("hi", run_id="r1")


async def test_a_session_that_compacts_itself_is_refused() -> None:
    class Compacting(SQLiteSession):
        async def run_compaction(self, args: Any = None) -> None: ...

    with pytest.raises(NotSupported, match="Compacting"):
        await durable(clerk([])).run("hi", session=Compacting("s"))


def test_names_and_structure() -> None:
    inner = Agent[Any](name="inner")
    agent = Agent[Any](name="outer", tools=[inner.as_tool("ask", "")], handoffs=[Agent(name="other")])
    app = durable(agent)
    assert app.fingerprint() == {
        "agents": [
            {"name": "outer", "tools": ["ask"], "handoffs": ["other"]},
            {"name": "other", "tools": [], "handoffs": []},
            {"name": "inner", "tools": [], "handoffs": []},
        ]
    }


# -- approvals


def asking(log: list[str]) -> Agent[Any]:
    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        log.append(f"refund {order}")
        return f"refunded {order}"

    return Agent(name="clerk", model=then_done(("refund", {"order": 55})), tools=[refund])


async def test_an_approval_is_a_wait_that_the_state_answers() -> None:
    log: list[str] = []
    app = durable(asking(log))
    paused = await app.run("hi", run_id="r1")
    assert type(paused) is RunResult
    assert [item.tool_name for item in paused.interruptions] == ["refund"]
    run = runs.get("r1")
    assert run.status == "waiting"
    assert run.questions == {"refund-55": {"tool": "refund", "arguments": {"order": 55}, "agent": "clerk"}}
    state = paused.to_state()
    assert (await app.run(state)).interruptions, "a state that decides nothing changes nothing"
    state.approve(state.get_interruptions()[0])
    result = await app.run(state)
    assert result.final_output == "done: ['refunded 55']"
    assert log == ["refund 55"]
    assert [step.path for step in run.steps()] == [
        "model:clerk",
        "segment:2/tool:refund:refund-55",
        "segment:2/model:clerk",
    ]
    assert (await app.run(state, run_id="r1")).final_output == "done: ['refunded 55']", (
        "the same answer attaches"
    )
    state = paused.to_state()
    state.reject(state.get_interruptions()[0])
    with pytest.raises(AlreadyAnswered):
        await app.run(state, run_id="r1")


async def test_a_state_that_was_written_and_read_again_answers_too() -> None:
    agent = asking(log := [])
    app = durable(agent)
    text = (await app.run("hi", run_id="r1")).to_state().to_string()
    state = await RunState.from_string(agent, text)
    state.reject(state.get_interruptions()[0], rejection_message="not today")
    assert (await app.run(state)).final_output == "done: ['not today']"
    assert log == []


async def test_run_answer_from_anywhere_and_attaching_to_a_run_that_waits() -> None:
    app = durable(asking(log := []))
    await app.run("hi", run_id="r1")
    again = await app.run("hi", run_id="r1")
    assert [item.tool_name for item in again.interruptions] == ["refund"]
    assert log == []
    runs.get("r1").answer(True)
    result = await runs.get("r1").aresult(timeout=10)
    assert result.final_output == "done: ['refunded 55']"
    assert log == ["refund 55"]


@pytest.mark.parametrize("answer", ["yes", 1, None, {"always": True}, {"approve": "no"}])
async def test_an_answer_that_says_nothing_is_refused(answer: Any) -> None:
    app = durable(asking(log := []))
    await app.run("hi", run_id="r1")
    with pytest.raises(ConfigurationError, match="neither approves nor rejects"):
        runs.get("r1").answer(answer)
    assert [*runs.get("r1").questions] == ["refund-55"]
    runs.get("r1").answer(False)
    await runs.get("r1").aresult(timeout=10)
    assert log == []


async def test_one_from_a_process_without_the_runner_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = durable(asking(log := []))
    await app.run("hi", run_id="r1")
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(RUNNERS, app.name)
        runs.get("r1").answer("perhaps")
    while "refund-55#2" not in runs.get("r1").questions:
        await asyncio.sleep(0.01)
    runs.get("r1").answer(False)
    assert (
        await runs.get("r1").aresult(timeout=10)
    ).final_output == "done: ['Tool execution was not approved.']"
    assert log == []


async def test_arguments_that_are_no_json_are_asked_about_as_text() -> None:
    @function_tool(needs_approval=True)
    def refund(amount: float) -> str:
        return "never"

    agent = Agent[Any](name="clerk", model=then_done(("refund", {"amount": float("nan")})), tools=[refund])
    await durable(agent).run("hi", run_id="r1")
    assert [asked["arguments"] for asked in runs.get("r1").questions.values()] == ['{"amount":NaN}']


async def test_always_approve_holds_for_later_calls() -> None:
    log: list[str] = []

    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        log.append(f"refund {order}")
        return f"refunded {order}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        return (
            says("done")
            if len(outputs) == 2
            else calls(*[("refund", {"order": n}) for n in range(len(outputs) + 1)][-1:])
        )

    agent = Agent[Any](name="clerk", model=Brain(plan), tools=[refund])
    app = durable(agent)
    state = (await app.run("hi", run_id="r1")).to_state()
    state.approve(state.get_interruptions()[0], always_approve=True)
    assert (await app.run(state)).final_output == "done"
    assert log == ["refund 0", "refund 1"]


async def test_a_streamed_run_pauses_and_goes_on() -> None:
    app = durable(asking(log := []))
    first = app.run_streamed("hi", run_id="r1")
    async for _ in first.stream_events():
        pass
    assert runs.get("r1").status == "waiting"
    state = first.to_state()
    state.approve(first.interruptions[0])
    second = app.run_streamed(state)
    async for _ in second.stream_events():
        pass
    assert second.final_output == "done: ['refunded 55']"
    assert log == ["refund 55"]
    assert runs.get("r1").status == "succeeded"


async def test_a_state_of_no_waiting_run() -> None:
    agent = asking([])
    state = (await Runner.run(agent, "hi")).to_state()
    state.approve(state.get_interruptions()[0])
    with pytest.raises(NotWaiting, match="run_id"):
        await durable(agent).run(state)


# -- the same answer again


async def paused_and_approved(app: Any, run_id: str | None = None, **options: Any) -> RunState[Any]:
    state: RunState[Any] = (await app.run("hi", run_id=run_id, **options)).to_state()
    state.approve(state.get_interruptions()[0])
    return state


def refunding(log: list[str], error: Exception | None = None) -> Agent[Any]:
    """A refund that needs approval, and afterwards a charge; that raises `error`, once."""
    failures = [error] if error else []

    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        log.append(f"refund {order}")
        return f"refunded {order}"

    @function_tool(failure_error_function=None)
    def charge(amount: int) -> str:
        log.append(f"charge {amount}")
        if failures:
            raise failures.pop()
        return f"receipt {amount}"

    def plan(outputs: list[Any], items: list[Any]) -> list[Any]:
        wanted = [("refund", {"order": 55}), ("charge", {"amount": 7})][len(outputs) : len(outputs) + 1]
        return calls(*wanted) if wanted else says(f"done: {outputs}")

    return Agent(name="clerk", model=Brain(plan), tools=[refund, charge])


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("in_session", [False, True])
async def test_the_same_state_again_gives_the_result(named: bool, in_session: bool) -> None:
    app = durable(refunding(log := []))
    options: dict[str, Any] = {"session": SQLiteSession("s")} if in_session else {}
    state = await paused_and_approved(app, "r1", **options)
    text = state.to_string()
    said = (await app.run(state, **options)).final_output
    steps = len(runs.get("r1").steps())
    if named:
        options["run_id"] = "r1"
    for again in (state, await RunState.from_string(app.agent, text)):
        assert (await app.run(again, **options)).final_output == said == "done: ['refunded 55', 'receipt 7']"
    assert log == ["refund 55", "charge 7"]
    assert len(runs.get("r1").steps()) == steps
    other = await RunState.from_string(app.agent, text)
    other.reject(other.get_interruptions()[0])
    with pytest.raises(AlreadyAnswered):
        await app.run(other, **options)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("named", [False, True])
async def test_the_same_state_again_raises_what_the_run_failed_with(named: bool, streams: bool) -> None:
    """Natively it is tried again. Here `resume()` does that, and the error says so."""
    app = durable(refunding(log := [], error=ConnectionError("the bank is closed")))

    async def answer(state: RunState[Any], **options: Any) -> Any:
        if not streams:
            return await app.run(state, **options)
        result = app.run_streamed(state, **options)
        async for _ in result.stream_events():
            pass
        return result

    state = await paused_and_approved(app, "r1")
    with pytest.raises(UserError, match="bank") as first:
        await answer(state)
    with pytest.raises(UserError, match="bank") as second:
        await answer(state, **({"run_id": "r1"} if named else {}))
    assert str(second.value) == str(first.value)
    assert "runs.get('r1').resume()" in second.value.__notes__[0]
    assert log == ["refund 55", "charge 7"]
    runs.get("r1").resume()
    assert (await runs.get("r1").aresult(timeout=20)).final_output == "done: ['refunded 55', 'receipt 7']"
    assert log == ["refund 55", "charge 7", "charge 7"]
    assert (await app.run(state)).final_output == "done: ['refunded 55', 'receipt 7']"


@pytest.mark.parametrize("named", [False, True])
async def test_the_same_state_again_says_that_the_run_was_cancelled(named: bool) -> None:
    started, let_go = asyncio.Event(), asyncio.Event()

    @function_tool(needs_approval=True)
    async def refund(order: int) -> str:
        started.set()
        await let_go.wait()
        return "refunded"

    app = durable(Agent(name="clerk", model=then_done(("refund", {"order": 55})), tools=[refund]))
    state = await paused_and_approved(app, "r1")
    task = asyncio.create_task(app.run(state))
    await started.wait()
    await asyncio.to_thread(runs.get("r1").cancel)
    let_go.set()
    with pytest.raises(RunCancelled):
        await task
    with pytest.raises(RunCancelled, match=r"runs\.get\('r1'\)\.resume\(\)"):
        await app.run(state, **({"run_id": "r1"} if named else {}))


async def test_the_same_state_again_after_a_later_pause() -> None:
    """The run waits anew, for another call: that is what it answers, with nothing executed."""
    log: list[str] = []
    agent = refunding(log)
    agent.tools[1].needs_approval = True  # type: ignore[union-attr]
    app = durable(agent)
    first = await paused_and_approved(app, "r1")
    for _ in range(2):
        waits = await app.run(first)
        assert [item.tool_name for item in waits.interruptions] == ["charge"]
    assert log == ["refund 55"]
    second = waits.to_state()
    second.approve(second.get_interruptions()[0])
    said = (await app.run(second)).final_output
    for state in (first, second):
        assert (await app.run(state)).final_output == said
    assert log == ["refund 55", "charge 7"]


async def test_a_state_finds_the_run_that_waits_among_those_that_have_waited(tmp_path: Path) -> None:
    """Calls of one id: the one that waits; in a session its own; and nobody's guess when several are over."""
    app = durable(refunding(log := []))
    a, b = (SQLiteSession(name, tmp_path / "s.sqlite") for name in "ab")
    over = await paused_and_approved(app, "r1", session=a)
    await app.run(over, session=a)
    waits = await paused_and_approved(app, "r2", session=b)
    assert (await app.run(over, session=a)).final_output
    assert runs.get("r2").status == "waiting"
    assert (await app.run(waits)).final_output
    assert runs.get("r2").status == "succeeded"
    with pytest.raises(NotWaiting, match="several runs"):
        await app.run(waits)
    assert (await app.run(waits, session=b)).final_output
    assert log == ["refund 55", "charge 7"] * 2


# -- stopping, forking


async def until(status: str, run_id: str = "r1") -> None:
    async with asyncio.timeout(20):
        while runs.get(run_id).status != status:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_cancelled_run_stops_when_its_step_in_flight_is_recorded(streams: bool) -> None:
    begun, go_on, log = asyncio.Event(), asyncio.Event(), []

    @function_tool
    async def slow(n: int) -> str:
        begun.set()
        await go_on.wait()
        log.append(n)
        return "slow"

    agent = Agent[Any](name="clerk", model=then_done(("slow", {"n": 1})), tools=[slow])

    async def drive() -> None:
        if not streams:
            await durable(agent).run("hi", run_id="r1")
            return
        async for _ in durable(agent).run_streamed("hi", run_id="r1").stream_events():
            pass

    driven = asyncio.create_task(drive())
    await begun.wait()
    runs.get("r1").cancel()
    await asyncio.sleep(0.2)
    go_on.set()
    with pytest.raises(RunCancelled):
        async with asyncio.timeout(20):
            await driven
    assert log == [1]
    assert [step.path for step in runs.get("r1").steps()] == ["model:clerk", "tool:slow:slow-1"]
    assert runs.get("r1").status == "cancelled"


async def test_a_caller_that_is_cancelled_only_detaches() -> None:
    begun, log = asyncio.Event(), []

    @function_tool
    async def slow(n: int) -> str:
        begun.set()
        await asyncio.sleep(0.1)
        log.append(n)
        return "slow"

    agent = Agent[Any](name="clerk", model=then_done(("slow", {"n": 1})), tools=[slow])
    driven = asyncio.create_task(durable(agent).run("hi", run_id="r1"))
    await begun.wait()
    driven.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driven
    assert (await runs.get("r1").aresult(timeout=20)).final_output == "done: ['slow']"


async def test_a_fork_goes_its_own_way_from_a_step_on(tmp_path: Path) -> None:
    log: list[str] = []
    app = durable(clerk(log))
    await app.run("hi", run_id="r1")
    fork = runs.get("r1").fork(before="model:clerk#2")
    assert (await fork.aresult(timeout=20)).final_output == "done: ['receipt 7']"
    assert log == ["charge 7"]
    await app.run("hi", run_id="r2", session=SQLiteSession("s", tmp_path / "s.sqlite"))
    with pytest.raises(NotSupported, match="session"):
        runs.get("r2").fork()


# -- sessions


async def test_a_new_input_on_a_session_drops_the_pause(tmp_path: Path) -> None:
    session = SQLiteSession("s", tmp_path / "s.sqlite")
    app = durable(asking([]))
    await app.run("hi", run_id="r1", session=session)
    await app.run("never mind", run_id="r2", session=session)
    assert runs.get("r1").status == "cancelled"


async def test_runs_on_one_session_take_turns() -> None:
    """Two at once: the second one sees what the first has said."""
    session = SQLiteSession("s")
    app = durable(Agent(name="clerk", model=Brain(lambda outputs, items: says(f"after {len(items)}"))))
    results = await asyncio.gather(*[app.run("hi", run_id=f"r{n}", session=session) for n in range(3)])
    assert sorted(result.final_output for result in results) == ["after 1", "after 3", "after 5"]


def test_a_session_in_a_file_needs_no_restore(tmp_path: Path) -> None:
    session = SQLiteSession("s", tmp_path / "s.sqlite")
    app = durable(clerk([]))
    assert (
        app.start("hi", run_id="r1", session=session).result(timeout=10).final_output == "done: ['receipt 7']"
    )
    assert len(asyncio.run(session.get_items())) == 4
    with pytest.raises(NotRecoverable, match="session"):
        app.start("hi", session=SQLiteSession("s"))


async def test_plain_run_configs_are_recorded_and_others_are_live() -> None:
    app = durable(clerk([]))
    plain = app.start(
        "hi", run_id="r1", run_config=RunConfig(workflow_name="refunds", trace_metadata={"a": 1})
    )
    assert (await plain.aresult(timeout=10)).final_output == "done: ['receipt 7']"
    with pytest.raises(NotRecoverable, match="run_config"):
        app.start("hi", run_config=RunConfig(model=Brain(lambda outputs, items: says("x"))))
    assert (await app.run("hi", run_config={"workflow_name": "x"})).final_output == "done: ['receipt 7']"


def test_an_option_that_there_is_not_is_an_error() -> None:
    """A misspelt `run_id` would charge twice."""
    log: list[str] = []
    app = durable(clerk(log))
    for verb in (app.run_sync, app.start):
        with pytest.raises(TypeError, match="runid"):
            verb("hi", runid="order-55")
    assert log == []


async def test_a_state_that_decides_nothing_is_told_what_has_become_of_its_run() -> None:
    log: list[str] = []
    tool = counting(log)
    tool.needs_approval = True
    app = durable(Agent(name="clerk", model=then_done(("charge", {"amount": 7})), tools=[tool]))
    state = (await app.run("hi", run_id="r1")).to_state()
    assert (await app.run(state, run_id="r1")).interruptions
    await asyncio.to_thread(runs.get("r1").answer, True)
    await runs.get("r1").aresult(timeout=20)
    assert (await app.run(state, run_id="r1")).final_output == "done: ['receipt 7']"
    second = (await app.run("hi", run_id="r2")).to_state()
    await asyncio.to_thread(runs.get("r2").cancel)
    with pytest.raises(RunCancelled):
        await app.run(second, run_id="r2")
    assert log == ["charge 7"]


class Killed(BaseException):
    """Ends a run where it stands, as the death of its process does."""


async def test_at_most_once_holds_for_a_stream_inside_of_a_run() -> None:
    charged: list[int] = []

    @function_tool
    async def charge(amount: int) -> str:
        charged.append(amount)
        if len(charged) == 1:
            raise Killed
        return "receipt"

    inner = durable(
        Agent(name="cashier", model=then_done(("charge", {"amount": 7})), tools=[charge]),
        at_most_once={"charge"},
    )

    @function_tool(failure_error_function=None)
    async def ask_cashier(question: str) -> str:
        streamed = inner.run_streamed(question)
        async for _ in streamed.stream_events():
            pass
        return str(streamed.final_output)

    app = durable(
        Agent(name="clerk", model=then_done(("ask_cashier", {"question": "?"})), tools=[ask_cashier])
    )
    with pytest.raises(Killed):
        await app.run("hi", run_id="r1")
    with pytest.raises(RunWaiting):
        await app.run("hi", run_id="r1")
    runs.get("r1").answer({"result": "receipt 7"})
    assert "receipt 7" in (await asyncio.to_thread(runs.get("r1").result, 10)).final_output
    assert charged == [7]
