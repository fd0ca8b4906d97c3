"""Steps that yield: live part by part, recorded as one step before what is held back is handed out."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import pytest

from core.harness import crash
from durable_agents import errors, idempotency_key, runs
from durable_agents._core import SCOPE, aparts, begin, parts
from plain import Plain, Steer

pytestmark = pytest.mark.usefixtures("sqlite")
Agent = Callable[..., Plain]


class Stream:
    """A stream that is a step, read in either way.

    Args:
        given: its parts; an exception is raised in its place.
        last: from this part on they are held back.
        options: of `parts`.
    """

    def __init__(self, *given: Any, last: Any = None, kind: str = "model", **options: Any) -> None:
        self.given, self.last, self.kind, self.options = given, last, kind, options
        self.began = self.closed = 0
        self.scopes: list[str] = []
        self.keys: list[str] = []

    def body(self) -> Iterator[Any]:
        self.began += 1
        try:
            for part in self.given:
                self.scopes.append(_path())
                self.keys.append(idempotency_key())
                if isinstance(part, BaseException):
                    raise part
                yield part
        finally:
            self.closed += 1

    async def abody(self) -> AsyncGenerator[Any, None]:
        for part in (body := self.body()):
            await asyncio.sleep(0)
            try:
                yield part
            except GeneratorExit:
                body.close()  # type: ignore[attr-defined]
                raise

    def _step(self) -> tuple[Any, list[Any], Callable[[Any], bool], Callable[[], Any]]:
        call = begin(self.kind, "stream", ordered=True)
        assert call is not None
        taken: list[Any] = []

        def take(part: Any) -> bool:
            taken.append(part)
            return self.last is not None and part == self.last

        return call, taken, take, lambda: None if taken and taken[-1] == "asks" else taken

    def read(self, until: Any = None) -> list[Any]:
        """The parts up to this one, or all."""
        call, _, take, result = self._step()
        if (record := call.finished()) is not None:
            return list(_up_to(call.value_of(record), until))
        running = parts(call, self.body(), take, result, **self.options)
        try:
            return list(_up_to(running, until))
        finally:
            running.close()

    async def aread(self, until: Any = None) -> list[Any]:
        call, _, take, result = self._step()
        if (record := await call.afinished()) is not None:
            return list(_up_to(call.value_of(record), until))
        found = []
        async with aclosing(aparts(call, self.abody(), take, result, **self.options)) as running:
            async for part in running:
                found.append(part)
                if part == until:
                    break
        return found


def _path() -> str:
    scope = SCOPE.get()
    return scope.path if scope else ""


def _up_to(given: Iterable[Any], until: Any) -> Iterator[Any]:
    for part in given:
        yield part
        if part == until:
            return


@pytest.fixture(params=["sync", "async"])
def reading(request: pytest.FixtureRequest, agent: Agent) -> Callable[..., Plain]:
    """An agent that reads a stream, as a function and as a coroutine function."""

    def make(stream: Stream, until: Any = None) -> Plain:
        async def aread(_: Any) -> Any:
            return await stream.aread(until)

        return agent(aread if request.param == "async" else lambda _: stream.read(until))

    return make


def call(runner: Plain, run_id: str) -> Any:
    """The result of the run; both kinds of runner share a database."""
    run_id = named(runner, run_id)
    return asyncio.run(runner.arun(run_id=run_id)) if runner._async else runner.run(run_id=run_id)


def named(runner: Plain, run_id: str) -> str:
    return f"{run_id}-{runner.name}"


def test_a_stream_is_recorded_as_one_step_and_served(reading: Callable[..., Plain]) -> None:
    stream = Stream(1, 2, 3)
    runner = reading(stream)
    assert call(runner, "whole") == [1, 2, 3]
    crash(named(runner, "whole"))
    assert call(runner, "whole") == [1, 2, 3]
    assert (stream.began, stream.closed) == (1, 1)
    assert [step.path for step in runs.get(named(runner, "whole")).steps()] == ["model:stream"]


def test_a_part_runs_in_the_steps_scope_and_its_consumer_does_not(agent: Agent) -> None:
    stream = Stream(1, 2)

    def consume(_: Any) -> list[str]:
        step = begin("model", "stream", ordered=True)
        assert step is not None
        return [_path() for _ in parts(step, stream.body(), lambda part: False, lambda: "all")]

    outside = agent(consume).run(run_id="scopes")
    assert (stream.scopes, outside) == (["model:stream", "model:stream"], ["", ""])
    assert len(set(stream.keys)) == 1


def test_the_scope_of_an_async_stream_does_not_leak_either(agent: Agent) -> None:
    stream = Stream(1, 2)

    async def consume(_: Any) -> list[str]:
        step = begin("model", "stream", ordered=True)
        assert step is not None
        return [_path() async for _ in aparts(step, stream.abody(), lambda part: False, lambda: "all")]

    outside = asyncio.run(agent(consume).arun(run_id="ascopes"))
    assert (stream.scopes, outside) == (["model:stream", "model:stream"], ["", ""])


def test_what_is_held_back_comes_after_the_record(reading: Callable[..., Plain]) -> None:
    """Who stops at the last part has had a step that is recorded: it is not asked for anything more."""
    stream = Stream(1, "last", "usage", last="last")
    runner = reading(stream, until="last")
    assert call(runner, "held") == [1, "last"]
    crash(named(runner, "held"))
    stream.given = ()
    assert call(runner, "held") == [1, "last"]
    assert stream.began == 1


def test_a_consumer_that_leaves_early_leaves_no_record(reading: Callable[..., Plain]) -> None:
    stream = Stream(1, 2, 3)
    runner = reading(stream, until=2)
    assert call(runner, "left") == [1, 2]
    assert (runs.get(named(runner, "left")).steps(), stream.closed) == ([], 1)


def test_a_consumer_that_may_leave_early_gets_the_same_part_again(reading: Callable[..., Plain]) -> None:
    stream = Stream(1, 2, 3, may_be_left=True)
    runner = reading(stream, until=2)
    assert call(runner, "kept") == [1, 2]
    crash(named(runner, "kept"))
    assert call(runner, "kept") == [1, 2]
    assert (stream.began, stream.closed) == (1, 1)


def test_an_error_is_recorded_and_raised_again(reading: Callable[..., Plain]) -> None:
    stream = Stream(1, ValueError("broken off"), last=1)
    runner = reading(stream)
    with pytest.raises(ValueError, match="broken off"):
        call(runner, "broken")
    crash(named(runner, "broken"))
    with pytest.raises(ValueError, match="broken off"):
        call(runner, "broken")
    assert (stream.began, stream.closed) == (1, 1)


def test_a_signal_of_the_framework_is_no_record(reading: Callable[..., Plain]) -> None:
    runner = reading(Stream(1, Steer()))
    with pytest.raises(Steer):
        call(runner, "steered")
    assert runs.get(named(runner, "steered")).steps() == []


def test_a_result_of_none_is_no_record(reading: Callable[..., Plain]) -> None:
    """The framework has ended the body, and calls it again."""
    runner = reading(Stream("asks"))
    assert call(runner, "asked") == ["asks"]
    assert runs.get(named(runner, "asked")).steps() == []


def test_around_is_entered_for_each_part(reading: Callable[..., Plain]) -> None:
    inside: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        inside.append("in")
        yield
        inside.append("out")

    assert call(reading(Stream(1, 2, around=around)), "around") == [1, 2]
    assert inside[:4] == ["in", "out", "in", "out"]


def test_a_stream_cut_off_in_an_at_most_once_tool_is_asked_about(agent: Agent) -> None:
    stream = Stream(1, 2, kind="tool")
    runner = agent(lambda _: stream.read(), at_most_once=["stream"])
    runner.run(run_id="careful")
    crash("careful", after=2)  # the mark is there, the record is not
    with pytest.raises(errors.RunWaiting):
        runner.run(run_id="careful")
    runs.get("careful").answer({"result": [1, 2]})
    assert runner.run(run_id="careful") == [1, 2]
    assert stream.began == 1


def test_an_at_most_once_stream_that_asks_runs_again(agent: Agent) -> None:
    stream = Stream("asks", kind="tool")
    runner = agent(lambda _: stream.read(), at_most_once=["stream"])
    assert runner.run(run_id="asking") == ["asks"]
    crash("asking", after=3)
    assert runner.run(run_id="asking") == ["asks"]
    assert stream.began == 2
