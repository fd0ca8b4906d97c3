"""What a run that was cut off does when it goes on: what other ways of keeping ADK's runs were seen to get wrong."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, ParallelAgent, SequentialAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.agent_tool import AgentTool

from durable_agents import runs
from durable_agents.errors import DivergedError, RunWaiting

from .kit import (
    EFFECTS,
    Killed,
    agent,
    at_once,
    calls,
    charge,
    durable,
    in_turn,
    killed_once,
    results,
    run,
    said,
    session_of,
    text,
    texts,
)

pytestmark = pytest.mark.usefixtures("engine")


def deadly(kill: Any, name: str = "mail") -> Any:
    async def mail(to: str) -> str:
        """Send a mail."""
        await asyncio.sleep(0.2)  # by then whatever runs beside has ended
        kill()
        EFFECTS.append(f"mail {to}")
        return f"mailed {to}"

    mail.__name__ = name
    return mail


async def twice(app: Any, **arguments: Any) -> tuple[list[Event], list[Event]]:
    """The events of a run that is killed in its first life, of both lives."""
    seen: list[Event] = []

    async def live() -> None:
        events = app.run_async(
            user_id="u", session_id="s", new_message=said("please"), run_id="r1", **arguments
        )
        async for event in events:
            seen.append(event)  # noqa: PERF401  those before the end count

    with pytest.raises(Killed):
        await live()
    return seen, await run(app, run_id="r1", **arguments)


PLAN = in_turn(("charge", {"amount": 1}), ("mail", {"to": "ann"}))


async def test_the_session_has_each_event_once_with_the_id_and_time_it_had() -> None:
    """dbos-google-adk 0.1.0 left 10 events instead of 6."""
    app = durable(agent("cashier", PLAN, [charge, deadly(killed_once())]))
    before, after = await twice(app)
    assert len(before) == 3
    assert [(event.id, event.timestamp) for event in after[:3]] == [(e.id, e.timestamp) for e in before]
    session = await session_of(app)
    assert [event.id for event in session.events[1:]] == [event.id for event in after]
    assert len(session.events) == 6
    assert EFFECTS == ["model", "charge 1", "model", "mail ann", "model"]


async def test_callbacks_run_in_both_lives_and_in_order() -> None:
    """In dbos-google-adk 0.1.0 they never ran."""
    called: list[str] = []

    def note(name: str) -> Any:
        def callback(*args: Any, **kwargs: Any) -> None:
            called.append(name)

        return callback

    class Noting(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
            called.append("plugin before model")

    names = ["before_agent", "before_model", "after_model", "before_tool", "after_tool", "after_agent"]
    root = agent(
        "cashier", in_turn(("mail", {"to": "ann"})), [deadly(killed_once())],
        **{f"{name}_callback": note(name) for name in names},
    )  # fmt: skip
    app = durable(root, app=App(name="shop", root_agent=root, plugins=[Noting("noting")]))
    await twice(app)
    model = ["plugin before model", "before_model", "after_model"]
    first = ["before_agent", *model, "before_tool"]
    assert called == [*first, *first, "after_tool", *model, "after_agent"]


async def test_the_limit_of_model_calls_is_that_of_the_run() -> None:
    """In dbos-google-adk 0.1.0 a limit of 2 let 3 calls pass."""
    app = durable(agent("cashier", PLAN, [charge, deadly(killed_once())]))
    with pytest.raises(Killed):
        await run(app, run_id="r1", run_config=RunConfig(max_llm_calls=2))
    with pytest.raises(Exception, match="Max number of llm calls"):
        await run(app, run_id="r1", run_config=RunConfig(max_llm_calls=2))
    assert EFFECTS.count("model") == 2


async def test_parallel_agents() -> None:
    """In dbos-google-adk 0.1.0 a KeyError."""
    pair = [
        agent("left", in_turn(("charge", {"amount": 1})), [charge]),
        agent("right", in_turn(("mail", {"to": "ann"})), [deadly(killed_once())]),
    ]
    app = durable(ParallelAgent(name="both", sub_agents=pair))
    await twice(app)
    assert sorted(EFFECTS) == ["charge 1", "mail ann", "model", "model", "model", "model"]
    session = await session_of(app)
    assert len({event.id for event in session.events}) == len(session.events) == 7


async def test_an_agent_of_ones_own() -> None:
    """In dbos-google-adk 0.1.0 a TypeError."""

    class Own(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            yield Event(author=self.name, message="hello")
            async for event in self.sub_agents[0].run_async(ctx):
                yield event

    inner = agent("inner", PLAN, [charge, deadly(killed_once())])
    app = durable(Own(name="own", sub_agents=[inner]))
    _, events = await twice(app)
    assert texts(events) == ["hello", "done"]
    assert EFFECTS.count("charge 1") == 1
    assert len((await session_of(app)).events) == 7


async def test_an_event_with_an_id_of_the_users_own_making_is_not_doubled() -> None:
    class Own(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            yield Event(id=uuid.uuid4().hex, author=self.name, message="hello")
            async for event in self.sub_agents[0].run_async(ctx):
                yield event

    inner = agent("inner", PLAN, [charge, deadly(killed_once())])
    app = durable(Own(name="own", sub_agents=[inner]))
    before, after = await twice(app)
    assert before[0].id == after[0].id
    assert len((await session_of(app)).events) == 7


async def test_a_finished_call_beside_one_that_was_cut_off_does_not_run_again() -> None:
    """Natively a resumed invocation runs it again."""
    plan = at_once(("charge", {"amount": 1}), ("mail", {"to": "ann"}))
    await twice(durable(agent("cashier", plan, [charge, deadly(killed_once())])))
    assert EFFECTS.count("charge 1") == EFFECTS.count("mail ann") == 1


async def test_an_agent_tool_goes_on_where_it_was() -> None:
    """Natively the whole agent runs again."""
    expert = agent("expert", PLAN, [charge, deadly(killed_once())])
    app = durable(agent("asking", in_turn(("expert", {"request": "how"})), [AgentTool(expert)]))
    await twice(app)
    assert EFFECTS.count("charge 1") == 1
    assert EFFECTS.count("model") == 5


async def test_an_agent_tool_that_has_finished_is_served_whole() -> None:
    seen: list[str] = []
    expert = agent("expert", in_turn(("charge", {"amount": 1})), [charge])
    expert.before_agent_callback = lambda callback_context: seen.append("asked")
    plan = in_turn(("expert", {"request": "how"}), ("mail", {"to": "ann"}))
    await twice(durable(agent("asking", plan, [AgentTool(expert), deadly(killed_once())])))
    assert seen == ["asked"]


async def test_what_a_sub_agent_said_in_the_session_is_there_again_when_its_tool_is_served() -> None:
    """A single-turn agent works in its parent's session: its events are sent again, in their place."""
    expert = agent(
        "expert", in_turn(("charge", {"amount": 1})), [charge], mode="single_turn", description="Knows."
    )
    plan = in_turn(("expert", {"request": "how"}), ("mail", {"to": "ann"}))
    app = durable(agent("asking", plan, [deadly(killed_once())], sub_agents=[expert]))
    before, after = await twice(app)
    assert {event.author for event in before} == {"asking", "expert"}
    assert [event.id for event in after[: len(before)]] == [event.id for event in before]
    assert [event.id for event in (await session_of(app)).events[1:]] == [event.id for event in after]
    assert EFFECTS.count("charge 1") == 1


