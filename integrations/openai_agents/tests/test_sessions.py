"""Sessions are used as the SDK uses them: through the run's context, no further back, and nothing is appended twice."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, RunContextWrapper, Runner, SessionSettings, SQLiteSession, function_tool
from agents.memory import SessionABC

from durable_agents import runs
from durable_agents._core.engine import current

from .kit import Brain, durable, says, then_done

pytestmark = pytest.mark.usefixtures("engine")

ACME = {"tenant": "acme"}


class Tenants(SessionABC):
    """A conversation for each tenant, whom the context names; those who come without it get nobody's.

    Args:
        budget: how many items may be read; more is an error.
        loses: the role of the item whose append is done, and raises all the same, once.
    """

    session_id = "shared"

    def __init__(self, budget: int | None = None, loses: str = "") -> None:
        self.budget, self.loses = budget, loses
        self.log: list[tuple[Any, ...]] = []
        self.held: dict[Any, list[Any]] = {}

    def _of(self, wrapper: RunContextWrapper[Any] | None) -> Any:
        return wrapper and wrapper.context["tenant"]

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[Any]:
        self.log.append(("get", self._of(wrapper), limit))
        if self.budget is not None and (limit is None or limit > self.budget):
            raise ValueError(f"{limit} items are more than may be read")
        held = self.held.get(self._of(wrapper), [])
        return list(held if limit is None else held[max(len(held) - limit, 0) :])

    async def add_items(self, items: list[Any], *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        self.log.append(("add", self._of(wrapper), len(items)))
        self.held.setdefault(self._of(wrapper), []).extend(items)
        if self.loses and items[-1].get("role") == self.loses:
            self.loses = ""
            raise ConnectionError("the acknowledgement was lost")

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> Any:
        self.log.append(("pop", self._of(wrapper)))
        return self.held[self._of(wrapper)].pop()

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        self.held.pop(self._of(wrapper), None)


def asking() -> Agent[Any]:
    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        return f"refunded {order}"

    return Agent(name="clerk", model=then_done(("refund", {"order": 55})), tools=[refund])


Verb = Callable[..., Any]


async def approved(run: Verb, session: Tenants) -> str:
    """What is said at the end, with an approval on the way."""
    state = (await run("hi", session=session, context=ACME)).to_state()
    state.approve(state.get_interruptions()[0])
    return str((await run(state, session=session)).final_output)


async def test_behind_an_answer_the_session_is_used_as_natively() -> None:
    agent = asking()
    native, ours = Tenants(), Tenants()
    said = await approved(lambda input, **options: Runner.run(agent, input, **options), native)
    assert await approved(durable(agent).run, ours) == said
    assert ours.log == native.log
    assert {tenant for _, tenant, _ in native.log} == {"acme"}
    assert ours.held == native.held


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_session_is_read_no_further_back_than_natively(limit: int) -> None:
    agent = Agent(name="clerk", model=Brain(lambda outputs, items: says(f"after {len(items)}")))
    config = RunConfig(session_settings=SessionSettings(limit=limit))
    native, ours = Tenants(budget=limit), Tenants(budget=limit)
    app = durable(agent)
    for word in ("one", "two", "three"):
        told = await Runner.run(agent, word, session=native, context=ACME, run_config=config)
        result = await app.run(word, session=ours, context=ACME, run_config=config)
        assert result.final_output == told.final_output
    assert ours.log == native.log
    assert ours.held == native.held


@pytest.mark.parametrize("loses", ["user", "assistant"])
@pytest.mark.parametrize("limit", [None, 1, 2])
async def test_an_append_that_was_made_is_found_where_it_was_made(loses: str, limit: int | None) -> None:
    """The append came through and raised: `resume()` finds it in the tenant's conversation, within the budget."""
    session = Tenants(budget=limit)
    session.held["acme"] = [{"role": "user", "content": "before"}, {"role": "user", "content": "yes"}]
    app = durable(
        Agent(name="clerk", model=Brain(lambda outputs, items: says("no"))),
        restore=lambda run: {"session": session},
    )
    config = RunConfig(session_settings=SessionSettings(limit=limit)) if limit else None
    session.loses = loses
    with pytest.raises(ConnectionError):
        await app.run("no, wait", run_id="r1", session=session, context=ACME, run_config=config)
    runs.get("r1").resume()
    assert (await runs.get("r1").aresult(timeout=20)).final_output == "no"
    assert [item["role"] for item in session.held["acme"]] == ["user", "user", "user", "assistant"]
    assert set(session.held) == {"acme"}
    assert {tenant for _, tenant, _ in session.log} == {"acme"}


