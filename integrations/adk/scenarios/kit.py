"""What the ADK scenarios are made of: how agents are run, what is shown of their events, scripted models, tools."""

import asyncio
import re
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from crashmatrix import Answer, Resume, Scenario, Turn, World
from crashmatrix.boundaries import stable
from durable_agents.adk import DurableRunner

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", message=r".*EXPERIMENTAL.*")

ALL: Any = {"user_id": "u", "session_id": "s"}


# -- what is said and seen


def said(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def responded(name: str, id: str, response: dict[str, Any]) -> types.Content:
    return types.Content(
        role="user",
        parts=[types.Part(function_response=types.FunctionResponse(id=id, name=name, response=response))],
    )


class Shown(list[Any]):
    """Events, whose text is the same in two runs: branches one after the other, without ids and times."""

    def __repr__(self) -> str:
        branches: dict[str, list[str]] = {}
        for event in self:
            if not event.partial:
                branches.setdefault(event.branch or "", []).append(_shown(event))
        doubled = len({event.id for event in self}) < sum(not event.partial for event in self)
        # Branches are named after calls, whose ids natively differ from run to run.
        lines = [f"{branch}: {said}" for branch, said in sorted((stable(b), s) for b, s in branches.items())]
        return "\n".join([*lines, *(["A DOUBLED EVENT"] if doubled else [])])


def _shown(event: Event) -> str:
    parts = []
    for part in (event.content.parts or ()) if event.content else ():
        if part.text:
            parts.append(part.text)
        elif part.function_call:
            parts.append(f"calls {part.function_call.name} {part.function_call.args}")
        elif part.function_response:
            parts.append(f"{part.function_response.name} -> {returned(part.function_response)}")
    hidden: Any = {"agent_state", "requested_tool_confirmations", "compaction"}
    actions = event.actions.model_dump(exclude_defaults=True, exclude=hidden)
    if event.actions.compaction:
        parts.append(f"in short: {event.actions.compaction.compacted_content.parts}")
    more = {k: v for k, v in actions.items() if v}
    error = f" {event.error_code}: {event.error_message}" if event.error_code else ""
    # Not the numbers in a node's path: ADK deals them out in order of arrival.
    path = re.sub(r"@\d+", "", event.node_info.path)
    return f"{event.author} {path} {parts} {event.output!r} {more}{error}"


def returned(response: types.FunctionResponse) -> Any:
    """What a tool returned, as a model gets it."""
    return response.model_dump(mode="json", exclude_none=True).get("response")


def send(
    message: Any,
    run_id: str = "r1",
    config: RunConfig | None = None,
    session: str = "s",
    attaches: bool = True,
) -> Turn:
    return Turn(run_id, _sent(message, config, session), attaches=attaches)


def reply(message: Any, run_id: str = "r1") -> Resume:
    return Resume(run_id, _sent(message, None, "s"))


def answer(value: Any, native: Any, pick: Any = None) -> Answer:
    return Answer("r1", value, pick, _sent(native, None, "s"))


def _sent(message: Any, config: RunConfig | None, session: str) -> Callable[..., Any]:
    async def call(app: Any, **run: Any) -> Shown:
        content = message(app) if callable(message) else message
        if asyncio.iscoroutine(content):
            content = await content
        events = app.run_async(
            user_id="u",
            session_id=session,
            new_message=said(content) if isinstance(content, str) else content,
            run_config=config,
            **run,
        )
        return Shown([event async for event in events])

    return call


async def asked(app: Any, name: str, which: int = 0) -> str:
    """The id of a call of this name that waits in the session."""
    session = await app.session_service.get_session(app_name="shop", **ALL)
    return [
        call.id
        for event in session.events
        for call in event.get_function_calls()
        if call.id in (event.long_running_tool_ids or ()) and call.name == name
    ][which]


def left_behind(app: Any) -> Any:
    """The session: its events and its state."""

    async def read() -> Any:
        session = await app.session_service.get_session(app_name="shop", **ALL)
        return Shown(session.events), sorted(session.state.items())

    return asyncio.run(read())


def told(
    root: Any, *turns: Turn | Resume | Answer, app: dict[str, Any] | None = None, **scenario: Any
) -> Scenario:
    """The agent, durably and natively, and what is said to it."""
    options = {k: scenario.pop(k) for k in ("at_most_once", "session_service") if k in scenario}
    services = {"auto_create_session": True, "artifact_service": InMemoryArtifactService()}
    given: dict[str, Any] = {"app_name": "shop", "agent": root}
    if app is not None:
        given = {"app": App(name="shop", root_agent=root, **app)}
    elif not hasattr(root, "sub_agents"):
        given = {"app_name": "shop", "node": root}
    compared = scenario.pop("compared", True)
    runner = DurableRunner(**given, name="shop", **services, **options)
    decode = runner.durable.decode_result
    runner.durable.decode_result = lambda data: Shown(decode(data))  # type: ignore[method-assign]
    native = Runner(**given, session_service=InMemorySessionService(), **services)
    return Scenario(
        runner=runner,
        native=native if compared else None,
        turns=turns,
        is_async=True,
        show=left_behind,
        **scenario,
    )


# -- models and tools

Plan = Callable[[int, list[types.Content]], list[types.Part]]


class Model(BaseLlm):
    """Decides from its request: `plan` gets the number of tool results since the user spoke, and the contents.

    `brief`: what it is asked last is not told in the name of its effect, as it depends on which of two came first.
    """

    world: Any
    label: str = "model"
    plan: Any = None
    words: bool = False
    brief: bool = False
    rank: tuple[int, int] = (0, 1)
    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        await asyncio.sleep(self.world.latency(*self.rank))
        seen = f"{results(contents)} results" if self.brief else f"{_last(contents)[:60]!r}"
        self.world.effect(f"{self.label} after {seen} of {len(contents)}")
        plan: Plan = self.plan or (lambda n, asked: text(f"reply to {_last(asked)}"))
        parts = plan(results(contents), contents)
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=10 * len(contents), candidates_token_count=5
        )
        content = types.Content(role="model", parts=parts)
        if stream and self.words and parts[0].text:
            for word in parts[0].text.split():
                await asyncio.sleep(0)
                yield LlmResponse(content=types.Content(role="model", parts=text(word)), partial=True)
        yield LlmResponse(content=content, usage_metadata=used, model_version=self.label)


