"""Running an agent, graph or swarm once, for the input or the answers of a durable run."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import BaseModel

from .._core import RUN, SCOPE, Execution, Pause, Question, Request, Runner, Store, astep, engine, type_name
from .._core.errors import ConfigurationError, NotSupported
from ._calls import install
from ._places import Active, InRun
from ._private import InterruptException, run_async
from ._sessions import Conversation, Session
from ._shape import Shape, check_agent, default_session
from ._state import borrowed, read, write
from ._tables import MIGRATIONS
from ._turnstile import alone
from ._values import strands_codec

_STATE = "invocation_state"
_MODEL = "structured_output_model"


@dataclass(slots=True)
class Live:
    """What only the calling process has: the verb's own arguments."""

    keywords: dict[str, Any]
    original: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.original = dict(self.keywords.get(_STATE) or {})


class StrandsRunner(Runner):
    """The runner behind a `DurableAgent` or `DurableMultiAgent`."""

    framework = "strands"
    signals = (InterruptException,)

    def __init__(self, target: Any, name: str, types: Sequence[type], **options: Any) -> None:
        self.target, self.session = target, default_session(target)
        self.shape = Shape.of(target)
        self.shape.check_at_most_once(options.get("at_most_once", ()))
        self.types = {type_name(cls): cls for cls in (*types, *_own_types(self.shape))}
        for member in self.shape.agents.values():
            install(member.agent)
        codec = strands_codec(self.types.values(), self.shape.nodes)
        self.initial = read(self.shape, codec)
        super().__init__(name, codec, **options)

    def attach(self, store: Store) -> None:
        store.migrate_tables(self.framework, MIGRATIONS)

    def is_async(self, execution: Execution) -> bool:
        return bool(execution.incidental["async"])

    def fingerprint(self) -> dict[str, Any]:
        return self.shape.structure()

    def check_fork(self, run_id: str) -> None:
        raise NotSupported(
            f"run {run_id!r} is a Strands run, whose conversation cannot be forked yet: start a run with another "
            f"session_id and the messages it is to know as its prompt"
        )

    def conversation(self, session: str | None = None) -> Conversation:
        """What is known in a session after its last run."""
        found = self._session(session or self.session)
        return found.read(found.head())

    def _session(self, name: str) -> Session:
        return Session(engine.current().store, self.name, name, self.initial)

    # -- one pass of the native loop

    def drive(self, execution: Execution) -> Any:
        """As the native `__call__`: on an event loop of its own, in a thread of its own."""
        return run_async(lambda: self._lent(execution))

    async def _lent(self, execution: Execution) -> Any:
        with execution.top.lent():
            return await self.adrive(execution)

    async def adrive(self, execution: Execution) -> Any:
        async for _ in self.events(execution):
            pass
        return self.outcome(execution)

    def outcome(self, execution: Execution) -> Any:
        """The native result, or the pause when the loop stopped at interrupts."""
        return execution.memory["outcome"]

    async def events(self, execution: Execution) -> AsyncGenerator[Any, None]:
        """The native events of one segment."""
        session = self._session(str(execution.thread))
        asked = [pause for pause in execution.pauses if not pause.is_our_own]
        mine = InRun.of(execution)
        if asked:
            state = asked[-1].state
            base, prompt = int(state["conversation"]), _responses(asked[-1])
            mine.counts = dict(state["calls"])
        else:
            base = await self._base(session)
            prompt = self.codec.decode(execution.input["prompt"])
        async with alone(execution, self.shape.parts(), partial(mine.check, execution)):
            known = await asyncio.to_thread(session.read, base)
            with borrowed(self.shape, execution.muted):
                write(self.shape, self.codec, known)
                result = None
                events = self._native(execution, prompt, self._keywords(execution))
                try:
                    async for event in events:
                        if isinstance(event, dict) and "result" in event:
                            result = event["result"]
                        yield event
                except Exception:
                    if not self._is_stopped(execution):
                        await self._keep(execution, session, base, known)
                    raise
                finally:
                    await events.aclose()
                if self._is_stopped(execution):
                    mine.check(execution)
                execution.memory["outcome"] = await self._ended(execution, session, base, known, result)

    async def _base(self, session: Session) -> int:
        """Which conversation the run begins from: the newest one when it began, in every replay."""

        async def look() -> int:
            return await asyncio.to_thread(session.head)

        return await astep("state", "conversation", look, key="head")

    async def _native(
        self, run: Execution, prompt: Any, keywords: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """The native loop, its agents known to be durable in this run."""
        mine, shape = InRun.of(run), self.shape
        for member in shape.agents.values():
            check_agent(member.agent)
            mine.active[id(member.agent)] = Active(member.name, self.codec, self.at_most_once)
        groups = {id(group): list(group.state.results) for group in shape.groups.values()}
        handing_off = shape.handing_off()
        mine.groups |= groups
        mine.handing_off |= handing_off
        events = self.target.stream_async(prompt, **keywords)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()
            await mine.stop_playing()
            for member in shape.agents.values():
                mine.active.pop(id(member.agent), None)
            for group in groups:
                mine.groups.pop(group, None)
            mine.handing_off -= handing_off

    @staticmethod
    def _is_stopped(run: Execution) -> bool:
        return (run.closing or run.journal.lost or InRun.of(run).killed) is not None

    async def _ended(
        self, run: Execution, session: Session, base: int, known: Conversation, result: Any
    ) -> Any:
        """The outcome of a loop that has come to its end; what is known then is committed with it."""
        interrupts = list(getattr(result, "interrupts", None) or ()) or self._left_open()
        if not interrupts:
            await self._keep(run, session, base, known)
            return result
        number = await self._keep(run, session, base, known, paused=True)
        used = {question for pause in run.pauses for question in pause.questions}
        questions, ids = {}, {}
        for interrupt in interrupts:
            question, again = interrupt.id, 2
            while question in used:
                question, again = f"{interrupt.id}#{again}", again + 1
            ids[question] = interrupt.id
            questions[question] = {"name": interrupt.name, "reason": self.codec.encode(interrupt.reason)}
        state = {
            "conversation": number,
            "calls": dict(InRun.of(run).counts),
            "ids": ids,
            "result": self.codec.encode(result),
        }
        return Pause(questions, state, result)

    def _left_open(self) -> list[Any]:
        """What an agent still asks that was cancelled before it could use the answers: natively it waits on."""
        state = self.target._interrupt_state
        return list(state.interrupts.values()) if state.activated else []

    async def _keep(
        self, run: Execution, session: Session, base: int, before: Conversation, paused: bool = False
    ) -> int:
        """Stage what is known now, to be committed with the record that ends the segment; its number."""
        now = read(self.shape, self.codec, paused)
        number, statement = await asyncio.to_thread(
            session.statement, base, before, now, done=not paused, run_id=run.id
        )
        run.journal.stage([statement])
        return number

    def _keywords(self, execution: Execution) -> dict[str, Any]:
        live, recorded = execution.live, execution.input
        keywords = dict(self.codec.decode(recorded["keywords"]))
        if recorded.get("model"):
            keywords[_MODEL] = self.types.get(recorded["model"])
        if isinstance(live, Live):
            keywords |= {name: value for name, value in live.keywords.items() if value is not None}
            if (state := live.keywords.get(_STATE)) is not None:
                state.clear()  # an earlier try in this process has written into it
                state.update(live.original)
        for name, value in execution.restored().items():
            if name.startswith(f"{_STATE}."):
                keywords[_STATE] = {**(keywords.get(_STATE) or {}), name.removeprefix(f"{_STATE}."): value}
            else:
                keywords[name] = value
        return {name: value for name, value in keywords.items() if value is not None}

    # -- a part of another run

    def nested(self, request: Request) -> Any:
        return run_async(lambda: self.anested(request))

    async def anested(self, request: Request) -> Any:
        result = None
        async for event in self.nested_events(request):
            result = event.get("result", result) if isinstance(event, dict) else result
        return result

    async def nested_events(self, request: Request) -> AsyncGenerator[Any, None]:
        """The events of a call inside a run: a conversation of its own, which ends with the call."""
        run, scope = RUN.get(), SCOPE.get()
        if run is None or scope is None:
            raise ConfigurationError("there is no run here")
        if request.answers is not None:
            raise NotSupported("an agent called inside a run cannot be answered: start() a run for it")
        mine = InRun.of(run)
        if any(id(part) in mine.active or id(part) in mine.groups for part in self.shape.parts()):
            raise ConfigurationError(
                f"run {run.id!r} calls {self.name!r} while it is talking to the same agent already; use another agent"
            )
        live: Live = request.live
        with scope.lent():
            async with alone(run, self.shape.parts(), partial(mine.check, run)):
                with borrowed(self.shape, run.muted):
                    write(self.shape, self.codec, self.initial)
                    keywords = {name: value for name, value in live.keywords.items() if value is not None}
                    events = self._native(run, self.codec.decode(request.input["prompt"]), keywords)
                    try:
                        async for event in events:
                            yield event
                    finally:
                        await events.aclose()

    # -- results

    def paused_result(self, run_id: str, request: Any, pause: Question) -> Any:
        return self.codec.decode(pause.state["result"])


def _responses(pause: Question) -> list[dict[str, Any]]:
    """The answers to a pause as Strands takes them."""
    ids = pause.state["ids"]
    return [
        {"interruptResponse": {"interruptId": ids[question], "response": answer}}
        for question, answer in pause.answers.items()
    ]


def _own_types(shape: Shape) -> list[type[BaseModel]]:
    """The models of structured output that the agents name."""
    named = [member.agent._default_structured_output_model for member in shape.agents.values()]
    return [model for model in named if model is not None]
