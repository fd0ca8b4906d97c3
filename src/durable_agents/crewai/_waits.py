"""Waiting for people: `@human_feedback`, `Flow.ask` and tasks with `human_input=True`.

Feedback ends the native loop as CrewAI's own `HumanFeedbackPending` does; the methods that run beside it come to their
end first. `ask` and `human_input` have no such way natively: they block at the console. Here they park the run, and the
direct verb raises `RunWaiting`. A provider of the user's own is asked in their place, once: what it gave is recorded.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from .._core import RUN, SCOPE, Execution, Scope, cut, logger, step
from .._core.errors import EncodingError
from ._flow import MethodRun, current_method
from ._lanes import in_agent_loop
from ._private import (
    Flow,
    FlowPersistence,
    HumanFeedbackPending,
    InputResponse,
    PendingFeedbackContext,
    SyncHumanInputProvider,
    flow_config,
)

FEEDBACK = "crewai.feedback"
"""In `Execution.memory`: questions that flows wait for, question → `PendingFeedbackContext`."""


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    cut(Flow, "_resolve_feedback_provider", _feedback_provider)
    cut(Flow, "_resolve_input_provider", _input_provider)


# -- @human_feedback


def _feedback_provider(native: Callable[..., Any], flow: Any, definition: Any) -> Any:
    given = native(flow, definition)
    method = current_method()
    if method is None or method.flow is not flow:
        return given
    return _Feedback(method, given)


class _Feedback:
    """The provider of one method's feedback in a run: the recorded answer, or a wait."""

    def __init__(self, method: MethodRun, given: Any) -> None:
        self._method, self._given = method, given

    def request_feedback(self, context: PendingFeedbackContext, flow: Any) -> Any:
        run, question = self._method.run, f"{self._method.call.path}/feedback"
        if question in run.answers:
            return run.answers[question]
        pending = HumanFeedbackPending(context)
        if self._given is not None:
            said = self._asked(context, flow)
            if "feedback" in said:
                return said["feedback"]
            pending = HumanFeedbackPending(context, said["callback_info"])
        return self._wait(run, question, pending)

    def _asked(self, context: PendingFeedbackContext, flow: Any) -> dict[str, Any]:
        """What the user's own provider gave: feedback, or the word that it is pending and how it was asked for."""

        def ask() -> dict[str, Any]:
            try:
                feedback = self._given.request_feedback(context, flow)
                if asyncio.iscoroutine(feedback):
                    feedback = asyncio.run(feedback)
            except HumanFeedbackPending as pending:
                return {"callback_info": pending.callback_info}
            return {"feedback": str(feedback)}

        key = self._method.call.path.rpartition("/")[2].partition(":")[2]
        return step("tool", type(self._given).__name__, ask, key=key)

    async def _wait(self, run: Execution, question: str, pending: HumanFeedbackPending) -> str:
        """Raise CrewAI's own signal when everything beside this method has come to its end."""
        if in_agent_loop():  # which would tell the signal to its model, as a tool's error
            return str(run.wait({question: shown(pending)})[question])
        flow = self._method.flow
        await self._method.turns.outlast()
        run.memory.setdefault(FEEDBACK, {})[question] = pending
        if flow.persistence is None:
            flow.persistence = _NoPersistence()  # natively a file in the user's home
        raise pending


class _NoPersistence(FlowPersistence):
    """The pause is a record of the run: CrewAI need not store it."""

    persistence_type: str = "durable_agents"

    def init_db(self) -> None:
        """There is none."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """The state is in the methods' records."""

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        return None


def shown(pending: HumanFeedbackPending) -> dict[str, Any]:
    """What is asked, as JSON data. When it was asked stands in the record of the wait."""
    info = PendingFeedbackContext._make_json_safe(pending.callback_info)
    context = {name: value for name, value in pending.context.to_dict().items() if name != "requested_at"}
    return {**context, "callback_info": info}


def asked_again(question: dict[str, Any]) -> HumanFeedbackPending:
    """The pause as CrewAI has it, from what was recorded of it."""
    return HumanFeedbackPending(PendingFeedbackContext.from_dict(question), question["callback_info"])


def asked_in(run: Execution) -> dict[str, HumanFeedbackPending]:
    """The questions that this pass of the native loop stopped at, in an order that is always the same."""
    return dict(sorted(run.memory.get(FEEDBACK, {}).items()))


# -- Flow.ask


def _input_provider(native: Callable[..., Any], flow: Any) -> Any:
    run, method = RUN.get(), current_method()
    assert run is not None
    given = flow.input_provider or flow_config.input_provider
    return _Input(run, SCOPE.get() or run.top, given, native(flow) if given is not None else None, method)


class _Input:
    """The input provider of a flow in a run."""

    def __init__(
        self, run: Execution, scope: Scope, given: Any, provider: Any, method: MethodRun | None
    ) -> None:
        self._run, self._provider = run, provider
        self._place = scope.use("ask")
        self._question = scope.child(self._place)
        self._method = method.call.name if method is not None else ""

    def request_input(self, message: str, flow: Any, metadata: dict[str, Any] | None = None) -> Any:
        if self._provider is not None:

            def ask() -> Any:
                return self._storable(self._provider.request_input(message, flow, metadata=metadata))

            key = self._place.partition("#")[2] or "1"
            return step("tool", "ask", ask, key=key, codec=self._run.runner.codec)
        asked = {"ask": message, "method": self._method, "metadata": metadata}
        return self._run.wait({self._question: asked})[self._question]

    def _storable(self, given: Any) -> Any:
        """What CrewAI takes of an answer, without metadata that could not be recorded; other answers count as none."""
        if not isinstance(given, InputResponse):
            return given if isinstance(given, str) else None
        answer = InputResponse(given.text, given.metadata)
        try:
            self._run.runner.codec.encode(answer)
        except EncodingError as reason:
            logger.warning("the metadata of an answer to ask() are left out: %s", reason)
            answer.metadata = None
        return answer


# -- tasks with human_input=True


class HumanInput(SyncHumanInputProvider):
    """CrewAI's own provider, asking the run instead of the console: "" accepts the answer, other text is feedback."""

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        return _TaskInput(context).handle_feedback(formatted_answer, context)

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        return await _TaskInput(context).handle_feedback_async(formatted_answer, context)


class _TaskInput(SyncHumanInputProvider):
    """The provider of one agent's loop; each round is a question of its own."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def _prompt_input(self, crew: Any) -> str:  # type: ignore[override]
        run = RUN.get()
        if run is None:
            return SyncHumanInputProvider._prompt_input(crew)
        scope = SCOPE.get() or run.top
        question = scope.child(scope.use("human_input"))
        answer = self._executor.state.current_answer
        asked = {
            "human_input": getattr(self._executor.task, "description", ""),
            "output": str(getattr(answer, "output", "")),
            "answers": ['answer("") accepts the output', "any other text is feedback for the agent"],
        }
        return str(run.wait({question: asked})[question])

    async def _prompt_input_async(self, crew: Any) -> str:  # type: ignore[override]
        return self._prompt_input(crew)