def results(contents: list[types.Content]) -> int:
    """How many tool results there are since the user last said something."""
    count = 0
    for content in reversed(contents):
        parts = content.parts or []
        if content.role == "user" and any(part.text for part in parts):
            return count
        count += sum(part.function_response is not None for part in parts)
    return count


def _last(contents: list[types.Content]) -> str:
    part = (contents[-1].parts or [types.Part(text="")])[-1]
    if part.function_response:
        return f"{part.function_response.name} {returned(part.function_response)}"
    return part.text or "a call"


def last(contents: list[types.Content]) -> str:
    return _last(contents)


def text(said: str) -> list[types.Part]:
    return [types.Part(text=said)]


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[types.Part]:
    return [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in wanted]


def first(*wanted: tuple[str, dict[str, Any]], then: str = "done") -> Plan:
    """First these calls at once, then the end."""
    return lambda n, contents: calls(*wanted) if n == 0 else text(f"{then}: {_last(contents)}")


def in_turn(*wanted: tuple[str, dict[str, Any]], then: str = "done") -> Plan:
    """These calls one after the other, then the end."""
    return lambda n, contents: calls(wanted[n]) if n < len(wanted) else text(f"{then}: {_last(contents)}")


def agent(
    world: World, name: str, plan: Plan | None = None, tools: Sequence[Any] = (), **options: Any
) -> LlmAgent:
    rank = options.pop("rank", (0, 1))
    words, brief = options.pop("words", False), options.pop("brief", False)
    model = Model(world=world, label=name, plan=plan, rank=rank, words=words, brief=brief)
    return LlmAgent(name=name, model=model, tools=list(tools), **options)


def charging(world: World, parallel: int = 1) -> Callable[..., Any]:
    """A tool that charges; of several at once each takes its time, after a crash the other way round."""

    async def charge(amount: int, tool_context: Any) -> dict[str, Any]:
        """Charge an amount."""
        await asyncio.sleep(world.latency(amount % parallel, parallel))
        world.effect(f"charge {amount}")
        tool_context.state[f"paid {amount}"] = amount
        return {"receipt": amount}

    return charge


def mailing(world: World) -> Callable[..., Any]:
    def mail(to: str) -> str:
        """Send a mail."""
        world.effect(f"mail {to}")
        return f"mailed {to}"

    return mail
