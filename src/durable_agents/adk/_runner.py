"""Running an app's native loop once, for the message or the answers of a durable run.

A pause ends the invocation, as natively: the run waits, and the reply is the message of its next segment.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.adk.events.event import Event
from google.adk.runners import Runner as NativeRunner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types as genai

from .._core import Execution, Pause, Question, Request, Runner, Scope, Store, acting, inside
from .._core.errors import ConfigurationError, NotSupported
from ._borrowed import BorrowedSessionService
from ._places import durable_ids, here, within
from ._sessions import DurableSessionService
from ._shape import refuse, structure_of
from ._tables import MIGRATIONS
from ._values import adk_codec

_CONFIRMATION = "adk_request_confirmation"
_EVENTS, _OPEN = "adk events", "adk open calls"


class AppRunner(Runner):
    """The runner behind a `DurableRunner`. `app` is that object; its native loop is called on it."""

    framework = "adk"
    streams_results = True

    def __init__(
        self, name: str, app: NativeRunner, types: Any, sessions: BaseSessionService | None, **options: Any
    ) -> None:
        refuse(app.agent)
        self.app = app
        codec = adk_codec(types)
        if sessions is None:
            sessions = DurableSessionService(codec=codec)
        elif not isinstance(sessions, DurableSessionService):
            sessions = BorrowedSessionService(sessions, codec)
        sessions.must_exist = sessions.must_exist or not app.auto_create_session
        self.sessions = app.session_service = sessions
        super().__init__(name, codec, **options)

    def attach(self, store: Store) -> None:
        store.migrate_tables(self.framework, MIGRATIONS)

    def is_async(self, execution: Execution) -> bool:
        return True

    def fingerprint(self) -> dict[str, Any]:
        return structure_of(self.app.agent)

    def check_answer(self, asked: Any, answer: Any) -> None:
        """A confirmation that ADK cannot read would end the run."""
        if asked["name"] != _CONFIRMATION:
            return
        try:
            ToolConfirmation.from_response_dict(_response(asked, answer))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{answer!r:.200} is no confirmation: answer True, False, or a mapping such as "
                f'{{"confirmed": True, "payload": …}} ({error})'
            ) from None

    # -- one pass of the native loop

    async def adrive(self, execution: Execution) -> Any:
        async for _ in self.events(execution):
            pass
        return self.outcome(execution)

    async def nested_events(
        self, run: Execution, thread: str, run_id: str | None, arguments: dict[str, Any]
    ) -> AsyncGenerator[Event, None]:
        """The native events of a runner that is called inside a run, as a part of that."""
        self._check_own_thread(run, Request(None, thread))
        above, segment = here(run), self._segment(run_id)
        used = above.use(segment)
        own = Scope(above.child(used), above.child_key(used), in_step=above.in_step, events=above.events)
        stepped = within(lambda: self._standing(own), NativeRunner.run_async(self.app, **arguments))
        try:
            async for event in stepped:
                yield event
        finally:
            await stepped.aclose()

    def check_fork(self, run_id: str) -> None:
        raise NotSupported(
            f"run {run_id!r} is an ADK run, whose session cannot be forked by step yet: take the session back with "
            f"rewind_async(rewind_before_invocation_id=…), and send the message again as a new run"
        )

    async def events(self, execution: Execution) -> AsyncGenerator[Event, None]:
        """The native events of the segment: those from before a crash first, with the ids and times they had."""
        answered = _native(execution.pauses)
        place = Scope(f"reply:{len(answered)}") if answered else execution.top
        execution.memory[_EVENTS] = []
        execution.memory[_OPEN] = _still_open(answered)
        native = NativeRunner.run_async(self.app, **self._arguments(execution, answered))

        stepped = within(lambda: self._standing(place), native)
        try:
            async for event in stepped:
                self._note(execution, event)
                yield event
        finally:
            await stepped.aclose()

    @contextmanager
    def _standing(self, place: Scope) -> Iterator[None]:
        with inside(place), durable_ids(), acting(self):
            yield

    def _arguments(self, execution: Execution, answered: list[Question]) -> dict[str, Any]:
        recorded = execution.input
        arguments: dict[str, Any] = self.codec.decode(recorded["arguments"])
        arguments.update(execution.live or {})
        arguments.update(execution.restored())
        if answered:
            arguments["new_message"] = reply(answered[-1], execution.answers)
            arguments.pop("state_delta", None)
        return arguments

    @staticmethod
    def _note(execution: Execution, event: Event) -> None:
        if event.partial:
            return
        execution.memory[_EVENTS].append(event.id)
        waiting = event.long_running_tool_ids or ()
        for call in event.get_function_calls():
            if call.id in waiting:
                execution.memory[_OPEN][call.id] = {"name": call.name, "args": call.args or {}}

    # -- results

    def outcome(self, execution: Execution) -> Any:
        """The ids of the segment's events, or the pause when calls are left that somebody must answer."""
        ids = execution.memory[_EVENTS]
        if asked := execution.memory[_OPEN]:
            return Pause(self.codec.encode(asked), {"events": ids})
        return ids

    def encode_result(self, execution: Execution, result: Any) -> Any:
        """A reference to the events, which are stored already."""
        return {"run": execution.id, "events": result}

    def decode_result(self, data: Any) -> list[Event]:
        return self.sessions.of_run(data["run"], data["events"])

    @staticmethod
    def segment_number(execution: Execution) -> int:
        return len(_native(execution.pauses))

    def segment(self, run_id: str, number: int) -> list[Event] | None:
        """The events of a segment that has ended in a pause; None for one that has not."""
        pauses = _native(self.pauses_of(run_id))
        return self.sessions.of_run(run_id, pauses[number].state["events"]) if number < len(pauses) else None

    def paused_result(self, run_id: str, request: Any, pause: Question) -> list[Event]:
        return self.sessions.of_run(run_id, pause.state["events"])


def _native(pauses: list[Question]) -> list[Question]:
    return [pause for pause in pauses if not pause.is_our_own]


def _still_open(answered: list[Question]) -> dict[str, Any]:
    """The calls of the last pause that the reply has left open."""
    if not answered:
        return {}
    last = answered[-1]
    return {id: asked for id, asked in last.questions.items() if id not in last.answers}


def _response(asked: Any, given: Any) -> Any:
    """The function response's content for an answer; a plain one is wrapped as its sender would have written it."""
    if isinstance(given, genai.FunctionResponse):
        return given.response
    is_decision = asked["name"] == _CONFIRMATION and isinstance(given, bool)
    return given if isinstance(given, dict) else {"confirmed" if is_decision else "result": given}


def reply(pause: Question, answers: Mapping[str, Any]) -> genai.Content:
    """The message that answers a pause, as its sender would have written it."""
    parts = []
    for id, asked in pause.questions.items():
        if id not in pause.answers:
            continue
        given = answers[id]
        if not isinstance(given, genai.FunctionResponse):
            given = genai.FunctionResponse(id=id, name=asked["name"], response=_response(asked, given))
        parts.append(genai.Part(function_response=given))
    return genai.Content(role="user", parts=parts)
