"""What a durable agent is beside the contract: native faults that it does not have, and what it leaves alone."""

import asyncio
import threading
import time
from typing import Any

import pytest
from strands import Agent, ToolContext, tool
from strands.agent.agent_result import AgentResult
from strands.hooks import AfterToolCallEvent, BeforeModelCallEvent
from strands.session.file_session_manager import FileSessionManager
from strands.types.exceptions import ConcurrencyException
from strands_kit import Scripted, agent_of, told

import durable_agents
from durable_agents import runs
from durable_agents._core import engine as engines
from durable_agents._core.engine import RUNNERS
from durable_agents._core.rebuild import rebuild
from durable_agents.errors import ConfigurationError, NotRecoverable, NotSupported, RunCancelled, RunWaiting
from durable_agents.strands import DurableAgent

pytestmark = pytest.mark.usefixtures("engine")


class Killed(BaseException):
    """Ends a run where it stands, as the death of its process does."""


def charging(replies: int, messages: Any) -> Any:
    return [("charge", {"amount": 1})] if replies == 0 else f"done after {len(messages)} messages"


def charge_tool(charged: list[int], *dies: BaseException) -> Any:
    left = list(dies)

    @tool
    def charge(amount: int) -> str:
        """Charge an amount."""
        charged.append(amount)
        if left:
            raise left.pop(0)
        return f"receipt {amount}"

    return charge


def test_a_conversation_goes_on_after_a_death_during_a_tool(name: str) -> None:
    """Natively its last message asks for a tool that nobody answers: the next call makes up a failed result."""
    charged: list[int] = []
    app = DurableAgent(agent_of(charging, charge_tool(charged, Killed())), name)
    with pytest.raises(Killed):
        app("please", run_id="r1")
    assert str(app("please", run_id="r1")).strip() == "done after 3 messages"
    assert charged == [1, 1]
    app("and again", run_id="r2")
    kinds = told(app.messages)
    turn = [("user", ["text"]), ("assistant", ["toolUse"]), ("user", ["toolResult"]), ("assistant", ["text"])]
    assert kinds == turn + turn


def test_the_tokens_of_a_finished_call_are_streamed_again(name: str) -> None:
    """Natively what was streamed before a death is lost to whoever connects again."""

    def plan(replies: int, messages: Any) -> Any:
        return [("charge", {"amount": 1})] if len(messages) == 1 else "three little words"

    charged: list[int] = []
    agent = agent_of(plan, charge_tool(charged))
    app = DurableAgent(agent, name)
    dies = [Killed()]

    def die(event: BeforeModelCallEvent) -> None:
        if len(event.agent.messages) > 1 and dies:
            raise dies.pop()

    agent.add_hook(die, BeforeModelCallEvent)

    async def heard() -> list[Any]:
        return [event async for event in app.stream_async("please", run_id="r1")]

    with pytest.raises(Killed):
        asyncio.run(heard())
    events = asyncio.run(heard())
    assert [event["data"] for event in events if "data" in event] == ["three ", "little ", "words "]
    assert [event["type"] for event in events if "tool_stream_event" in event] == []
    assert isinstance(events[-1]["result"], AgentResult)
    assert charged == [1]
    assert agent.model.calls == 2  # type: ignore[attr-defined]


def test_ids_of_messages_last(name: str) -> None:
    charged: list[int] = []
    seen: list[Any] = []
    agent = agent_of(charging, charge_tool(charged, Killed()))
    agent.add_hook(lambda event: seen.append(event.agent.messages[0]["tracking_id"]), BeforeModelCallEvent)
    app = DurableAgent(agent, name)
    with pytest.raises(Killed):
        app("please", run_id="r1")
    app("please", run_id="r1")
    assert set(seen) == {app.messages[0]["tracking_id"]}
    assert len({message["tracking_id"] for message in app.messages}) == 4


def test_the_agent_itself_is_left_as_it_was(name: str) -> None:
    agent = agent_of(charging, charge_tool([]), messages=[], state={"mine": 1}, system_prompt="Be kind.")
    before = agent.messages, agent.state, agent.event_loop_metrics, agent.callback_handler
    app = DurableAgent(agent, name)
    app("please", run_id="r1")
    after = agent.messages, agent.state, agent.event_loop_metrics, agent.callback_handler
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert agent.messages == []
    assert len(app.messages) == 4
    assert app.state.get("mine") == 1
    assert app.system_prompt == "Be kind."
    assert str(agent("natively")).strip() == "done after 3 messages"
    assert [run.id for run in runs.list()] == ["r1"]


