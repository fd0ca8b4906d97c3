"""`DurableCrew`: a crew whose runs finish, however often their process dies. Each run has a copy of the crew."""

import asyncio
from collections.abc import Sequence
from typing import Any, Unpack

from crewai.crews.crew_output import CrewOutput
from crewai.types.usage_metrics import UsageMetrics

from .._core import RUN, SCOPE, Options, Request, Run, default_name, logger
from .._core.errors import ConfigurationError, NotSupported
from ._copies import copy_of_crew
from ._private import Crew
from ._runner import CrewAIRunner, Inputs
from ._shape import structure_of_crew, tools_of_crew
from ._values import codec_of, types_of_crew


class DurableCrew(CrewAIRunner):
    """The durable form of a crew.

    Args:
        crew: it is copied for each run, and stays as it is.
        name: unique in the process and the same after a restart. Default: `<module or script>.<crew's name>`.
        types: classes that may be stored beside CrewAI's own and those that tasks and tools declare: pydantic models,
            dataclasses, enums.
        at_most_once: names of tools that are not run again when a crash has left their outcome unknown: the run waits,
            and `Run.answer` says what became of them.
        restore: `restore(run)` gives back inputs that could not be recorded, when a run goes on without its caller: a
            mapping with the names from the error that says so (`inputs.<name>`, `input_files`).
        on_code_change: what becomes of a run that began when the crew had other agents, tasks or tools: "wait" for a
            worker that has that crew, or "continue" with this one.

    Raises:
        NotSupported: the crew streams, or trains.
        ConfigurationError: another runner of the process has this name.
    """

    def __init__(
        self,
        crew: Crew,
        name: str | None = None,
        *,
        types: Sequence[type] = (),
        **options: Unpack[Options],
    ) -> None:
        if not isinstance(crew, Crew):
            raise ConfigurationError(f"DurableCrew wraps a Crew, not a {type(crew).__qualname__}")
        if crew.stream:
            raise NotSupported(
                "a crew with stream=True is not supported yet: leave it out; Run.steps() tells how far a run is"
            )
        if type(crew) is not Crew:
            raise NotSupported(
                f"a {type(crew).__qualname__}, which derives from Crew, is not supported: each run has a copy of the "
                f"crew, and what of its own it writes to would be shared"
            )
        self.crew = crew
        self._usage_metrics: UsageMetrics | None = None
        super().__init__(
            name or default_name(crew.name or "crew"),
            codec_of([*types_of_crew(crew), *types]),
            **options,
        )

    def fingerprint(self) -> dict[str, Any]:
        return structure_of_crew(self.crew)

    def _make(self) -> Crew:
        return copy_of_crew(self.crew)

    async def _arun(self, native: Any, verb: str, inputs: Inputs, keywords: dict[str, Any]) -> Any:
        if verb == "akickoff":
            return await native.akickoff(inputs, **keywords)
        run = RUN.get()
        above = SCOPE.get() or (run.top if run is not None else None)
        assert above is not None

        def in_thread() -> Any:  # as natively; the caller does nothing but wait for it
            with above.lent():
                return native.kickoff(inputs, **keywords)

        return await asyncio.to_thread(in_thread)

    # -- verbs

    def kickoff(
        self,
        inputs: Inputs = None,
        input_files: Any = None,
        from_checkpoint: Any = None,
        *,
        run_id: str | None = None,
    ) -> Any:
        """As `Crew.kickoff`.

        Args:
            inputs, input_files: as natively.
            from_checkpoint: not supported.
            run_id: identity of the run: called again with it, the run's result is returned and nothing is executed.
                Without it each call is a new run.

        Raises:
            RunWaiting: a task asks for human input; answer it with `Run.answer`.
        """
        return self._used(self.call(self._opened("kickoff", inputs, input_files, from_checkpoint), run_id))

    async def kickoff_async(
        self,
        inputs: Inputs = None,
        input_files: Any = None,
        from_checkpoint: Any = None,
        *,
        run_id: str | None = None,
    ) -> Any:
        """As `Crew.kickoff_async`: `kickoff` in a thread."""
        request = self._opened("kickoff_async", inputs, input_files, from_checkpoint)
        return self._used(await self.acall(request, run_id))

    async def akickoff(
        self,
        inputs: Inputs = None,
        input_files: Any = None,
        from_checkpoint: Any = None,
        *,
        run_id: str | None = None,
    ) -> Any:
        """As `Crew.akickoff`: tasks are awaited."""
        request = self._opened("akickoff", inputs, input_files, from_checkpoint)
        return self._used(await self.acall(request, run_id))

    def start(
        self,
        inputs: Inputs = None,
        input_files: Any = None,
        *,
        run_id: str | None = None,
        is_async: bool = False,
    ) -> Run:
        """Queue a run for any worker that has this crew, and return at once.

        Args:
            inputs, input_files, run_id: as `kickoff`.
            is_async: whether workers drive it as `akickoff`.

        Raises:
            NotRecoverable: an input exists only in this process.
        """
        verb = "akickoff" if is_async else "kickoff"
        return self.submit(self._opened(verb, inputs, input_files), run_id)

    def kickoff_for_each(
        self, inputs: Sequence[dict[str, Any]], input_files: Any = None, *, run_id: str | None = None
    ) -> list[Any]:
        """As natively; each item is a run of its own: `<run_id>/0`, `<run_id>/1`, …"""
        each = enumerate(inputs)
        return self._used_by_all(
            [self.kickoff(item, input_files, run_id=_item(run_id, number)) for number, item in each]
        )

    async def kickoff_for_each_async(
        self, inputs: Sequence[dict[str, Any]], input_files: Any = None, *, run_id: str | None = None
    ) -> list[Any]:
        """As natively, side by side; runs as in `kickoff_for_each`."""
        each = enumerate(inputs)
        runs = [self.kickoff_async(item, input_files, run_id=_item(run_id, number)) for number, item in each]
        return self._used_by_all(await asyncio.gather(*runs))

    async def akickoff_for_each(
        self, inputs: Sequence[dict[str, Any]], input_files: Any = None, *, run_id: str | None = None
    ) -> list[Any]:
        """As natively, side by side; runs as in `kickoff_for_each`."""
        each = enumerate(inputs)
        runs = [self.akickoff(item, input_files, run_id=_item(run_id, number)) for number, item in each]
        return self._used_by_all(await asyncio.gather(*runs))

    def _opened(self, verb: str, inputs: Inputs, input_files: Any, from_checkpoint: Any = None) -> Request:
        self._check_at_most_once()
        keywords = {"input_files": input_files, "from_checkpoint": from_checkpoint}
        return self._request(verb, inputs, keywords, None)

    def _check_at_most_once(self) -> None:
        """Tools may be given to agents until the call. One that is called by another tool's code stands nowhere."""
        there = tools_of_crew(self.crew)
        unknown = {name for name in self.at_most_once - (there or set()) if not name.startswith("memory.")}
        if there is not None and unknown:
            logger.warning(
                "%s: no agent or task of the crew has a tool named %s (at_most_once); there are %s",
                self.name,
                ", ".join(sorted(unknown)),
                ", ".join(sorted(there)) or "none",
            )

    # -- what a crew's users read

    @property
    def agents(self) -> list[Any]:
        """The crew's."""
        return self.crew.agents

    @property
    def tasks(self) -> list[Any]:
        """The crew's, as they were given: what a task has put out is in the output of its run."""
        return self.crew.tasks

    @property
    def usage_metrics(self) -> UsageMetrics | None:
        """What the last run whose output was returned here has used, or the last batch; None before."""
        return self._usage_metrics

    def _used(self, output: Any) -> Any:
        if isinstance(output, CrewOutput):  # and nothing that a callback has made of it
            self._usage_metrics = output.token_usage
        return output

    def _used_by_all(self, outputs: list[Any]) -> list[Any]:
        total = UsageMetrics()
        for output in outputs:
            if isinstance(output, CrewOutput):
                total.add_usage_metrics(output.token_usage)
        self._usage_metrics = total
        return outputs


def _item(run_id: str | None, number: int) -> str | None:
    return None if run_id is None else f"{run_id}/{number}"