async def test_an_append_that_was_not_made_is_made() -> None:
    """The same words stand there already, from before."""
    session = Tenants()
    session.held["acme"] = [{"role": "user", "content": "yes"}]
    app = durable(
        Agent(name="clerk", model=Brain(lambda outputs, items: says("no"))),
        restore=lambda run: {"session": session},
    )

    async def refuses(items: list[Any], *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        del session.add_items  # once
        raise ConnectionError("nothing was appended")

    session.add_items = refuses  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await app.run("yes", run_id="r1", session=session, context=ACME)
    runs.get("r1").resume()
    await runs.get("r1").aresult(timeout=20)
    assert [item["role"] for item in session.held["acme"]] == ["user", "user", "assistant"]


@pytest.mark.parametrize("error", [AttributeError, ValueError, RuntimeError])
async def test_a_session_without_an_id_is_a_session(error: type[Exception]) -> None:
    class Nameless(Tenants):
        @property
        def session_id(self) -> str:  # type: ignore[override]
            raise error("it has none yet")

    session = Nameless()
    agent = Agent(name="clerk", model=Brain(lambda outputs, items: says("hello")))
    assert (await durable(agent).run("hi", session=session, context=ACME)).final_output == "hello"
    assert len(session.held["acme"]) == 2


CHAT = '''
import os, signal, sys
from agents import Agent, SQLiteSession, set_tracing_disabled
import durable_agents
from durable_agents.openai_agents import DurableRunner
sys.path.insert(0, {tests!r})
from kit import calls, Brain, says
from agents import function_tool

class Mortal(SQLiteSession):
    """Of the tenant alone. Dies when an append is done and not yet recorded, if it is asked to."""

    def of(self, wrapper):
        return SQLiteSession(wrapper.context["tenant"], "chat.sqlite")

    async def get_items(self, limit=None, *, wrapper=None):
        return await self.of(wrapper).get_items(limit)

    async def add_items(self, items, *, wrapper=None):
        await self.of(wrapper).add_items(items)
        if sys.argv[1] == items[-1].get("role", items[-1].get("type")):
            os.kill(os.getpid(), signal.SIGKILL)

    async def pop_item(self, *, wrapper=None):
        return await self.of(wrapper).pop_item()

    async def clear_session(self, *, wrapper=None):
        await self.of(wrapper).clear_session()

def session():
    return Mortal("s", "chat.sqlite")

@function_tool(needs_approval=True)
def refund(order: int) -> str:
    return "refunded"

brain = Brain(lambda outputs, items: says("done") if outputs else calls(("refund", {{"order": 1}})))
agent = Agent(name="clerk", model=brain, tools=[refund])
app = DurableRunner(agent, "chat", restore=lambda run: {{"session": session()}})
durable_agents.launch({url!r}, heartbeat=0.05, grace=0.2, poll=0.05)
found = app.run_sync("yes", run_id="r1", session=session(), context={{"tenant": "acme"}})
if found.interruptions:
    state = found.to_state()
    state.approve(state.get_interruptions()[0])
    found = app.run_sync(state, session=session())
print(found.final_output, flush=True)
'''


@pytest.mark.timeout(300)  # five processes, on a machine that may be busy
def test_killed_behind_each_append_nothing_is_appended_twice(tmp_path: Path) -> None:
    """Before an approval, behind it, and at the end: each time between the append and its record."""
    program = tmp_path / "chat.py"
    program.write_text(CHAT.format(tests=str(Path(__file__).parent), url=current().store.url))

    def say(dies: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), dies]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    for dies in ("user", "function_call", "function_call_output", "assistant"):
        killed = say(dies)
        assert killed.returncode == -signal.SIGKILL, (dies, killed.stdout, killed.stderr)
    done = say("-")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    session = SQLiteSession("acme", tmp_path / "chat.sqlite")
    items: list[Any] = asyncio.run(session.get_items())
    session.close()
    kinds = [item.get("role") or item["type"] for item in items]
    assert kinds == ["user", "function_call", "function_call_output", "assistant"]
