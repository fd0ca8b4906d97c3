"""`DurableRunner`: ADK's `Runner` whose runs finish, however often their process dies."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Sequence
from typing import Any

from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types as genai

from .._core import RUN, OnCodeChange, Request, Restore, Run, default_name, escape
from .._core.errors import ConfigurationError, EncodingError, NotSupported
from ._following import followed
from ._runner import AppRunner
from ._sessions import DurableSessionService


class DurableRunner(Runner):
    """The durable form of `google.adk.runners.Runner`: its arguments, its verbs, and `start`.

    Args:
        app, app_name, agent, node, plugins, artifact_service, memory_service, credential_service,
        plugin_close_timeout, auto_create_session: as natively.
        session_service: default: a `DurableSessionService`. Another one is used for what it stores, and each event
            appended to it is a step; one that lives in memory is refused.
        name: unique in the process and the same after a restart. Default: `<module or script>.<app name>`.
        types: classes that may be stored in state and outputs beside plain data and those of ADK: pydantic models,
            dataclasses, enums. Tools may return others, too; those are plain data after a crash.
        at_most_once: names of tools that are not run again when a crash has left their outcome unknown: the run waits,
            and `Run.answer` says what became of them.
        restore: `restore(run)` gives back what a run was called with that could not be recorded, when it goes on
            without its caller: a mapping, such as `{"run_config": …}`.
        on_code_change: what becomes of a run that began when the app had other agents, tools or edges: "wait" for a
            worker that has that app, or "continue" with this one.

    Raises:
        ConfigurationError: another runner of the process has this name.
        NotSupported: a part of the app is not durable yet; the message names it and an alternative.
    """

    def __init__(
        self,
        *,
        app: App | None = None,
        app_name: str | None = None,
        agent: Any = None,
        node: Any = None,
        plugins: list[Any] | None = None,
        session_service: BaseSessionService | None = None,
        name: str | None = None,
        types: Sequence[type] = (),
        at_most_once: Collection[str] = (),
        restore: Restore | None = None,
        on_code_change: OnCodeChange = "wait",
        **services: Any,
    ) -> None:
        if isinstance(session_service, InMemorySessionService):
            raise NotSupported(
                "an InMemorySessionService is gone with its process, and no run could go on. Write session_service = "
                "durable_agents.adk.DurableSessionService() in its place, and call create_session(…) on that as "
                "before; or leave session_service= out, and create sessions with `await "
                "runner.session_service.create_session(…)` or auto_create_session=True"
            )
        given = app.name if app is not None else getattr(agent or node, "name", "app")
        super().__init__(
            app=app, app_name=app_name, agent=agent, node=node, plugins=plugins,
            session_service=session_service or DurableSessionService(), **services,
        )  # fmt: skip
        self.durable = AppRunner(
            name or default_name(app_name or given), self, types, session_service, at_most_once=at_most_once,
            restore=restore, on_code_change=on_code_change,
        )  # fmt: skip

    # -- verbs

    async def run_async(
        self, *, user_id: str, session_id: str, run_id: str | None = None, **arguments: Any
    ) -> AsyncGenerator[Event, None]:
        """As natively, in a durable run: the loop goes on when the next event is asked for.

        A `new_message` with function responses to the calls a run waits for answers that run, and goes on with it.
        Leaving the loop is the native stop: the run ends cancelled. Cancelling the task that awaits only detaches: any
        worker goes on.

        Args:
            run_id: the run's identity: the same id and message again attach to the same run, and give its whole events
                again. Default: a new one in each call, so also when a script is started again.

        Raises:
            InputMismatch: `run_id` exists with another message. What the agent raises is raised.
            RunWaiting: the run waits for somebody to say what became of a tool.
        """
        if (run := RUN.get()) is not None:
            arguments |= {"user_id": user_id, "session_id": session_id}
            native = self.durable.nested_events(run, self._thread(user_id, session_id), run_id, arguments)
            try:
                async for event in native:
                    yield event
            finally:
                await native.aclose()
            return
        request, id = await asyncio.to_thread(self._request, user_id, session_id, run_id, arguments)
        events = followed(self.durable, request, id)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def run(
        self, *, user_id: str, session_id: str, run_id: str | None = None, **arguments: Any
    ) -> Generator[Event, None, None]:
        """`run_async` for code without an event loop: as natively, on a loop in a thread of its own."""
        if RUN.get() is not None:
            nested: Any = _Running(functools.partial(self.run_async, run_id=run_id))
            yield from Runner.run(nested, user_id=user_id, session_id=session_id, **arguments)
            return
        request, id = self._request(user_id, session_id, run_id, arguments)
        running: Any = _Running(lambda **_: followed(self.durable, request, id))
        events = Runner.run(
            running, user_id=user_id, session_id=session_id, new_message=arguments["new_message"]
        )
        try:
            yield from events
        except GeneratorExit:
            Run(id).cancel()  # before the loop's end hands the run back
            events.close()
            raise

    def start(self, *, user_id: str, session_id: str, run_id: str | None = None, **arguments: Any) -> Run:
        """Queue a run for any worker that has this runner, and return at once.

        Args:
            user_id, session_id, run_id, arguments: as `run_async`.

        Raises:
            NotRecoverable: an argument that exists only in this process, such as a run config with a client in it.
            NotSupported: the message answers a run that waits; use `Run.answer`.
        """
        request, run_id = self._request(user_id, session_id, run_id, arguments)
        if request.answers is not None:
            raise NotSupported(
                f"run {run_id!r} waits for this message: answer it with durable_agents.runs.get({run_id!r}).answer(…)"
            )
        return self.durable.submit(request, run_id)

    async def run_live(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Event, None]:
        """Not supported: a live connection has no end that could be recorded."""
        raise NotSupported(
            "run_live() is not durable: use run_async(), or google.adk.Runner for live sessions"
        )
        yield

    # -- requests

    def _request(
        self, user_id: str, session_id: str, run_id: str | None, arguments: dict[str, Any]
    ) -> tuple[Request, str]:
        for given, instead in (
            ("invocation_id", "a run goes on by itself; attach to it with run_id="),
            ("abort_signal", "stop the run by leaving the loop, or with Run.cancel()"),
        ):
            if arguments.pop(given, None) is not None:
                raise NotSupported(f"{given}= is not supported by DurableRunner: {instead}")
        if arguments.get("run_config") == RunConfig():  # ADK's `run` gives it always
            del arguments["run_config"]
        arguments = {k: v for k, v in arguments.items() if v is not None and v is not False}
        if not user_id or not session_id:
            raise ConfigurationError("a session belongs to a user: user_id and session_id must not be empty")
        message = arguments.get("new_message")
        if not isinstance(message, genai.Content):
            raise ConfigurationError("a run begins with new_message=, a google.genai.types.Content")
        arguments["new_message"] = message = genai.Content(role="user", parts=message.parts)  # as natively
        thread = self._thread(user_id, session_id)
        responses = {
            part.function_response.id: part.function_response
            for part in message.parts or ()
            if part.function_response is not None and part.function_response.id
        }
        if (
            responses
            and (answer := self._answer(user_id, session_id, run_id, responses, arguments)) is not None
        ):
            return answer
        codec, live_names = self.durable.codec, []
        arguments = {"user_id": user_id, "session_id": session_id, **arguments}
        recorded = {}
        for argument, value in arguments.items():
            try:
                recorded[argument] = codec.encode(value)
                if argument == "run_config" and codec.decode(recorded[argument]) != value:
                    raise EncodingError("the run config does not come back as it was")
            except Exception as reason:
                if argument != "run_config":
                    shown = "a new run" if run_id is None else f"run {run_id!r}"
                    raise EncodingError(f"{argument} of {shown} cannot be recorded: {reason}") from reason
                recorded.pop(argument, None)
                live_names.append(argument)
        live = {name: arguments[name] for name in live_names}
        request = Request({"arguments": recorded}, thread, live, tuple(live_names))
        return request, self.durable.fresh_id(request.input) if run_id is None else run_id

    def _thread(self, user_id: str, session_id: str) -> str:
        return "/".join(map(escape, (self.app_name, user_id, session_id.strip())))

    def _answer(
        self,
        user_id: str,
        session_id: str,
        named: str | None,
        responses: dict[str, Any],
        arguments: dict[str, Any],
    ) -> tuple[Request, str] | None:
        """The request that answers the run that waits on this session; None when the message is no answer to one."""
        thread = self._thread(user_id, session_id)
        if (waiting := self.durable.waiting_run(thread)) is not None:
            run_id = waiting[0]
            self._check_answer(run_id, named, responses)
        elif named is not None:
            run_id = named
        else:  # sent again, after the run has gone on with it
            found = self._answered(user_id, session_id, responses)
            if found is None:
                return None
            run_id = found
        if arguments.get("state_delta"):
            raise NotSupported(f"state_delta= beside an answer to run {run_id!r} is not supported yet")
        live = (
            {"run_config": arguments["run_config"]}
            if isinstance(arguments.get("run_config"), RunConfig)
            else {}
        )
        answers: dict[str | None, Any] = {id: _plain(response) for id, response in responses.items()}
        return Request(None, live=live, answers=answers), run_id

    def _answered(self, user_id: str, session_id: str, responses: dict[str, Any]) -> str | None:
        """The run that has had answers to these calls."""
        key = (self.app_name, user_id, session_id)
        run_id = self.durable.sessions.run_of_call(key, next(iter(responses)))
        if run_id is None:
            return None
        answered = {id for pause in self.durable.pauses_of(run_id) for id in pause.answers}
        return run_id if answered.issuperset(responses) else None

    def _check_answer(self, run_id: str, named: str | None, responses: dict[str, Any]) -> None:
        pauses = self.durable.pauses_of(run_id)
        known = {*pauses[-1].questions, *(id for pause in pauses for id in pause.answers)}
        if unknown := [id for id in responses if id not in known]:
            raise ValueError(
                f"Function call not found for function response ids: {', '.join(unknown)}. Run {run_id!r} waits on "
                f"this session, for {', '.join(pauses[-1].questions)}"
            )
        if named not in (None, run_id):
            raise ConfigurationError(
                f"run {run_id!r} waits on this session: answer it without run_id=, or with its own, not {named!r}"
            )


def _plain(response: genai.FunctionResponse) -> Any:
    """The response alone when that is all there is, so that it is the same answer as by `Run.answer`."""
    more = response.model_fields_set - {"id", "name", "response"}
    return response if any(getattr(response, name) for name in more) else response.response or {}


class _Running:
    """Stands in for a runner in ADK's `run`, which has no place for a run id."""

    def __init__(self, run_async: Callable[..., AsyncGenerator[Event, None]]) -> None:
        self.run_async = run_async