def test_what_is_not_durable_stays_as_it_is(name: str) -> None:
    """The same agent is called beside its runner: natively that is refused while it works, and its run waits for it."""
    begun, may_end = threading.Event(), threading.Event()

    @tool
    def wait() -> str:
        """Wait."""
        begun.set()
        may_end.wait(20)
        return "waited"

    agent = agent_of(lambda n, messages: [("wait", {})] if n == 0 else f"{len(messages)} messages", wait)
    app = DurableAgent(agent, name)
    native = threading.Thread(target=agent, args=("natively",))
    native.start()
    assert begun.wait(20)
    run = app.start("durably", run_id="r1")
    time.sleep(0.2)
    assert [step.kind for step in run.steps() if step.kind == "model"] == []
    may_end.set()
    native.join()
    assert str(run.result(timeout=20)).strip() == "3 messages"
    assert len(agent.messages) == 4

    begun.clear()
    may_end.clear()
    second = app.start("durably again", run_id="r2")
    assert begun.wait(20)
    with pytest.raises(ConcurrencyException):
        agent("meanwhile")
    may_end.set()
    assert str(second.result(timeout=20)).strip() == "7 messages"


def test_runs_on_one_agent_come_one_after_the_other(name: str) -> None:
    active, most = [0], [0]

    @tool
    async def work(number: int) -> str:
        """Work."""
        active[0] += 1
        most[0] = max(most[0], active[0])
        await asyncio.sleep(0.02)
        active[0] -= 1
        return "worked"

    app = DurableAgent(
        agent_of(lambda n, messages: [("work", {"number": 1})] if n == 0 else "done", work), name
    )
    started = [app.start("please", run_id=f"r{n}", session_id=f"s{n}") for n in range(6)]
    results = [str(run.result(timeout=30)).strip() for run in started]
    assert results == ["done"] * 6
    assert most == [1]
    assert all(len(app.messages_of(f"s{n}")) == 4 for n in range(6))
    assert app.messages == []


def test_a_waiting_conversation_takes_nothing_else(name: str) -> None:
    @tool(context=True)
    def charge(amount: int, tool_context: ToolContext) -> str:
        """Charge an amount."""
        return f"receipt {amount} {tool_context.interrupt('sure')}"

    app = DurableAgent(agent_of(charging, charge), name)
    assert app("please", run_id="r1").stop_reason == "interrupt"
    for verb in (app, app.start):
        with pytest.raises(TypeError, match="'r1' waits"):
            verb("something else", run_id="r2")
    assert str(app("something else", run_id="r3", session_id="other").stop_reason) == "interrupt"
    runs.get("r1").cancel()
    assert runs.get("r1").status == "cancelled"
    with pytest.raises(RunCancelled):
        runs.get("r1").result()
    assert app.messages == []
    assert app("something else", run_id="r4").stop_reason == "interrupt"


def test_an_agent_cancelled_before_it_could_use_an_answer_waits_on(name: str) -> None:
    """As natively: the answer is given again, and the tool acts once."""
    charged: list[str] = []

    @tool(context=True)
    def charge(amount: int, tool_context: ToolContext) -> str:
        """Charge an amount."""
        said: str = tool_context.interrupt("sure")
        charged.append(said)
        return f"receipt {amount} {said}"

    def outcomes(app: Any, agent: Agent) -> list[str]:
        paused = app("please")
        responses = [{"interruptResponse": {"interruptId": paused.interrupts[0].id, "response": "yes"}}]
        agent.cancel()
        stopped = app(responses)
        agent._cancel_signal.clear()
        return [paused.stop_reason, stopped.stop_reason, str(app(responses)).strip(), *charged]

    native, agent = agent_of(charging, charge), agent_of(charging, charge)
    expected = outcomes(native, native)
    charged.clear()
    assert outcomes(DurableAgent(agent, name), agent) == expected
    (run,) = runs.list()
    assert run.status == "succeeded"


def test_a_model_that_cannot_tell_its_configuration_is_named_by_its_class(name: str) -> None:
    class Secretive(Scripted):
        def get_config(self) -> Any:
            raise NotImplementedError

    app = DurableAgent(Agent(model=Secretive(lambda replies, messages: "hello"), callback_handler=None), name)
    assert str(app("hi", run_id="r")).strip() == "hello"
    assert [step.name for step in runs.get("r").steps() if step.kind == "model"] == ["Secretive"]


