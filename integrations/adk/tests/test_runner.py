"""What a durable runner does beside finishing: attach, queue, answer, refuse; and that it stays out of the way."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LoopAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.function_tool import FunctionTool
from pydantic import BaseModel

import durable_agents
from durable_agents import runs
from durable_agents.adk import DurableRunner, DurableSessionService
from durable_agents.errors import (
    AlreadyAnswered,
    ConfigurationError,
    EncodingError,
    InputMismatch,
    NotSupported,
    RunCancelled,
)

from .kit import (
    EFFECTS,
    agent,
    at_once,
    charge,
    durable,
    in_turn,
    responded,
    run,
    said,
    session_of,
    text,
    texts,
)

CONFIRM = "adk_request_confirmation"


pytestmark = pytest.mark.usefixtures("engine")


def cashier(**options: Any) -> Any:
    return agent("cashier", in_turn(("charge", {"amount": 1})), [charge], **options)


# -- the verbs


async def test_the_same_run_id_attaches_and_nothing_is_executed() -> None:
    app = durable(cashier())
    first = await run(app, run_id="r1")
    done = list(EFFECTS)
    assert await run(app, run_id="r1") == first
    assert done == EFFECTS == ["model", "charge 1", "model"]
    assert runs.get("r1").result() == first
    with pytest.raises(InputMismatch):
        await run(app, "something else", run_id="r1")


async def test_a_started_run_is_driven_by_a_worker() -> None:
    app = durable(cashier())
    started = app.start(user_id="u", session_id="s", new_message=said("please"), run_id="r1")
    assert texts(await started.aresult(timeout=20)) == ["done"]
    assert len((await session_of(app)).events) == 4


def test_run_for_code_without_an_event_loop() -> None:
    app = durable(cashier())
    events = list(app.run(user_id="u", session_id="s", new_message=said("please"), run_id="r1"))
    assert texts(events) == ["done"]
    assert list(app.run(user_id="u", session_id="s", new_message=said("please"), run_id="r1")) == events


async def test_steps_have_paths_that_tell_and_models_their_tokens() -> None:
    app = durable(cashier())
    await run(app, run_id="r1")
    steps = {(step.kind, step.name): step for step in runs.get("r1").steps()}
    assert steps["model", "scripted"].path == "cashier/model:scripted#2"
    assert steps["tool", "charge"].path.startswith("cashier/tool:charge:adk-")
    assert (runs.get("r1").usage.input_tokens, runs.get("r1").usage.output_tokens) == (14, 6)


async def test_leaving_the_loop_ends_the_run() -> None:
    app = durable(cashier())
    events = app.run_async(user_id="u", session_id="s", new_message=said("please"), run_id="r1")
    async for _ in events:
        break
    await events.aclose()
    with pytest.raises(RunCancelled):
        await runs.get("r1").aresult(timeout=10)


def test_leaving_the_loop_of_run_ends_the_run() -> None:
    app = durable(agent("cashier", in_turn(*[("charge", {"amount": n}) for n in range(50)]), [charge]))
    events = app.run(user_id="u", session_id="s", new_message=said("please"), run_id="r1")
    next(events)
    events.close()
    with pytest.raises(RunCancelled):
        runs.get("r1").result(timeout=10)
    assert EFFECTS.count("model") < 50


async def test_partial_events_are_live() -> None:
    app = durable(agent("talker", lambda n, contents: text("one two three")))
    events = await run(app, run_config=RunConfig(streaming_mode=StreamingMode.SSE), run_id="r1")
    assert [event.partial for event in events] == [True, True, True, None]
    assert len(runs.get("r1").result()) == 1


async def test_one_run_at_a_time_on_a_session() -> None:
    at_work: list[str] = []

    async def work(who: str) -> str:
        """Work."""
        assert not at_work
        at_work.append(who)
        await asyncio.sleep(0.1)
        at_work.remove(who)
        return who

    app = durable(agent("worker", in_turn(("work", {"who": "me"})), [work]))
    await asyncio.gather(*(run(app, f"turn {n}", run_id=f"r{n}") for n in range(3)))
    assert len((await session_of(app)).events) == 12


async def test_events_are_in_the_session_when_the_consumer_has_them() -> None:
    app = durable(cashier())
    count = 1
    events = app.run_async(user_id="u", session_id="s", new_message=said("please"))
    async for event in events:
        count += 1
        session = await session_of(app)
        assert len(session.events) == count
        assert session.events[-1].id == event.id


# -- answers


async def paused(run_id: str = "r1") -> tuple[Any, str]:
    tool = FunctionTool(charge, require_confirmation=True)
    app = durable(agent("cashier", in_turn(("charge", {"amount": 1})), [tool]))
    await run(app, run_id=run_id)
    (question,) = runs.get(run_id).questions
    return app, question


async def test_a_confirmation_is_a_wait_and_the_reply_goes_on_with_the_run() -> None:
    app, question = await paused()
    assert runs.get("r1").status == "waiting"
    assert runs.get("r1").questions[question]["name"] == CONFIRM
    assert EFFECTS == ["model"]
    events = await run(app, responded(CONFIRM, question, {"confirmed": True}))
    assert texts(events) == ["done"]
    assert EFFECTS == ["model", "charge 1", "model"]
    assert runs.get("r1").result() == events


async def test_an_answer_by_any_process() -> None:
    app, _ = await paused()
    await asyncio.to_thread(runs.get("r1").answer, {"confirmed": True})
    assert texts(await runs.get("r1").aresult(timeout=20)) == ["done"]
    assert (await session_of(app)).events[-1].author == "cashier"


@pytest.mark.parametrize(
    "answer", ["yes", {"result": True}, {"confirmed": "perhaps"}, {"response": "no JSON"}]
)
async def test_a_confirmation_that_adk_cannot_read_is_refused(answer: Any) -> None:
    await paused()
    with pytest.raises(ConfigurationError, match="no confirmation"):
        await asyncio.to_thread(runs.get("r1").answer, answer)
    assert runs.get("r1").status == "waiting"
    await asyncio.to_thread(runs.get("r1").answer, True)
    assert texts(await runs.get("r1").aresult(timeout=20)) == ["done"]


async def test_the_same_answer_twice_at_once_runs_the_tool_once() -> None:
    """Natively both resumes run it."""
    app, question = await paused()
    reply = responded(CONFIRM, question, {"confirmed": True})
    one, two = await asyncio.gather(run(app, reply, run_id="r1"), run(app, reply, run_id="r1"))
    assert texts(one) == texts(two) == ["done"]
    assert EFFECTS.count("charge 1") == 1
    assert texts(await run(app, reply, run_id="r1")) == ["done"]
    assert EFFECTS.count("charge 1") == 1
    with pytest.raises(AlreadyAnswered):
        await run(app, responded(CONFIRM, question, {"confirmed": False}), run_id="r1")


async def test_a_reply_sent_again_without_its_run_id_runs_nothing() -> None:
    app, question = await paused()
    reply = responded(CONFIRM, question, {"confirmed": True})
    first = await run(app, reply)
    assert await run(app, reply) == first
    assert EFFECTS.count("charge 1") == 1


async def test_an_answer_to_another_question_leaves_the_run_waiting() -> None:
    app, _ = await paused()
    with pytest.raises(ValueError, match="Function call not found"):
        await run(app, responded(CONFIRM, "adk-other", {"confirmed": True}))
    assert runs.get("r1").status == "waiting"


async def test_a_new_message_supersedes_the_waiting_run() -> None:
    app, _ = await paused()
    await run(app, "never mind", run_id="r2")
    assert runs.get("r1").status == "cancelled"


async def test_two_questions_answered_one_after_the_other() -> None:
    tool = FunctionTool(charge, require_confirmation=True)
    plan = at_once(("charge", {"amount": 1}), ("charge", {"amount": 2}))
    app = durable(agent("cashier", plan, [tool]))
    await run(app, run_id="r1")
    questions = list(runs.get("r1").questions)
    assert len(questions) == 2
    await run(app, responded(CONFIRM, questions[0], {"confirmed": True}))
    assert runs.get("r1").status == "waiting"
    assert list(runs.get("r1").questions) == questions[1:]
    await run(app, responded(CONFIRM, questions[1], {"confirmed": True}))
    assert sorted(effect for effect in EFFECTS if effect != "model") == ["charge 1", "charge 2"]
    assert runs.get("r1").status == "succeeded"


# -- staying out of the way


async def test_the_agent_is_not_touched_and_works_natively_beside() -> None:
    root = cashier()
    before = dict(root.__dict__)
    app = durable(root)
    assert isinstance(app, Runner)
    assert app.agent is root
    native = Runner(
        agent=root, app_name="shop", session_service=InMemorySessionService(), auto_create_session=True
    )
    ours, theirs = await asyncio.gather(run(app), run(native))
    assert texts(ours) == texts(theirs)
    assert uuid.UUID(theirs[0].id).version == 4
    assert before == root.__dict__
    assert not runs.list(status="failed")
    assert len(runs.list()) == 1


async def test_a_runner_inside_of_a_run_is_a_part_of_it() -> None:
    inner = durable(agent("inner", in_turn(("charge", {"amount": 1})), [charge]))

    async def ask() -> str:
        """Ask."""
        return texts(await run(inner, session="inside"))[-1]

    app = durable(agent("outer", in_turn(("ask", {})), [ask]))
    await run(app, run_id="r1")
    assert len(runs.list()) == 1
    assert any("/run:adk." in step.path for step in runs.get("r1").steps())
    assert len((await session_of(inner, "inside")).events) == 4


async def test_the_fingerprint_tells_what_the_app_consists_of() -> None:
    root = LoopAgent(name="round", sub_agents=[cashier()], max_iterations=1)
    assert durable(root).durable.fingerprint() == {
        "round": {"type": "LoopAgent", "sub_agents": ["cashier"]},
        "cashier": {"type": "LlmAgent", "tools": ["charge"]},
    }


# -- values


class Parcel(BaseModel):
    weight: int


def packing() -> Any:
    def pack(tool_context: Any) -> Any:
        """Pack."""
        tool_context.state["parcel"] = Parcel(weight=3)
        return {"weight": 3}

    return agent("packer", in_turn(("pack", {})), [pack])


async def test_allowed_types_come_back_as_they_were() -> None:
    app = durable(packing(), types=[Parcel])
    await run(app)
    assert (await session_of(app)).state["parcel"] == Parcel(weight=3)


async def test_other_types_are_refused_where_somebody_sees_it() -> None:
    with pytest.raises(EncodingError, match="Parcel"):
        await run(durable(packing()))


# -- what is refused


async def test_what_is_not_supported_says_so_at_once() -> None:
    with pytest.raises(NotSupported, match="DurableSessionService"):
        DurableRunner(agent=cashier(), app_name="shop", session_service=InMemorySessionService(), name="x")
    app = durable(cashier())
    with pytest.raises(NotSupported, match="run_id"):
        await run(app, invocation_id="e-1")
    with pytest.raises(NotSupported, match="cancel"):
        await run(app, abort_signal=asyncio.Event())
    with pytest.raises(NotSupported, match="run_async"):
        await anext(app.run_live(user_id="u", session_id="s"))
    with pytest.raises(ConfigurationError):
        await run(app, session="")
    await run(app, run_id="r1")
    with pytest.raises(NotSupported, match="rewind_async"):
        runs.get("r1").fork()


def test_agents_whose_work_cannot_be_seen_are_refused() -> None:
    class RemoteA2aAgent(BaseAgent):
        pass

    with pytest.raises(NotSupported, match="in a tool"):
        durable(LoopAgent(name="round", sub_agents=[RemoteA2aAgent(name="far")]))


async def test_a_start_that_answers_is_refused() -> None:
    app, question = await paused()
    with pytest.raises(NotSupported, match="answer"):
        app.start(user_id="u", session_id="s", new_message=responded(CONFIRM, question, {"confirmed": True}))


# -- sessions


@pytest.mark.parametrize("owns_sessions", [False, True])
async def test_a_run_whose_session_was_missing_goes_on_when_that_is_there(
    owns_sessions: bool, tmp_path: Path
) -> None:
    service = SqliteSessionService(str(tmp_path / "sessions.sqlite")) if owns_sessions else None
    app = DurableRunner(
        agent=cashier(), app_name="shop", name=f"r{uuid.uuid4().hex}", session_service=service
    )
    for _ in range(2):
        with pytest.raises(SessionNotFoundError, match="s"):
            await run(app, run_id="r1")
    await app.session_service.create_session(app_name="shop", user_id="u", session_id="s")
    with pytest.raises(SessionNotFoundError):  # only resume() tries again
        await run(app, run_id="r1")
    runs.get("r1").resume()
    assert texts(await runs.get("r1").aresult(timeout=20)) == ["done"]
    assert texts(await run(app, run_id="r1")) == ["done"]
    assert EFFECTS.count("charge 1") == 1


async def test_a_session_that_is_made_by_itself_is_no_error_of_a_step() -> None:
    await run(durable(cashier()), run_id="r1")
    assert [step.error for step in runs.get("r1").steps() if step.error] == []


async def test_the_durable_sessions_stand_where_those_in_memory_stood() -> None:
    with pytest.raises(NotSupported) as told:
        DurableRunner(agent=cashier(), app_name="shop", session_service=InMemorySessionService(), name="x")
    for said_so in (
        "session_service = durable_agents.adk.DurableSessionService()",
        "auto_create_session=True",
    ):
        assert said_so in str(told.value)
    session_service = durable_agents.adk.DurableSessionService()
    await session_service.create_session(app_name="shop", user_id="u", session_id="s", state={"x": 1})
    app = DurableRunner(
        agent=cashier(), app_name="shop", session_service=session_service, name=f"r{uuid.uuid4().hex}"
    )
    assert texts(await run(app)) == ["done"]
    assert (await session_of(app)).state == {"x": 1}


async def test_the_session_service_is_one_as_natively() -> None:
    service = DurableSessionService()
    made = await service.create_session(
        app_name="shop", user_id="u", session_id="a", state={"x": 1, "user:y": 2, "app:z": 3, "temp:t": 4}
    )
    assert made.state == {"x": 1, "user:y": 2, "app:z": 3}
    other = await service.create_session(app_name="shop", user_id="u")
    assert other.state == {"user:y": 2, "app:z": 3}
    await service.append_event(made, Event(author="user", content=said("hi"), state={"x": 5, "temp:t": 6}))
    assert made.state["temp:t"] == 6
    found = await service.get_session(app_name="shop", user_id="u", session_id="a")
    assert found is not None
    assert found.state == {"x": 5, "user:y": 2, "app:z": 3}
    assert found.events == made.events
    listed = await service.list_sessions(app_name="shop", user_id="u")
    assert {session.id for session in listed.sessions} == {"a", other.id}
    assert await service.get_user_state(app_name="shop", user_id="u") == {"y": 2}
    await service.delete_session(app_name="shop", user_id="u", session_id="a")
    assert await service.get_session(app_name="shop", user_id="u", session_id="a") is None
