"""`DurableFlow`: a flow whose runs finish, however often their process dies. Each run has a flow of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from .._core import RUN, Execution, Options, Question, Request, Run, default_name
from .._core import run as runs
from .._core.errors import ConfigurationError, NotSupported, RunNotFound
from ._flow import FLOW
from ._private import Flow
from ._runner import CrewAIRunner, Inputs, Live
from ._shape import structure_of_flow
from ._state import apply
from ._values import codec_of, types_of_flow
from ._waits import asked_again


class DurableFlow(CrewAIRunner):
    """The durable form of a flow.

    Args:
        flow: the flow's class, or a function without arguments that makes a new flow; it is called once at once, to
            look at the flow, and once for each run.
        name: unique in the process and the same after a restart. Default: `<module or script>.<name of the class>`.
        types: classes that may be stored beside CrewAI's own, the state's, and those that methods say they return.
        at_most_once, restore, on_code_change: as for `DurableCrew`.

    Raises:
        NotSupported: the flow streams.
        ConfigurationError: it is an instance, or another runner of the process has this name.
    """

    def __init__(
        self,
        flow: type[Flow[Any]] | Callable[[], Flow[Any]],
        name: str | None = None,
        *,
        types: Sequence[type] = (),
        **options: Unpack[Options],
    ) -> None:
        if isinstance(flow, Flow) or not callable(flow):
            raise ConfigurationError(
                f"DurableFlow wraps the class of a flow, or a function that makes one: each run has a flow of its own. "
                f"Pass {type(flow).__name__}, or lambda: {type(flow).__name__}(…)"
            )
        self.flow = flow
        made = flow()
        if not isinstance(made, Flow):
            raise ConfigurationError(f"DurableFlow wraps a Flow, and got a {type(made).__qualname__}")
        if made.stream:
            raise NotSupported(
                "a flow with stream=True is not supported yet: leave it out; Run.steps() tells how far a run is"
            )
        self._structure = structure_of_flow(made)
        super().__init__(
            name or default_name(type(made).__name__),
            codec_of([*types_of_flow(made), *types]),
            **options,
        )

    def fingerprint(self) -> dict[str, Any]:
        return self._structure

    def _make(self) -> Flow[Any]:
        return self.flow()

    async def _arun(self, native: Any, verb: str, inputs: Inputs, keywords: dict[str, Any]) -> Any:
        return await native.kickoff_async(inputs, **keywords)

    # -- results

    def encode_result(self, execution: Execution, result: Any) -> Any:
        flow = execution.memory[FLOW]
        fields = flow._state if isinstance(flow._state, dict) else flow._state.__dict__
        state, gone = self._recordable(fields)
        usage = flow.usage_metrics.model_dump()
        return {"output": self.codec.encode(result), "state": state, "gone": gone, "usage": usage}

    def decode_result(self, data: Any) -> Any:
        return self.codec.decode(data["output"])

    def state(self, run_id: str) -> Any:
        """The state that a run has left: a dict, or the flow's own model; without fields that could not be stored."""
        data = Run(run_id)._closing().value()
        state: Any = self._make()._state
        if isinstance(state, dict):
            state.clear()
        apply(state, [[name, "set", self.codec.decode(value)] for name, value in data["state"].items()])
        return state

    def paused_result(self, run_id: str, request: Any, pause: Question) -> Any:
        """What `kickoff` returns for a flow that waits for feedback: CrewAI's own `HumanFeedbackPending`."""
        first = pause.questions[min(pause.questions)]
        if not isinstance(first, dict) or "method_output" not in first:
            return super().paused_result(run_id, request, pause)
        return asked_again(first)

    # -- verbs

    def kickoff(
        self,
        inputs: Inputs = None,
        input_files: Any = None,
        from_checkpoint: Any = None,
        restore_from_state_id: str | None = None,
        *,
        run_id: str | None = None,
    ) -> Any:
        """As `Flow.kickoff`.

        Args:
            inputs: as natively. Runs with one `id` come one after the other; without it the flow's id is the run's.
            input_files, restore_from_state_id: as natively.
            from_checkpoint: not supported.
            run_id: identity of the run: called again with it, the run's result is returned and nothing is executed.
                Without it each call is a new run.

        Returns:
            The flow's output, or `HumanFeedbackPending` for one that waits.

        Raises:
            RunWaiting: `Flow.ask` waits; answer it with `Run.answer`.
        """
        options = (input_files, from_checkpoint, restore_from_state_id)
        request, run_id = self._opened("kickoff", inputs, options, run_id)
        return self.call(request, run_id)

    async def kickoff_async(
        self,
        inputs: Inputs = None,
        input_files: Any = None,
        from_checkpoint: Any = None,
        restore_from_state_id: str | None = None,
        *,
        run_id: str | None = None,
    ) -> Any:
        """As `Flow.kickoff_async`."""
        options = (input_files, from_checkpoint, restore_from_state_id)
        request, run_id = self._opened("kickoff_async", inputs, options, run_id)
        return await self.acall(request, run_id)

    akickoff = kickoff_async

    def start(
        self,
        inputs: Inputs = None,
        input_files: Any = None,
        *,
        restore_from_state_id: str | None = None,
        run_id: str | None = None,
        is_async: bool = False,
    ) -> Run:
        """Queue a run for any worker that has this flow, and return at once.

        Args:
            inputs, input_files, restore_from_state_id, run_id: as `kickoff`.
            is_async: whether workers drive it on their event loop, as `kickoff_async`.

        Raises:
            NotRecoverable: an input exists only in this process.
        """
        verb = "kickoff_async" if is_async else "kickoff"
        request, run_id = self._opened(verb, inputs, (input_files, None, restore_from_state_id), run_id)
        return self.submit(request, run_id)

    def resume(self, feedback: str = "", flow_id: str | None = None, *, run_id: str | None = None) -> Any:
        """As `Flow.resume`: answer a run that waits for feedback, and drive it on here.

        Args:
            feedback: what the person says.
            flow_id: the flow's id, as `HumanFeedbackPending.context.flow_id` has it. Not needed when one run waits.
            run_id: the run, instead of the flow's id.

        Raises:
            ValueError: no run waits, or several do and none is named.
            AlreadyAnswered: it has got another feedback.
        """
        request, waiting = self._feedback(feedback, flow_id, run_id)
        return self.call(request, waiting)

    async def resume_async(
        self, feedback: str = "", flow_id: str | None = None, *, run_id: str | None = None
    ) -> Any:
        """`resume` for event loops."""
        request, waiting = self._feedback(feedback, flow_id, run_id)
        return await self.acall(request, waiting)

    def from_pending(self, flow_id: str) -> "PendingFlow":
        """As `Flow.from_pending`: the flow that waits, with `resume`, `resume_async` and `pending_feedback`."""
        waiting = self.waiting_run(flow_id)
        if waiting is None:
            raise ValueError(f"No pending feedback found for flow_id: {flow_id}")
        question = waiting[1].questions[min(waiting[1].questions)]
        return PendingFlow(self, flow_id, asked_again(question).context)

    # -- requests

    def _opened(
        self, verb: str, inputs: Inputs, options: tuple[Any, Any, str | None], run_id: str | None
    ) -> tuple[Request, str | None]:
        names = ("input_files", "from_checkpoint", "restore_from_state_id")
        keywords = dict(zip(names, options, strict=True))
        given = (inputs or {}).get("id")
        if RUN.get() is not None:  # a part of that run
            return self._request(verb, inputs, keywords, None if given is None else str(given)), run_id
        request = self._request(verb, inputs, keywords, None)
        run_id = self.fresh_id(request.input) if run_id is None else run_id
        return replace(request, thread=str(given or run_id)), run_id

    def _feedback(self, feedback: str, flow_id: str | None, run_id: str | None) -> tuple[Request, str]:
        if flow_id is None and run_id is None:
            found = runs.list(status="waiting", runner=self.name)
            if len(found) != 1:
                raise ValueError(
                    f"{len(found)} runs of {self.name!r} wait for feedback; say which with flow_id= or run_id="
                )
            run_id = found[0].id
        elif run_id is None:
            assert flow_id is not None
            waiting = self.waiting_run(flow_id)
            run_id = waiting[0] if waiting is not None else flow_id
            try:
                runs.get(run_id)
            except RunNotFound:
                raise ValueError(f"No pending feedback found for flow_id: {flow_id}") from None
        asked = list(runs.get(run_id).questions)
        question = asked[0] if len(asked) == 1 else None  # by the time it arrives another one may be open
        return Request(None, live=Live(None, {}), answers={question: feedback}), run_id


@dataclass(frozen=True, slots=True)
class PendingFlow:
    """A flow that waits for feedback."""

    runner: DurableFlow
    flow_id: str
    pending_feedback: Any

    def resume(self, feedback: str = "") -> Any:
        """See `DurableFlow.resume`."""
        return self.runner.resume(feedback, self.flow_id)

    async def resume_async(self, feedback: str = "") -> Any:
        """See `DurableFlow.resume_async`."""
        return await self.runner.resume_async(feedback, self.flow_id)