def test_a_tool_that_runs_at_most_once_may_ask(name: str) -> None:
    """Its question is no unknown outcome; a death after the answer is."""
    begun: list[str] = []
    dies = [Killed()]

    @tool(context=True)
    def charge(amount: int, tool_context: ToolContext) -> str:
        """Charge an amount."""
        begun.append(str(durable_agents.idempotency_key()))
        said = tool_context.interrupt("sure")
        if dies:
            raise dies.pop()
        return f"charged {said}"

    def plan(replies: int, messages: Any) -> Any:
        if replies == 0:
            return [("charge", {"amount": 1})]
        return str(messages[-1]["content"][0]["toolResult"]["content"][0]["text"])

    app = DurableAgent(agent_of(plan, charge), name, at_most_once={"charge"})
    paused = app("please", run_id="r1")
    assert paused.stop_reason == "interrupt"
    responses = [{"interruptResponse": {"interruptId": paused.interrupts[0].id, "response": "yes"}}]
    with pytest.raises(Killed):
        app(responses)
    with pytest.raises(RunWaiting, match="outcome:"):
        app(responses, run_id="r1")
    assert len(begun) == 2
    runs.get("r1").answer("run again")
    assert str(runs.get("r1").result(timeout=20)).strip() == "charged yes"
    assert len(begun) == 3
    assert len(set(begun)) == 1, "one idempotency key, before and after the answer"


def test_responses_without_a_waiting_run(name: str) -> None:
    app = DurableAgent(agent_of(charging, charge_tool([])), name)
    with pytest.raises(ValueError, match="no run waits"):
        app([{"interruptResponse": {"interruptId": "x", "response": "y"}}])


def test_live_objects(name: str, engine: str) -> None:
    class Client:
        def pay(self) -> str:
            return "paid"

    @tool(context=True)
    def charge(amount: int, tool_context: ToolContext) -> str:
        """Charge an amount."""
        tool_context.invocation_state["seen"] = amount
        return str(tool_context.invocation_state["client"].pay())

    agent = agent_of(charging, charge)
    app = DurableAgent(agent, name)
    state = {"client": Client(), "plain": [1]}
    app("please", run_id="r1", invocation_state=state)
    assert state["seen"] == 1
    with pytest.raises(NotRecoverable, match=r"invocation_state\.client"):
        app.start("please", run_id="r2", invocation_state={"client": Client()})
    restoring = DurableAgent(
        agent, f"{name}-restoring", restore=lambda run: {"invocation_state.client": Client()}
    )
    run = restoring.start("please", run_id="r3", invocation_state={"client": Client(), "plain": [1]})
    assert str(run.result(timeout=20)).strip() == "done after 3 messages"


def test_a_native_stop_in_the_middle_of_a_stream_is_recorded(name: str) -> None:
    agent = agent_of(lambda n, messages: "one two three four")
    app = DurableAgent(agent, name)

    async def stopped() -> Any:
        async for event in app.stream_async("please", run_id="r1"):
            if event.get("data") == "two ":
                agent.cancel(message="enough")
        return event["result"]

    result = asyncio.run(stopped())
    assert result.stop_reason == "cancelled"
    assert result.message["content"] == [{"text": "enough"}]
    assert runs.get("r1").status == "succeeded"
    assert [step.path for step in runs.get("r1").steps()][-1] == "1/model:scripted"
    replayed = rebuild(engines.current(), app.durable, runs.get("r1")._row())
    assert (replayed.stop_reason, replayed.message["content"]) == ("cancelled", [{"text": "enough"}])


