"""What tools return: objects of classes that nobody has named, what cannot be stored, and what looks as if."""

import dataclasses
import datetime as dt
import enum
import logging
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.workflow import Workflow
from google.genai import types
from pydantic import BaseModel

from durable_agents import runs
from durable_agents.errors import EncodingError, ResultNotRecorded

from .kit import EFFECTS, Killed, agent, durable, in_turn, killed_once, run, session_of

pytestmark = pytest.mark.usefixtures("engine")


class Ticket(BaseModel, frozen=True):
    id: int
    status: str = "open"
    note: str | None = None


@dataclasses.dataclass(frozen=True)
class Seat:
    row: int
    ticket: Ticket


class Level(enum.Enum):
    HIGH = "high"


Pair = namedtuple("Pair", "left right")

PLAIN: list[tuple[Any, Any]] = [
    (Ticket(id=7), {"result": {"id": 7, "status": "open"}}),
    ({"ticket": Ticket(id=7), "none": None}, {"ticket": {"id": 7, "status": "open"}, "none": None}),
    ([Ticket(id=7, note="n")], {"result": [{"id": 7, "status": "open", "note": "n"}]}),
    (Seat(1, Ticket(id=7)), {"result": {"row": 1, "ticket": {"id": 7, "status": "open"}}}),
    ({"seats": {Seat(1, Ticket(id=7))}}, {"seats": [{"row": 1, "ticket": {"id": 7, "status": "open"}}]}),
    ((Level.HIGH, Pair(1, "b")), {"result": ["high", [1, "b"]]}),
    ({Level.HIGH: Level.HIGH}, {"high": "high"}),
    ({"at": dt.date(2030, 1, 2), "level": Level.HIGH}, {"at": "2030-01-02", "level": "high"}),
]
Seen = list[Any]


def shown(response: types.FunctionResponse) -> Any:
    """What a tool returned, as a provider gets it."""
    return response.model_dump(mode="json", exclude_none=True)["response"]


def asking(result: Any, after_tool: Any = None) -> tuple[Any, Seen]:
    """An agent whose tool returns this, and then calls another one; what its model gets as the tool's result."""
    seen: Seen = []

    def fetch() -> Any:
        """Fetch."""
        EFFECTS.append("fetch")
        return result

    def end() -> str:
        """End."""
        return "ended"

    def plan(done: int, contents: Any) -> Any:
        for content in contents:
            for part in content.parts:
                if part.function_response is not None and part.function_response.name == "fetch":
                    seen.append(shown(part.function_response))
        return in_turn(("fetch", {}), ("end", {}))(done, contents)

    return agent("clerk", plan, [fetch, end], after_tool_callback=after_tool), seen


def killing(name: str) -> tuple[Callable[..., None], list[Any]]:
    """A callback that kills the run in its first life, behind this tool; the results that it gets."""
    kill, got = killed_once(), []

    def after_tool(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
        if tool.name == "fetch":
            got.append(tool_response)
        if tool.name == name:
            kill()

    return after_tool, got


@pytest.mark.parametrize("killed_behind", ["fetch", "end"])
@pytest.mark.parametrize(("result", "json"), PLAIN)
async def test_a_model_gets_the_same_json_after_a_crash(
    result: Any, json: Any, killed_behind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind `fetch` its event is not stored yet, and is made of its record; behind `end` it is."""
    after_tool, _ = killing(killed_behind)
    root, seen = asking(result, after_tool)
    app = durable(root)
    with caplog.at_level(logging.WARNING, "durable_agents"):
        with pytest.raises(Killed):
            await run(app, run_id="r1")
        events = await run(app, run_id="r1")
    assert EFFECTS.count("fetch") == 1
    assert seen
    assert all(each == json for each in seen)
    assert shown(events[1].get_function_responses()[0]) == json
    assert (await session_of(app)).events[2].get_function_responses()[0].response == json
    assert not [line for line in caplog.messages if "its input changed" in line]
    told = [line for line in caplog.messages if "plain data" in line]
    assert told
    assert len(told) == len(set(told)) <= 2


async def test_live_a_result_is_what_it_was() -> None:
    after_tool, got = killing("")
    root, _ = asking(Ticket(id=7), after_tool)
    await run(durable(root))
    assert got == [Ticket(id=7)]


@pytest.mark.parametrize("result", [Ticket(id=7), {"seats": [Seat(1, Ticket(id=7))]}])
async def test_a_class_that_was_named_stays_itself(result: Any) -> None:
    after_tool, got = killing("end")
    root, _ = asking(result, after_tool)
    app = durable(root, types=[Ticket, Seat])
    with pytest.raises(Killed):
        await run(app, run_id="r1")
    await run(app, run_id="r1")
    assert got == [result, result]


async def test_a_node_that_gives_a_model_gives_the_mapping_that_adk_makes_of_it() -> None:
    kill = killed_once()
    got: list[Any] = []

    def fetch() -> Ticket:
        EFFECTS.append("fetch")
        return Ticket(id=7)

    def show(node_input: Any) -> str:
        got.append(node_input)
        kill()
        return f"{node_input}"

    app = durable(None, agent=None, node=Workflow(name="flow", edges=[("START", fetch, show)]))
    with pytest.raises(Killed):
        await run(app, run_id="r1")
    await run(app, run_id="r1")
    assert got[0] == got[1]
    assert got[0]["id"] == 7
    assert EFFECTS == ["fetch"]


def cyclic() -> dict[str, Any]:
    found: dict[str, Any] = {"deep": []}
    found["deep"].append(found)
    return found


ODD: list[tuple[Any, str]] = [
    ({"receipt": object()}, r"'clerk'.* tool 'fetch'.*\['receipt'\].*object"),
    ([{"a": 1}, {"b": object()}], r"'clerk'.* tool 'fetch'.*\['result'\]\[1\]\['b'\].*object"),
    (cyclic(), r"'clerk'.* tool 'fetch'.*\['deep'\]\[0\].*Circular"),
]


@pytest.mark.parametrize("owns_sessions", [False, True])
@pytest.mark.parametrize(("result", "told"), ODD)
async def test_what_nothing_can_store_is_told_the_same_each_time(
    result: Any, told: str, owns_sessions: bool, tmp_path: Any
) -> None:
    service = SqliteSessionService(str(tmp_path / "s.sqlite")) if owns_sessions else None
    root, _ = asking(result)
    app = durable(root, session_service=service)
    for _ in range(2):
        with pytest.raises(EncodingError, match=told):
            await run(app, run_id="r1")
    runs.get("r1").resume()
    with pytest.raises(ResultNotRecorded, match="fetch"):
        await runs.get("r1").aresult(timeout=20)
    assert EFFECTS.count("fetch") == 1


@pytest.mark.parametrize("killed_behind", ["fetch", "end"])
async def test_a_lone_surrogate_is_kept(killed_behind: str) -> None:
    after_tool, got = killing(killed_behind)
    root, _ = asking({"text": "a\ud800"}, after_tool)
    app = durable(root)
    with pytest.raises(Killed):
        await run(app, run_id="r1")
    await run(app, run_id="r1")
    assert got == [{"text": "a\ud800"}] * 2
    response = (await session_of(app)).events[2].get_function_responses()[0].response
    assert response == {"text": "a\ud800"}
