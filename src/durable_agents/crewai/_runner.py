"""What the runners of crews and of flows share: one pass of the native verb, and how it is asked for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .._core import Execution, Pause, Request, Runner
from .._core.errors import ConfigurationError, EncodingError, NotSupported
from ._flow import FLOW
from ._private import (
    Crew,
    HumanFeedbackPending,
    SyncHumanInputProvider,
    human_input_provider,
)
from ._scopes import CREW
from ._waits import HumanInput, asked_in, shown

Inputs = dict[str, Any] | None
_INPUT = "inputs."


@dataclass(frozen=True, slots=True)
class Live:
    """What only the calling process has: the arguments of the verb."""

    inputs: Inputs
    keywords: dict[str, Any]


class CrewAIRunner(Runner):
    """What the runners of crews and of flows share: one pass of the native verb, and how it is asked for."""

    framework = "crewai"
    signals = (HumanFeedbackPending,)
    _files: tuple[str, ...] = ("input_files",)

    # -- what the two provide

    def _make(self) -> Any:
        """The crew or flow of one run."""
        raise NotImplementedError

    def _run(self, native: Any, inputs: Inputs, keywords: dict[str, Any]) -> Any:
        return native.kickoff(inputs, **keywords)

    async def _arun(self, native: Any, verb: str, inputs: Inputs, keywords: dict[str, Any]) -> Any:
        raise NotImplementedError

    def check_answer(self, asked: Any, answer: Any) -> None:
        if not isinstance(answer, str):
            raise ConfigurationError(f"feedback is text, not {answer!r:.200}")

    # -- one pass of the native loop

    def is_async(self, execution: Execution) -> bool:
        return bool(execution.incidental["verb"] != "kickoff")

    def drive(self, execution: Execution) -> Any:
        inputs, keywords = self._arguments(execution)
        with _asking_the_run():
            native = self._made(execution)
            return self._outcome(execution, self._run(native, inputs, keywords))

    async def adrive(self, execution: Execution) -> Any:
        inputs, keywords = self._arguments(execution)
        with _asking_the_run():
            native = self._made(execution)
            result = await self._arun(native, execution.incidental["verb"], inputs, keywords)
            return self._outcome(execution, result)

    def nested(self, request: Request) -> Any:
        live: Live = request.live
        return self._run(self._make(), live.inputs, live.keywords)

    async def anested(self, request: Request) -> Any:
        live: Live = request.live
        return await self._arun(self._make(), request.incidental["verb"], live.inputs, live.keywords)

    def _made(self, execution: Execution) -> Any:
        native = self._make()
        execution.memory[CREW if isinstance(native, Crew) else FLOW] = native
        if execution.muted and isinstance(native, Crew):
            native.step_callback = native.task_callback = None
            for task in native.tasks:
                task.callback = None
        return native

    def _outcome(self, execution: Execution, result: Any) -> Any:
        pending = asked_in(execution)
        if not pending:
            return result
        questions = {question: shown(asked) for question, asked in pending.items()}
        return Pause(questions, None, next(iter(pending.values())))

    def _arguments(self, execution: Execution) -> tuple[Inputs, dict[str, Any]]:
        live: Live | None = execution.live
        if live is not None and execution.journal.recorded_before <= 1:
            return None if live.inputs is None else dict(live.inputs), live.keywords
        inputs, keywords = self.codec.decode(execution.input["inputs"]), {}
        keywords = self.codec.decode(execution.input["keywords"])
        given = _by_name(live) if live is not None else execution.restored()
        for name in execution.journal.opening["live"]:
            if name.startswith(_INPUT):
                inputs = {**(inputs or {}), name.removeprefix(_INPUT): given[name]}
            else:
                keywords[name] = given[name]
        return inputs, keywords

    # -- requests

    def _request(self, verb: str, inputs: Inputs, keywords: dict[str, Any], thread: str | None) -> Request:
        if keywords.pop("from_checkpoint", None) is not None:
            raise NotSupported(
                "from_checkpoint= is not supported: a durable run needs no checkpoints, it goes on by itself. "
                "Call the native object for what an earlier checkpoint holds"
            )
        if inputs is not None and not isinstance(inputs, Mapping):
            raise TypeError(f"inputs must be a dict or Mapping, got {type(inputs).__name__}")
        keywords = {name: value for name, value in keywords.items() if value is not None}
        kept, gone = self._recordable(inputs or {})
        kept_keywords, gone_keywords = self._recordable(keywords)
        recorded = {"inputs": None if inputs is None else kept, "keywords": kept_keywords}
        live = Live(None if inputs is None else dict(inputs), keywords)
        names = (*(_INPUT + name for name in gone), *gone_keywords)
        return Request(recorded, thread, live, names, incidental={"verb": verb})

    def _recordable(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        kept, gone = {}, []
        for name, value in values.items():
            try:
                kept[name] = self.codec.encode(value)
            except EncodingError:
                gone.append(name)
        return kept, gone


def _by_name(live: Live) -> dict[str, Any]:
    return {**{_INPUT + name: value for name, value in (live.inputs or {}).items()}, **live.keywords}


@contextmanager
def _asking_the_run() -> Iterator[None]:
    """Whoever asks a person asks the run."""
    # CrewAI's default, which asks at the console, stays in the context once it was used.
    given = human_input_provider.get()
    is_default = given is None or type(given) is SyncHumanInputProvider
    asks = human_input_provider.set(HumanInput()) if is_default else None
    try:
        yield
    finally:
        if asks is not None:
            human_input_provider.reset(asks)
