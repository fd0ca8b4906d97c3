"""One agent: tools, state, callbacks, streams, turns of a conversation."""

from dataclasses import dataclass
from typing import Any

from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import CodeExecutionResult
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from pydantic import BaseModel

from crashmatrix import Scenario, Turn, World, scenario

from .kit import Model, Shown, agent, calls, charging, first, in_turn, last, mailing, said, send, text, told


@scenario
def one_tool(world: World) -> Scenario:
    return told(agent(world, "cashier", first(("charge", {"amount": 1})), [charging(world)]), send("please"))


@scenario
def two_tools_in_turn(world: World) -> Scenario:
    plan = in_turn(("charge", {"amount": 1}), ("mail", {"to": "ann"}))
    return told(agent(world, "cashier", plan, [charging(world), mailing(world)]), send("please"))


@scenario
def parallel_calls(world: World) -> Scenario:
    plan = first(("charge", {"amount": 0}), ("charge", {"amount": 1}))
    return told(agent(world, "cashier", plan, [charging(world, parallel=2)]), send("please"))


class Ticket(BaseModel):
    id: int
    status: str = "open"


@dataclass
class Seat:
    row: int
    tickets: list[Ticket]


@scenario
def results_of_classes(world: World) -> Scenario:
    """Tools return objects of classes that nobody has named to the runner: a model gets the same JSON after a crash."""

    def book(row: int) -> Ticket:
        """Book a ticket."""
        world.effect(f"book {row}")
        return Ticket(id=row)

    def seat(row: int) -> dict[str, Any]:
        """Choose a seat."""
        world.effect(f"seat {row}")
        return {"seat": Seat(row, [Ticket(id=row)])}

    plan = in_turn(("book", {"row": 7}), ("seat", {"row": 7}), ("book", {"row": 8}))
    return told(agent(world, "clerk", plan, [book, seat]), send("please"), send("again", "r2"))


@scenario
def output_key(world: World) -> Scenario:
    """State of the session, the user and the app; instructions that use it."""

    def note(what: str, tool_context: Any) -> str:
        """Note something down."""
        world.effect(f"note {what}")
        tool_context.state["notes"] = [*tool_context.state.get("notes", []), what]
        tool_context.state["user:last"] = what
        tool_context.state["app:count"] = tool_context.state.get("app:count", 0) + 1
        tool_context.state["temp:draft"] = what
        return f"noted {what}"

    plan = in_turn(("note", {"what": "a"}), ("note", {"what": "b"}))
    root = agent(world, "clerk", plan, [note], output_key="said", instruction="So far: {notes?}")
    return told(root, send("first"), send("second", "r2"))


