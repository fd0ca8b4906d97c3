"""`DurableRunner`: an agent whose runs finish, however often their process dies."""

from collections.abc import Iterable, Sequence
from typing import Any

from agents import Agent, RunResult, RunState, TResponseInputItem
from agents.result import RunResultStreaming
from agents.run import RunConfig
from agents.run_config import RunOptions
from typing_extensions import Unpack

from .._core import RUN, Options, Request, Run, default_name, having
from .._core.errors import ConfigurationError, EncodingError, NotSupported, NotWaiting
from . import _approvals
from ._context import refill
from ._private import run as _sdk
from ._results import give_context
from ._runner import STARTED, AgentsRunner, Live, Started, recordable
from ._sessions import check_session, id_of
from ._shape import check_agent, types_of
from ._values import sdk_codec

Input = str | list[TResponseInputItem] | RunState[Any]


class DurableRunner(AgentsRunner):
    """The durable form of `agents.Runner` for one agent. The agent stays as it is; nothing of it is changed or copied.

    Args:
        agent: the agent that runs start with.
        name: unique in the process and the same after a restart. Default: `<module or script>.<agent's name>`.
        types: classes that may be stored in contexts, tool results and outputs beside those that the signatures of the
            agents' tools, guardrails, instructions and outputs name: pydantic models, dataclasses, enums.
        at_most_once: names of function tools that are not run again when a crash has left their outcome unknown: the
            run waits, and `Run.answer` says what became of them.
        restore: `restore(run)` gives back what a run was called with that could not be recorded, when it goes on
            without its caller: a mapping of the verbs' own options (`run_config`, `session`, `context`,
            `error_handlers`), and `hooks` if they are wanted again.
        on_code_change: what becomes of a run that began when the agents had other names, tools or handoffs: "wait" for
            a worker that has those, or "continue" with these.

    Raises:
        ConfigurationError: another runner of the process has this name.
        NotSupported: an agent has a tool that acts here without being a function tool.
    """

    def __init__(
        self,
        agent: Agent[Any],
        name: str | None = None,
        *,
        types: Sequence[type] = (),
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(agent, Agent):
            raise ConfigurationError(f"DurableRunner runs an Agent, not a {type(agent).__qualname__}")
        check_agent(agent)
        self.agent = agent
        super().__init__(name or default_name(agent.name), sdk_codec([*types_of(agent), *types]), **options)

    # -- verbs

    async def run(
        self, input: Input, *, run_id: str | None = None, **options: Unpack[RunOptions[Any]]
    ) -> RunResult:
        """As `Runner.run`, in a durable run.

        Args:
            input: a message or items; or the state of a run that waits, with its tool calls approved or rejected:
                that run goes on.
            run_id: the run's identity: the same id and input again attach to the same run. Default: a new one.
            options: as natively.
        """
        found = self._request(input, dict(options), run_id)
        if isinstance(found, Run):
            return self._to_caller(self._waiting(found), options.get("context"))
        return self._to_caller(await self.acall(*found), options.get("context"))

    def run_sync(
        self, input: Input, *, run_id: str | None = None, **options: Unpack[RunOptions[Any]]
    ) -> RunResult:
        """As `Runner.run_sync`, in a durable run; the agent runs on the library's own event loop. See `run`."""
        found = self._request(input, dict(options), run_id)
        if isinstance(found, Run):
            return self._to_caller(self._waiting(found), options.get("context"))
        return self._to_caller(self.call_home(*found), options.get("context"))

    def run_streamed(
        self, input: Input, *, run_id: str | None = None, **options: Unpack[RunOptions[Any]]
    ) -> RunResultStreaming:
        """As `Runner.run_streamed`, in a durable run that goes on to its end when nobody listens.

        `cancel()` on the result ends the run `cancelled`. The events of a run that is over already cannot be streamed
        again: `run` with the same id gives its result. See `run`.
        """
        found = self._request(input, dict(options), run_id, streams=True)
        if isinstance(found, Run):
            raise NotSupported(f"the state decides nothing that run {found.id!r} waits for")
        with having(STARTED, Started(self, *found)):
            native: Any = _sdk.get_default_agent_runner()
            streamed: RunResultStreaming = native.run_streamed(self.agent, input, **options)
            return streamed

    def start(self, input: Input, *, run_id: str | None = None, **options: Unpack[RunOptions[Any]]) -> Run:
        """Queue a run for any worker that has this runner, and return at once. See `run`.

        Raises:
            NotRecoverable: an option exists only in this process, and the runner has no `restore`.
        """
        if isinstance(input, RunState):
            raise NotSupported(
                "answer a waiting run with durable_agents.runs.get(…).answer(…), or run(state)"
            )
        found = self._request(input, dict(options), run_id)
        assert isinstance(found, tuple)
        return self.submit(*found)

    # -- requests

    def _request(
        self, input: Input, options: dict[str, Any], run_id: str | None, streams: bool = False
    ) -> tuple[Request, str | None] | Run:
        """The request and its run's id; or the run that waits and is decided nothing about."""
        if unknown := options.keys() - RunOptions.__annotations__.keys():
            raise TypeError(f"{type(self).__name__} got an unexpected keyword argument {min(unknown)!r}")
        session = options.get("session")
        if session is not None:
            check_session(session)
        config = options.get("run_config")
        if isinstance(config, RunConfig) and config.sandbox is not None:
            raise NotSupported("run_config.sandbox is not supported: a sandbox is not durable here")
        if isinstance(input, RunState):
            return self._answer(input, options, run_id)
        kept, gone = recordable(self.codec, options)
        try:
            recorded = {"input": self.codec.encode(input), "options": kept}
        except EncodingError as error:
            raise EncodingError(f"the input of run {run_id!r} cannot be recorded: {error}") from error
        thread = id_of(session) if session is not None else None
        observers = ("hooks",) if options.get("hooks") is not None else ()
        live = Live({**options, "input": input})
        request = Request(recorded, thread, live, tuple(gone), observers, incidental={"streams": streams})
        return request, run_id

    def _answer(
        self, state: RunState[Any], options: dict[str, Any], run_id: str | None
    ) -> tuple[Request, str | None] | Run:
        """A state with decisions, for the run that waits for them."""
        if RUN.get() is not None:
            raise NotSupported(
                "run(state) inside a durable run is not supported; answer the run from outside"
            )
        if state.pending_input:
            raise NotSupported("RunState.add_input is not supported; send the input as a run of its own")
        run = Run(run_id) if run_id else self._run_of(state, options.get("session"))
        pauses = self.pauses_of(run.id)
        if not pauses:
            raise NotWaiting(f"run {run.id!r} has asked nothing that a state could answer")
        # The last one, unless the state is sent again and decides what was asked before.
        decided = (_approvals.decisions_of(state, pause.questions) for pause in reversed(pauses))
        decisions = next(filter(None, decided), None)
        if decisions is None and not state.get_interruptions():  # what it decided was used: it attaches
            decisions = dict(pauses[-1].answers.items()) or None
        if decisions is None:
            return run
        if options.get("context") is None and state._context is not None:
            options["context"] = state._context.context
        return Request(None, live=Live({**options, "input": state}, answers=True), answers=decisions), run.id

    def _run_of(self, state: RunState[Any], session: Any) -> Run:
        """The run that waits for the tool calls of the state; or has waited for them, when it is sent again."""
        thread = id_of(session) if session is not None else None
        open_calls = set(_approvals.named(state.get_interruptions()))
        calls = open_calls or _approvals.past_calls(state)
        found: list[Run] = []
        for call in sorted(calls):
            asked = self.runs_asked(call, thread) or self.runs_asked(call)
            found = [run for run in asked if _calls(run.questions) == open_calls] if open_calls else []
            found = found or [run for run in asked if self._has_asked(run, calls, all=bool(open_calls))]
            if found or open_calls:
                break
        if len(found) != 1:
            which = (
                "several runs of this runner wait, or have waited,"
                if found
                else "no run of this runner waits"
            )
            raise NotWaiting(
                f"{which} for the tool calls of this state; say which run it belongs to with run_id="
            )
        return found[0]

    def _has_asked(self, run: Run, calls: set[str], *, all: bool) -> bool:
        """Whether the run has waited for these calls; or for some of them."""
        asked = [_calls(pause.questions) for pause in self.pauses_of(run.id)]
        return any(pause == calls if all else pause <= calls for pause in asked)

    def _waiting(self, run: Run) -> RunResult:
        """What is returned for a state that decides nothing: that the run waits, or what has become of it since."""
        if run.status in ("succeeded", "failed", "cancelled"):
            over: RunResult = run.result()
            return over
        pause = run._pause()
        assert pause is not None
        result: RunResult = self.paused_result(run.id, None, pause)
        return result

    def _to_caller(self, result: RunResult, context: Any) -> RunResult:
        """The result of a run that ended elsewhere, whose changes of the context the caller's own object gets here."""
        wrapper: Any = result.context_wrapper
        if context is None or wrapper.context is context:
            return result
        if wrapper.context is None:
            give_context(result, context, self.codec)
        elif refill(context, wrapper.context):
            wrapper.context = context
        return result


def _calls(questions: Iterable[str]) -> set[str]:
    """The tool calls that are asked about."""
    return {question.partition("#")[0] for question in questions}