@pytest.mark.parametrize(
    "options",
    [
        {"checkpointing": True},
        {"background_tasks": True},
        {"context_manager": "auto"},
        {"session_manager": "files"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_not_supported_says_so_at_once(name: str, tmp_path: Any, options: dict[str, Any]) -> None:
    if "session_manager" in options:
        options = {"session_manager": FileSessionManager("s", storage_dir=str(tmp_path))}
    with pytest.raises(NotSupported, match=next(iter(options)).replace("_", ".")):
        DurableAgent(agent_of(charging, **options), name)


def test_other_things_that_are_refused(name: str) -> None:
    app = DurableAgent(agent_of(charging, charge_tool([])), name)
    with pytest.raises(NotSupported, match="run_id"):
        app("please", idempotency_token="x")
    with pytest.raises(ConfigurationError, match=r"strands\.Agent"):
        DurableAgent(object(), f"{name}-2")
    app("please", run_id="r1")
    with pytest.raises(NotSupported, match="forked"):
        runs.get("r1").fork(before="1/tool:charge:charge-0")


def test_a_run_waits_for_the_tools_it_began_with(name: str, engine: str) -> None:
    charged: list[int] = []

    @tool
    def mail(to: str) -> str:
        """Send a mail."""
        return "sent"

    def begin(*tools: Any) -> DurableAgent:
        RUNNERS.pop(f"strands.{name}", None)
        return DurableAgent(agent_of(charging, charge_tool(charged), *tools), name)

    app = DurableAgent(agent_of(charging, charge_tool(charged, Killed())), name)
    assert app.durable.code == {"agents": {"agent": {"name": "Strands Agents", "tools": ["charge"]}}}
    with pytest.raises(Killed):
        app("please", run_id="r1")
    durable_agents.shutdown()
    begin(mail)
    durable_agents.launch(engine, heartbeat=0.05, grace=0.2, poll=0.05)
    deadline = time.monotonic() + 20
    while runs.get("r1").blocked is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "mail" in str(runs.get("r1").blocked)
    durable_agents.shutdown()
    begin()
    durable_agents.launch(engine, heartbeat=0.05, grace=0.2, poll=0.05)
    assert str(runs.get("r1").result(timeout=20)).strip() == "done after 3 messages"
    assert charged == [1, 1]


def test_no_network_is_tried(name: str, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Strands' own telemetry sends nothing unless it is told where to."""
    if not engine.startswith("sqlite"):
        pytest.skip("the database itself is reached through a socket")
    tried: list[Any] = []
    monkeypatch.setattr("socket.socket.connect", lambda self, address: tried.append(address))
    monkeypatch.setattr("socket.create_connection", lambda address, *args, **kwargs: tried.append(address))
    began = time.monotonic()
    DurableAgent(agent_of(charging, charge_tool([])), name)("please", run_id="r1")
    assert tried == []
    assert time.monotonic() - began < 10


def test_an_agent_without_its_runner_is_native(name: str) -> None:
    agent = agent_of(charging, charge_tool([]))
    DurableAgent(agent, name)
    assert str(agent("please")).strip() == "done after 3 messages"
    assert runs.list() == []


def test_it_is_an_agent(name: str) -> None:
    from strands.agent.base import AgentBase

    app = DurableAgent(agent_of(charging, charge_tool([])), name)
    assert isinstance(app, AgentBase)
    assert app.tool_names == ["charge"]
    assert isinstance(app.durable.target, Agent)
    assert isinstance(app.model, Scripted)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("where", ["text", "tool"])
def test_leaving_a_stream_in_the_middle_of_a_call(name: str, where: str, closes: bool) -> None:
    """The call in flight can only come to its end on the loop that is leaving it."""

    @tool
    async def charge(amount: int) -> Any:
        """Charge an amount."""
        yield "charging"
        await asyncio.sleep(0.2)
        yield f"receipt {amount}"

    def plan(replies: int, messages: Any) -> Any:
        return [("charge", {"amount": 1})] if replies == 0 and where == "tool" else "one two three"

    app = DurableAgent(agent_of(plan, charge), name)

    def ended() -> None:
        while runs.get("r").status != "cancelled":
            time.sleep(0.01)

    async def left() -> None:
        events = app.stream_async("go", run_id="r")
        async for event in events:
            if "data" in event or "tool_stream_event" in event:
                break
        if closes:
            await events.aclose()
        del events
        await asyncio.wait_for(asyncio.to_thread(ended), 20)

    asyncio.run(left())
    assert runs.get("r").status == "cancelled"


def test_setting_an_attribute_of_the_wrapper_is_refused(name: str) -> None:
    app = DurableAgent(agent_of(lambda replies, messages: "hello"), name)
    with pytest.raises(NotSupported, match="system_prompt"):
        app.system_prompt = "another"


def test_calls_that_share_an_id_are_told_apart_by_their_input(name: str) -> None:
    """Some models use a tool's name as the id. Which of the calls comes first, and is tried again, may change."""
    put: list[int] = []
    dies = [Killed()]

    @tool(name="put")
    async def put_tool(amount: int) -> str:
        """Put an amount."""
        if amount == 1 and not put:
            await asyncio.sleep(0.1)
            raise ConnectionError("once")
        put.append(amount)
        return f"put {amount}"

    @tool
    def last() -> str:
        """Come last."""
        if dies:
            raise dies.pop()
        return "last"

    def plan(replies: int, messages: Any) -> Any:
        return [[("put", {"amount": 1}), ("put", {"amount": 2})], [("last", {})], "done"][replies]

    def again(event: AfterToolCallEvent) -> None:
        event.retry = event.result["status"] == "error"

    agent = agent_of(plan, put_tool, last)
    agent.add_hook(again, AfterToolCallEvent)
    app = DurableAgent(agent, name)
    with pytest.raises(Killed):
        app("please", run_id="r1")
    assert put == [2, 1]
    assert str(app("please", run_id="r1")).strip() == "done"
    assert put == [2, 1]
    tried = sorted(step.path for step in runs.get("r1").steps() if ":put:" in step.path)
    assert [path[-2:] for path in tried if "@" in path] == ["@2"]
    assert len(tried) == 3
