"""What durable wrappers of this SDK are known to get wrong, each shown right here."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelProvider,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    Runner,
    ToolGuardrailFunctionOutput,
    function_tool,
    handoff,
    tool_input_guardrail,
)
from agents.mcp import MCPServer
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as McpTool

from durable_agents import runs
from durable_agents._core.engine import current

from .kit import Brain, calls, durable, says, then_done

pytestmark = pytest.mark.usefixtures("engine")


async def test_plain_tools_are_steps() -> None:
    """Nothing is decorated, and nothing that finished runs again: sync, async, and in an agent that is a tool."""
    log: list[str] = []

    @function_tool
    def plain(n: int) -> str:
        log.append(f"plain {n}")
        return "plain"

    @function_tool
    async def waits(n: int) -> str:
        log.append(f"waits {n}")
        return "waits"

    inner = Agent[Any](name="inner", model=then_done(("waits", {"n": 2})), tools=[waits])
    agent = Agent[Any](
        name="outer",
        model=then_done(("plain", {"n": 1}), ("waits", {"n": 1}), ("ask", {"input": "x"})),
        tools=[plain, waits, inner.as_tool("ask", "")],
    )
    result = await durable(agent).run("hi", run_id="r1")
    assert result.context_wrapper.usage.requests == 4
    assert {step.path for step in runs.get("r1").steps() if step.kind == "tool"} == {
        "tool:plain:plain-1",
        "tool:waits:waits-1",
        "tool:ask:ask-x/agent:inner/tool:waits:waits-2",
    }
    assert sorted(log) == ["plain 1", "waits 1", "waits 2"]


async def test_a_custom_provider_is_used() -> None:
    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            return Brain(lambda outputs, items: says(f"I am {model_name}"))

    agent = Agent[Any](name="clerk", model="mine")
    config = RunConfig(model_provider=Provider())
    assert (await durable(agent).run("hi", run_config=config)).final_output == "I am mine"


async def test_agents_that_hand_over_to_each_other() -> None:
    def plan(me: str, other: str) -> Brain:
        def think(outputs: list[Any], items: list[Any]) -> list[Any]:
            turns = sum(item.get("type") == "function_call" for item in items)
            return (
                says(f"{me} after {turns}")
                if turns == 4
                else calls((f"transfer_to_{other}", {f"n{turns}": turns}))
            )

        return Brain(think)

    log: list[str] = []

    def noted(context: RunContextWrapper[Any]) -> None:
        log.append("noted")

    one = Agent[Any](name="one", model=plan("one", "two"))
    two = Agent[Any](name="two", model=plan("two", "one"), handoffs=[handoff(one, on_handoff=noted)])
    one.handoffs.append(two)
    result = await durable(one).run("hi", run_id="r1")
    assert result.final_output == "one after 4"
    assert result.last_agent is one
    assert log == ["noted", "noted"]
    kinds = [step.path for step in runs.get("r1").steps() if step.kind == "handoff"]
    assert kinds == [
        "handoff:transfer_to_two",
        "handoff:transfer_to_one",
        "handoff:transfer_to_two#2",
        "handoff:transfer_to_one#2",
    ]


async def test_a_tool_guardrail_that_rejects_before_a_sibling_is_through() -> None:
    @tool_input_guardrail
    def never(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("no")

    @function_tool(tool_input_guardrails=[never])
    def rejected(n: int) -> str:
        raise AssertionError("never called")

    @function_tool
    async def slow(n: int) -> str:
        await asyncio.sleep(0.05)
        return "slow"

    agent = Agent[Any](
        name="clerk", model=then_done(("rejected", {"n": 1}), ("slow", {"n": 2})), tools=[rejected, slow]
    )
    async with asyncio.timeout(20):
        assert (await durable(agent).run("hi")).final_output == "done: ['no', 'slow']"


async def test_a_model_that_is_asked_again_is_one_step_with_all_its_requests() -> None:
    class Overloaded(Brain):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            response = await super().get_response(*args, **kwargs)
            if len(self.asked) < 3:
                raise ConnectionError("overloaded")
            return response

    settings = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=lambda context: True))
    agent = Agent[Any](
        name="clerk", model=Overloaded(lambda outputs, items: says("at last")), model_settings=settings
    )
    result = await durable(agent).run("hi", run_id="r1")
    assert result.context_wrapper.usage.requests == 3
    assert [step.path for step in runs.get("r1").steps()] == ["model:clerk"]
    assert runs.get("r1").result().context_wrapper.usage.requests == 3


async def test_tools_of_an_mcp_server_are_steps() -> None:
    class Server(MCPServer):
        called = 0
        name = "desk"

        async def connect(self) -> None: ...
        async def cleanup(self) -> None: ...
        async def list_prompts(self) -> Any: ...
        async def get_prompt(self, name: str, arguments: Any = None) -> Any: ...

        async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[McpTool]:
            return [McpTool(name="look", inputSchema={"type": "object", "properties": {}})]

        async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> CallToolResult:
            self.called += 1
            return CallToolResult(content=[TextContent(type="text", text="seen")])

    server = Server()
    agent = Agent[Any](name="clerk", model=then_done(("look", {})), mcp_servers=[server])
    result = await durable(agent).run("hi", run_id="r1")
    assert server.called == 1
    assert "seen" in result.final_output
    assert [step.name for step in runs.get("r1").steps() if step.kind == "tool"] == ["look"]


async def test_an_agent_that_a_tool_runs_itself_is_made_of_steps() -> None:
    inner = Agent[Any](name="inner", model=Brain(lambda outputs, items: says("inside")))

    @function_tool
    async def both(n: int) -> str:
        said = await asyncio.gather(*[Runner.run(inner, text) for text in ("a", "b")])
        return " ".join(each.final_output for each in said)

    agent = Agent[Any](name="outer", model=then_done(("both", {"n": 1})), tools=[both])
    assert (await durable(agent).run("hi", run_id="r1")).final_output == "done: ['inside inside']"
    inside = [step.path for step in runs.get("r1").steps() if "agent:inner" in step.path]
    assert len(set(inside)) == 2
    assert all(path.startswith("tool:both:both-1/agent:inner:") for path in inside)


CHAT = '''
import os, signal, sys
from agents import Agent, SQLiteSession, set_tracing_disabled
import durable_agents
from durable_agents.openai_agents import DurableRunner
sys.path.insert(0, {tests!r})
from kit import Brain, says

class Mortal(SQLiteSession):
    """Dies when an append is done and not yet recorded, if it is asked to."""

    async def add_items(self, items):
        await super().add_items(items)
        if "--crash" in sys.argv and items[-1].get("role") == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)

def session():
    return Mortal("s", "chat.sqlite")

agent = Agent(name="clerk", model=Brain(lambda outputs, items: says(f"after {{len(items)}}")))
app = DurableRunner(agent, "chat", restore=lambda run: {{"session": session()}})
durable_agents.launch({url!r}, heartbeat=0.05, grace=0.2, poll=0.05)
print(app.run_sync("yes", run_id=sys.argv[1], session=session()).final_output, flush=True)
'''


@pytest.mark.timeout(300)  # four processes, on a machine that may be busy
def test_nothing_is_appended_twice_to_a_session(tmp_path: Path) -> None:
    """Killed between the append and its record, with the same words said again and again."""
    program = tmp_path / "chat.py"
    program.write_text(CHAT.format(tests=str(Path(__file__).parent), url=current().store.url))

    def say(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    for role in ("user", "assistant"):
        assert say("r1", role, "--crash").returncode == -signal.SIGKILL
    for run_id in ("r1", "r2"):
        done = say(run_id, "-")
        assert done.returncode == 0, done.stderr
    assert done.stdout == "after 3\n"
