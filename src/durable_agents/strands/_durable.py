"""`DurableAgent` and `DurableMultiAgent`: agents, graphs and swarms whose runs finish, whatever becomes of the process.

The object itself does the work, with its own loop, hooks and tools. A run leaves it as it was before.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Generic, TypeVar, Unpack

from strands import Agent
from strands.agent.agent_result import AgentResult
from strands.agent.state import AgentState
from strands.multiagent.base import MultiAgentResult
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm

from .._core import RUN, Options, Request, Run, default_name, type_name
from .._core.errors import ConfigurationError, EncodingError, NotSupported, RunWaiting
from ._runner import Live, StrandsRunner
from ._shape import default_label

Result = TypeVar("Result")
_RESPONSE = "interruptResponse"
_REFUSED = {
    "structured_output": "give structured_output_model= to a verb",
    "structured_output_async": "give structured_output_model= to a verb",
    "take_snapshot": "messages_of(session_id) and state_of(session_id) read a conversation",
    "load_snapshot": "a conversation begins with what the agent is built with; its runs add to it",
    "serialize_state": "the runner keeps the state of its runs",
    "deserialize_state": "the runner keeps the state of its runs",
}
_OBSERVERS = ("callback_handler", "cancel_signal")


class _Durable(Generic[Result]):
    """What both have in common."""

    _wraps: tuple[type, ...]
    _kind: str

    def __init__(
        self,
        target: Any,
        name: str | None = None,
        *,
        types: Sequence[type] = (),
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(target, self._wraps):
            raise ConfigurationError(
                f"{type(self).__name__} wraps {self._kind}, not a {type(target).__module__}.{type(target).__qualname__}"
            )
        self.durable = StrandsRunner(target, name or default_name(default_label(target)), types, **options)

    @property
    def _target(self) -> Any:
        return self.durable.target

    def __getattr__(self, name: str) -> Any:
        """Everything else is the wrapped object's own."""
        if name.startswith("_") or name == "durable":
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        if name in _REFUSED:
            raise NotSupported(f"{name}() is not supported by {type(self).__name__}: {_REFUSED[name]}")
        return getattr(self.durable.target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "durable":
            raise NotSupported(
                f"{name!r} cannot be set on a {type(self).__name__}: set it on the agent itself, before it is wrapped, "
                f"so that every process has it"
            )
        super().__setattr__(name, value)

    def _call(
        self, prompt: Any, run_id: str | None, session_id: str | None, keywords: dict[str, Any]
    ) -> Result:
        request, run_id = self._request(prompt, run_id, session_id, keywords, is_async=False)
        result: Result = self.durable.call(request, run_id)
        return result

    async def _acall(
        self, prompt: Any, run_id: str | None, session_id: str | None, keywords: dict[str, Any]
    ) -> Result:
        request, run_id = self._request(prompt, run_id, session_id, keywords, is_async=True)
        result: Result = await self.durable.acall(request, run_id)
        return result

    async def _stream(
        self, prompt: Any, run_id: str | None, session_id: str | None, keywords: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        request, run_id = self._request(prompt, run_id, session_id, keywords, is_async=True)
        durable = self.durable
        events = (
            durable.nested_events(request)
            if RUN.get() is not None
            else durable.astream_call(request, run_id, durable.events, durable.outcome)
        )
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def _start(
        self, prompt: Any, run_id: str | None, session_id: str | None, keywords: dict[str, Any]
    ) -> Run:
        request, run_id = self._request(prompt, run_id, session_id, keywords, is_async=True, starts=True)
        if request.answers is not None:
            raise NotSupported(
                f"run {run_id!r} waits: answer it with durable_agents.runs.get({run_id!r}).answer(value)"
            )
        return self.durable.submit(request, run_id)

    def _request(
        self,
        prompt: Any,
        run_id: str | None,
        session_id: str | None,
        keywords: dict[str, Any],
        *,
        is_async: bool,
        starts: bool = False,
    ) -> tuple[Request, str | None]:
        live = Live(keywords)
        if RUN.get() is not None and not starts:
            if session_id is not None:
                raise NotSupported(
                    "an agent called inside a run has no session: start() a run with session_id="
                )
            return Request(self._input(prompt, keywords)[0], live=live), run_id
        session = session_id or self.durable.session
        if _is_response(prompt):
            return self._answer(prompt, run_id, session, live)
        self._check_idle(run_id, session)
        input, live_names = self._input(prompt, keywords)
        observers = tuple(name for name in _OBSERVERS if keywords.get(name) is not None)
        request = Request(input, session, live, live_names, observers, incidental={"async": is_async})
        return request, run_id

    def _input(self, prompt: Any, keywords: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What is recorded of a call, and the names of what cannot be."""
        codec, live_names, kept = self.durable.codec, [], {}
        try:
            encoded = codec.encode(prompt)
        except EncodingError as error:
            raise EncodingError(f"the prompt cannot be recorded: {error}") from error
        recorded: dict[str, Any] = {"prompt": encoded}
        for name, value in keywords.items():
            if value is None or name in _OBSERVERS:
                continue
            if name == "structured_output_model":
                if type_name(value) in self.durable.types:
                    recorded["model"] = type_name(value)
                else:
                    live_names.append(name)
                continue
            if name == "invocation_state":
                parts = {}
                for key, part in value.items():
                    if _encodes(codec, part):
                        parts[key] = part
                    else:
                        live_names.append(f"{name}.{key}")
                kept[name] = parts
            elif _encodes(codec, value):
                kept[name] = value
            else:
                live_names.append(name)
        recorded["keywords"] = codec.encode(kept)
        return recorded, tuple(live_names)

    def _answer(
        self, prompt: list[Any], run_id: str | None, session: str, live: Live
    ) -> tuple[Request, str | None]:
        """Interrupt responses, given to the run that waits in this session."""
        given = {each[_RESPONSE]["interruptId"]: each[_RESPONSE]["response"] for each in prompt}
        waiting = self.durable.waiting_run(session)
        if waiting is None:
            if run_id is None:
                raise ValueError(
                    f"Received interrupt responses but no run waits in the session {session!r}; give the run_id of "
                    f"the one that was answered to attach to it"
                )
            return Request(None, live=live, answers=dict(given)), run_id
        waits, pause = waiting
        if run_id not in (None, waits):
            raise ConfigurationError(
                f"run {waits!r} waits in this session: answer it without run_id=, or with its own, not {run_id!r}"
            )
        questions = {interrupt: question for question, interrupt in pause.state["ids"].items()}
        if unknown := [interrupt for interrupt in given if interrupt not in questions]:
            raise KeyError(f"interrupt_id=<{unknown[0]}> | no interrupt found")
        return Request(None, live=live, answers={questions[k]: v for k, v in given.items()}), waits

    def _check_idle(self, run_id: str | None, session: str) -> None:
        """As natively: a conversation that waits for a response takes nothing else."""
        try:
            waiting = self.durable.waiting_run(session)
        except RunWaiting as error:  # for what became of a tool
            if error.run_id == run_id:
                return
            raise
        if waiting is not None and waiting[0] != run_id:
            if run_id is not None and self.durable.has_run(run_id):
                return  # it attaches
            raise TypeError(
                f"must resume from interrupt with list of interruptResponse's: run {waiting[0]!r} waits in the session "
                f"{session!r}. Answer or cancel it, or use another session_id"
            )

    # -- the conversation

    def _known(self, session_id: str | None) -> Any:
        return self.durable.conversation(session_id)


class DurableAgent(_Durable[AgentResult]):
    """The durable form of an agent.

    Args:
        agent: a `strands.Agent`. Runs use it one after the other, and leave it as it was.
        name: unique in the process and the same after a restart. Default: `<module or script>.<agent's name>`.
        types: classes that may be stored beside those the agents name for structured output: pydantic models,
            dataclasses, enums.
        at_most_once: names of tools that are not run again when a crash has left their outcome unknown: the run waits,
            and `Run.answer` says what became of them.
        restore: `restore(run)` gives back what a run was called with that could not be recorded, when it goes on
            without its caller: a mapping with the names from the error that says so (`invocation_state.<key>`,
            `structured_output_model`).
        on_code_change: what becomes of a run that began when the agent had other tools or sub-agents: "wait" for a
            worker that has that agent, or "continue" with this one.

    Every verb takes `run_id`, the run's identity: the same id and input again attach to the same run; default: a new
    one. And `session_id`, the conversation; default: the agent's own, as natively. Runs in one session come one after
    the other. All other arguments are the native ones.

    Raises:
        ConfigurationError: another runner of the process has this name.
        NotSupported: the agent has a part that would not be durable, such as a session manager.
    """

    _wraps, _kind = (Agent,), "a strands.Agent"

    def __call__(
        self, prompt: Any = None, *, run_id: str | None = None, session_id: str | None = None, **keywords: Any
    ) -> AgentResult:
        """As natively, in a durable run. What the agent raises is raised."""
        return self._call(prompt, run_id, session_id, _checked(keywords))

    async def invoke_async(
        self, prompt: Any = None, *, run_id: str | None = None, session_id: str | None = None, **keywords: Any
    ) -> AgentResult:
        """As natively, in a durable run; the agent runs in the caller's task."""
        return await self._acall(prompt, run_id, session_id, _checked(keywords))

    async def stream_async(
        self, prompt: Any = None, *, run_id: str | None = None, session_id: str | None = None, **keywords: Any
    ) -> AsyncIterator[Any]:
        """As natively, in a durable run: the agent goes on when the next event is asked for.

        Leaving the loop early stops the agent as natively and ends the run `cancelled`.
        """
        events = self._stream(prompt, run_id, session_id, _checked(keywords))
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def start(
        self, prompt: Any = None, *, run_id: str | None = None, session_id: str | None = None, **keywords: Any
    ) -> Run:
        """Queue a run for any worker that has this agent, and return at once.

        Raises:
            NotRecoverable: an argument exists only in this process, such as a client in `invocation_state`.
        """
        return self._start(prompt, run_id, session_id, _checked(keywords))

    def messages_of(self, session_id: str | None = None) -> list[Any]:
        """The messages of a session after its last run; default: the agent's own conversation."""
        decoded: list[Any] = self.durable.codec.decode(self._known(session_id).messages[""])
        return decoded

    def state_of(self, session_id: str | None = None) -> AgentState:
        """A copy of the agent's state in a session after its last run."""
        return AgentState(self.durable.codec.decode(self._known(session_id).rest[""]["state"]))

    @property
    def messages(self) -> list[Any]:
        """The messages of the agent's own conversation."""
        return self.messages_of()

    @property
    def state(self) -> AgentState:
        """A copy of the agent's state in its own conversation."""
        return self.state_of()


class DurableMultiAgent(_Durable[MultiAgentResult]):
    """The durable form of a `Graph` or `Swarm`, nested ones too. Arguments and verbs are those of `DurableAgent`.

    Nodes, edges and results come in the order in which nodes were added, whatever the order of hashes and arrival.
    """

    _wraps, _kind = (Graph, Swarm), "a Graph or Swarm of strands.multiagent"

    def __call__(
        self,
        task: Any,
        invocation_state: dict[str, Any] | None = None,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
    ) -> MultiAgentResult:
        """As natively, in a durable run."""
        return self._call(task, run_id, session_id, {"invocation_state": invocation_state})

    async def invoke_async(
        self,
        task: Any,
        invocation_state: dict[str, Any] | None = None,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
    ) -> MultiAgentResult:
        """As natively, in a durable run, in the caller's task."""
        return await self._acall(task, run_id, session_id, {"invocation_state": invocation_state})

    async def stream_async(
        self,
        task: Any,
        invocation_state: dict[str, Any] | None = None,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Any]:
        """As natively, in a durable run; see `DurableAgent.stream_async`."""
        events = self._stream(task, run_id, session_id, {"invocation_state": invocation_state})
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()

    def start(
        self,
        task: Any,
        invocation_state: dict[str, Any] | None = None,
        *,
        run_id: str | None = None,
        session_id: str | None = None,
    ) -> Run:
        """Queue a run for any worker that has this graph or swarm, and return at once."""
        return self._start(task, run_id, session_id, {"invocation_state": invocation_state})


def _is_response(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(item, dict) and _RESPONSE in item for item in prompt)
    )


def _checked(keywords: dict[str, Any]) -> dict[str, Any]:
    if keywords.get("idempotency_token") is not None:
        raise NotSupported("idempotency_token= is not supported: run_id= does what it does, for ever")
    return keywords


def _encodes(codec: Any, value: Any) -> bool:
    try:
        codec.encode(value)
    except EncodingError:
        return False
    return True