@scenario
def callbacks(world: World) -> Scenario:
    """Every callback of an agent, and a plugin: each leaves its mark in the state or on what passes."""
    order: list[str] = []

    def before_agent(callback_context: Any) -> None:
        callback_context.state["began"] = True

    def after_agent(callback_context: Any) -> Any:
        callback_context.state["ended"] = sorted(callback_context.state.to_dict())

    def before_model(callback_context: Any, llm_request: Any) -> None:
        callback_context.state["asked"] = callback_context.state.get("asked", 0) + 1

    def after_model(callback_context: Any, llm_response: Any) -> Any:
        if llm_response.content.parts[0].text:
            llm_response.content.parts[0].text += " (checked)"
            return llm_response
        return None

    def before_tool(tool: Any, args: Any, tool_context: Any) -> Any:
        args["amount"] += 1
        return {"answered": "by the callback"} if args["amount"] == 8 else None

    def after_tool(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> Any:
        return {**tool_response, "seen": True}

    class Marking(BasePlugin):
        async def on_event_callback(self, *, invocation_context: Any, event: Any) -> Any:
            order.append(event.author)

        async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
            tool_context.state["plugin saw"] = tool.name

    plan = in_turn(("charge", {"amount": 1}), ("charge", {"amount": 7}))
    root = agent(
        world, "cashier", plan, [charging(world)], before_agent_callback=before_agent,
        after_agent_callback=after_agent, before_model_callback=before_model, after_model_callback=after_model,
        before_tool_callback=before_tool, after_tool_callback=after_tool,
    )  # fmt: skip
    return told(root, send("please"), app={"plugins": [Marking("marking")]})


@scenario
def streamed(world: World) -> Scenario:
    """Server-sent events: the words are partial events, live; the whole ones are recorded."""
    plan = first(("charge", {"amount": 1}), then="this is the end")
    root = agent(world, "cashier", plan, [charging(world)], words=True)
    return told(root, send("please", config=RunConfig(streaming_mode=StreamingMode.SSE)))


@scenario
def three_turns(world: World) -> Scenario:
    def plan(n: int, contents: Any) -> Any:
        if n == 0:
            return calls(("charge", {"amount": len(contents)}))
        return text(f"after {len(contents)}: {last(contents)}")

    root = agent(world, "cashier", plan, [charging(world)], output_key="said")
    return told(root, send("one"), send("two", "r2"), send("three", "r3"))


@scenario
def called_without_a_loop(world: World) -> Scenario:
    """`run`, which drives the agent in a thread of its own."""

    def call(app: Any, **run: Any) -> Any:
        return Shown(app.run(user_id="u", session_id="s", new_message=said("please"), **run))

    plan = in_turn(("charge", {"amount": 1}), ("mail", {"to": "ann"}))
    return told(agent(world, "cashier", plan, [charging(world), mailing(world)]), Turn("r1", call))


@scenario
def sessions_of_its_own(world: World) -> Scenario:
    """A session service of the user's own, in a file: two calls at once, and another turn."""

    def plan(n: int, contents: Any) -> Any:
        if n == 0:
            return calls(*(("charge", {"amount": 2 * len(contents) + n}) for n in range(2)))
        return text(f"after {len(contents)}")

    root = agent(world, "cashier", plan, [charging(world, 2)], output_key="said")
    service = SqliteSessionService(str(world._ledger.parent / "sessions.sqlite"))
    return told(root, send("one"), send("two", "r2"), session_service=service)


@scenario
def code_executor(world: World) -> Scenario:
    """Code that the model writes and an executor runs."""

    class Executor(BaseCodeExecutor):
        def execute_code(self, invocation_context: Any, code_execution_input: Any) -> CodeExecutionResult:
            world.effect(f"execute {code_execution_input.code.strip()}")
            return CodeExecutionResult(stdout="42")

    def plan(n: int, contents: Any) -> Any:
        ran = any(
            "42" in str(part.code_execution_result or part.text) for c in contents for part in c.parts or ()
        )
        return text("it is 42") if ran else text("```python\nprint(6 * 7)\n```")

    return told(agent(world, "coder", plan, code_executor=Executor(), brief=True), send("please"))


@scenario
def compaction(world: World) -> Scenario:
    """After every turn a model sums the conversation up."""
    plan = first(("charge", {"amount": 1}))
    config = EventsCompactionConfig(
        summarizer=LlmEventSummarizer(llm=Model(world=world, label="summarizer", brief=True)),
        compaction_interval=1,
        overlap_size=0,
    )
    root = agent(world, "cashier", plan, [charging(world)], brief=True)
    return told(root, send("one"), send("two", "r2"), app={"events_compaction_config": config})


@scenario
def generated_content(world: World) -> Scenario:
    """A tool that returns nothing, one that returns a list, and an argument that is null."""

    def silent(why: str | None = None) -> None:
        """Say nothing."""
        world.effect(f"silent {why}")

    def listing(upto: int) -> list[int]:
        """Count."""
        world.effect(f"list {upto}")
        return list(range(upto))

    plan = in_turn(("silent", {"why": None}), ("listing", {"upto": 3}))
    return told(agent(world, "cashier", plan, [silent, listing]), send("please"))
