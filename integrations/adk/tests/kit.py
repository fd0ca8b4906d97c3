"""Agents and scripted models for these tests."""

import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from durable_agents.adk import DurableRunner

EFFECTS: list[str] = []


class Killed(BaseException):
    """Ends a run where it stands, without an outcome, as the death of its process does."""


class Model(BaseLlm):
    """Decides from its request: `plan` gets the number of tool results since the user spoke, and the contents."""

    plan: Any = None
    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        EFFECTS.append("model")
        parts = self.plan(results(llm_request.contents), llm_request.contents) if self.plan else text("hello")
        used = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=3)
        if stream and parts[0].text:
            for word in parts[0].text.split():
                yield LlmResponse(content=types.Content(role="model", parts=text(word)), partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=parts), usage_metadata=used)


def results(contents: list[types.Content]) -> int:
    count = 0
    for content in reversed(contents):
        parts = content.parts or []
        if content.role == "user" and any(part.text for part in parts):
            return count
        count += sum(part.function_response is not None for part in parts)
    return count


def text(said: str) -> list[types.Part]:
    return [types.Part(text=said)]


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[types.Part]:
    return [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in wanted]


def in_turn(*wanted: tuple[str, dict[str, Any]]) -> Callable[[int, Any], list[types.Part]]:
    return lambda n, contents: calls(wanted[n]) if n < len(wanted) else text("done")


def at_once(*wanted: tuple[str, dict[str, Any]]) -> Callable[[int, Any], list[types.Part]]:
    return lambda n, contents: calls(*wanted) if n == 0 else text("done")


def charge(amount: int) -> dict[str, int]:
    """Charge an amount."""
    EFFECTS.append(f"charge {amount}")
    return {"receipt": amount}


def agent(name: str, plan: Any = None, tools: Any = (), **options: Any) -> LlmAgent:
    return LlmAgent(name=name, model=Model(plan=plan), tools=list(tools), **options)


def durable(root: Any, **options: Any) -> DurableRunner:
    options = {"app_name": "shop", "agent": root, **options}
    if "app" in options:
        options = {k: v for k, v in options.items() if k not in ("app_name", "agent")}
    return DurableRunner(**options, name=f"r{uuid.uuid4().hex}", auto_create_session=True)


def said(what: str) -> types.Content:
    return types.Content(role="user", parts=text(what))


def responded(name: str, id: str, response: dict[str, Any]) -> types.Content:
    return types.Content(
        role="user",
        parts=[types.Part(function_response=types.FunctionResponse(id=id, name=name, response=response))],
    )


async def run(app: Any, message: Any = "please", session: str = "s", **arguments: Any) -> list[Event]:
    message = said(message) if isinstance(message, str) else message
    events = app.run_async(user_id="u", session_id=session, new_message=message, **arguments)
    return [event async for event in events]


async def session_of(app: Any, session: str = "s") -> Any:
    return await app.session_service.get_session(app_name="shop", user_id="u", session_id=session)


def killed_once() -> Callable[[], None]:
    """Raises `Killed` at its first call."""
    called: list[int] = []

    def kill() -> None:
        called.append(1)
        if len(called) == 1:
            raise Killed

    return kill


def texts(events: list[Event]) -> list[str]:
    return [part.text for event in events for part in event.content.parts or [] if part.text]  # type: ignore[union-attr]