async def test_partial_events_of_a_recorded_call_come_again() -> None:
    one = agent("one", lambda n, contents: text("one two"))
    two = agent("two", in_turn(("mail", {"to": "ann"})), [deadly(killed_once())])
    talker = SequentialAgent(name="both", sub_agents=[one, two])
    before, after = await twice(durable(talker), run_config=RunConfig(streaming_mode=StreamingMode.SSE))
    assert (
        [event.partial for event in before[:3]]
        == [event.partial for event in after[:3]]
        == [True, True, None]
    )
    assert [event.id for event in before] == [event.id for event in after[: len(before)]]


async def test_parallel_branches_keep_the_order_and_the_state_they_had() -> None:
    """They come the other way round in the second life; of two that write one key the last one counts."""
    lives: list[int] = []

    def branch(name: str, first: int) -> Any:
        async def note(tool_context: Any) -> str:
            """Note."""
            await asyncio.sleep(0.02 if len(lives) == first else 0.1)
            tool_context.state["last"] = name
            EFFECTS.append(name)
            return name

        async def later(callback_context: Any, llm_request: Any) -> None:
            await asyncio.sleep(0.02 if len(lives) == first else 0.1)

        return agent(name, in_turn(("note", {})), [note], before_model_callback=later)

    class Alive(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            lives.append(1)
            yield Event(author=self.name, message="alive")

    both = ParallelAgent(name="both", sub_agents=[branch("a", 1), branch("b", 2)])
    end = agent("end", in_turn(("mail", {"to": "ann"})), [deadly(killed_once())], instruction="Last: {last}")
    app = durable(SequentialAgent(name="all", sub_agents=[Alive(name="alive"), both, end]))
    before, after = await twice(app)
    assert [e.id for e in before] != [e.id for e in after[: len(before)]], "the other way round"
    session = await session_of(app)
    assert [event.id for event in session.events[1 : 1 + len(before)]] == [event.id for event in before]
    assert session.state["last"] == "b"
    assert EFFECTS.count("a") == EFFECTS.count("b") == 1


async def test_what_an_agent_in_a_branch_was_asked_stands_before_what_it_has_done() -> None:
    """ADK puts the request to a single-turn agent into the session itself; its events must not overtake that.

    In the second life the first expert has finished before the second one is asked. Natively its call would then be
    out of sight of its model, which would charge again.
    """
    lives: list[int] = []
    first_is_done = asyncio.Event()

    def plan(n: int, contents: Any) -> Any:
        amount = int("".join(part.text or "" for part in contents[0].parts)[-1])
        if n == 0:
            return calls(("charge", {"amount": amount}))
        if amount == 1 and len(lives) == 1:
            raise Killed
        return text(f"paid {amount}")

    async def ask(callback_context: Any, llm_request: Any) -> None:
        if len(lives) == 1 and "about 1" in str(llm_request.contents) and results(llm_request.contents):
            await first_is_done.wait()  # its last event is in the session when this life ends

    async def begin(tool: Any, args: dict[str, Any], tool_context: Any) -> None:
        if len(lives) == 2 and args["request"] == "about 1":
            await asyncio.sleep(0.3)

    async def answered(callback_context: Any, llm_response: Any) -> None:
        if "paid 0" in str(llm_response.content):
            asyncio.get_running_loop().call_later(0.1, first_is_done.set)

    async def begun(callback_context: Any) -> None:
        lives.append(1)

    expert = agent(
        "expert", plan, [charge], description="Knows.", mode="single_turn",
        before_model_callback=ask, after_model_callback=answered,
    )  # fmt: skip
    asking = at_once(("expert", {"request": "about 0"}), ("expert", {"request": "about 1"}))
    app = durable(
        agent("asking", asking, sub_agents=[expert], before_agent_callback=begun, before_tool_callback=begin)
    )
    await twice(app)
    assert len(lives) == 2
    assert sorted(effect for effect in EFFECTS if effect != "model") == ["charge 0", "charge 1"]


async def test_what_a_failed_tool_had_noted_in_the_state_is_there_again() -> None:
    def fail(tool_context: Any) -> None:
        """Fail."""
        EFFECTS.append("fail")
        tool_context.state["tried"] = True
        raise ConnectionError("no connection")

    def on_error(tool: Any, args: Any, tool_context: Any, error: Exception) -> Any:
        assert isinstance(error, ConnectionError)
        return {"error": str(error), "tried": tool_context.state["tried"]}

    plan = in_turn(("fail", {}), ("mail", {"to": "ann"}))
    app = durable(agent("cashier", plan, [fail, deadly(killed_once())], on_tool_error_callback=on_error))
    await twice(app)
    assert EFFECTS.count("fail") == 1
    assert (await session_of(app)).state == {"tried": True}


async def test_a_tool_that_is_called_with_something_else_ends_the_run() -> None:
    lives: list[int] = []

    def change(tool: Any, args: Any, tool_context: Any) -> None:
        if tool.name == "charge":
            lives.append(1)
            args["amount"] = len(lives)

    app = durable(agent("cashier", PLAN, [charge, deadly(killed_once())], before_tool_callback=change))
    with pytest.raises(Killed):
        await run(app, run_id="r1")
    with pytest.raises(DivergedError):
        await run(app, run_id="r1")
    assert EFFECTS.count("charge 1") == 1
    assert runs.get("r1").status == "failed"


async def test_a_session_service_of_the_users_own_has_each_event_once(tmp_path: Path) -> None:
    service = SqliteSessionService(str(tmp_path / "sessions.sqlite"))
    app = durable(agent("cashier", PLAN, [charge, deadly(killed_once())]), session_service=service)
    before, after = await twice(app)
    session = await service.get_session(app_name="shop", user_id="u", session_id="s")
    assert session is not None
    assert [event.id for event in session.events[1:]] == [event.id for event in after]
    assert [event.timestamp for event in after[: len(before)]] == [event.timestamp for event in before]
    assert texts(await run(app, "again", run_id="r2")) == ["done"]
    assert EFFECTS.count("charge 1") == 2


async def test_at_most_once_holds_for_a_runner_that_is_called_inside_of_a_run() -> None:
    kill = killed_once()

    def charge_card(amount: int) -> str:
        """Charge a card."""
        EFFECTS.append("charge")
        kill()
        return f"receipt {amount}"

    inner = durable(
        agent("cashier", in_turn(("charge_card", {"amount": 7})), [charge_card]), at_most_once={"charge_card"}
    )

    async def ask_cashier() -> str:
        """Ask the cashier."""
        return texts(await run(inner, run_id="inner"))[-1]

    app = durable(agent("clerk", in_turn(("ask_cashier", {})), [ask_cashier]))
    with pytest.raises(Killed):
        await run(app, run_id="r1")
    with pytest.raises(RunWaiting):
        await run(app, run_id="r1")
    runs.get("r1").answer({"result": "receipt 7"})
    assert texts(await asyncio.to_thread(runs.get("r1").result, 10)) == ["done"]
    assert EFFECTS.count("charge") == 1
