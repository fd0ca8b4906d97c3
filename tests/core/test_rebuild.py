"""A result that could not be stored is rebuilt, wherever the runner is, by a replay that executes nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from durable_agents import is_replaying, runs
from durable_agents._core import RUN, astep, emit, engine, step
from durable_agents.errors import ConfigurationError, ResultNotRecorded
from plain import Plain

Agent = Callable[..., Plain]


class Report:
    """No durable form."""

    def __init__(self, text: str) -> None:
        self.text = text


def test_it_is_made_again_out_of_the_records(agent: Agent, launched: str) -> None:
    done: list[str] = []
    hooks: list[tuple[bool, bool]] = []

    def body(_: None) -> Report:
        run = RUN.get()
        assert run is not None
        hooks.append((run.muted, is_replaying()))
        emit("begins")
        text = step("model", "m", lambda: done.append("m") or "text")
        return Report(text + step("node", "n", lambda: step("tool", "t", lambda: "!"), leaf=False))

    assert agent(body).run(run_id="r").text == "text!"
    records = len(runs.get("r")._records())
    rebuilt = runs.get("r").result()
    assert (rebuilt.text, done) == ("text!", ["m"])
    assert hooks == [(False, False), (True, True)]
    assert len(runs.get("r")._records()) == records
    assert [event.data for event in runs.get("r").stream()] == ["begins"]


def test_an_attach_gives_it_too(agent: Agent, launched: str) -> None:
    runner = agent(lambda _: Report("x"))
    runner.run(run_id="r")
    assert runner.run(run_id="r").text == "x"


def test_a_container_whose_result_is_odd_too(agent: Agent, launched: str) -> None:
    done: list[int] = []

    def node() -> Report:
        step("tool", "t", lambda: done.append(1))
        return Report("node")

    runner = agent(lambda _: step("node", "n", node, leaf=False))
    runner.run(run_id="r")
    assert (runs.get("r").result().text, done) == ("node", [1])


@pytest.mark.parametrize("inside", [False, True])
def test_in_an_event_loop(agent: Agent, launched: str, inside: bool) -> None:
    async def tool() -> str:
        return "x"

    async def body(_: None) -> Report:
        return Report(await astep("tool", "t", tool, input="its arguments"))

    runner = agent(body)
    asyncio.run(runner.arun(run_id="r"))

    async def ask() -> Any:
        return (await runs.get("r").aresult()).text, runs.get("r").result().text

    assert asyncio.run(ask()) == ("x", "x") if inside else runs.get("r").result().text == "x"


def test_answers_are_given_again(agent: Agent, launched: str) -> None:
    runner = agent(lambda _: Report(RUN.get().wait({"q": 1})["q"]))  # type: ignore[union-attr]
    run = runner.start(run_id="r")
    while run.status != "waiting":
        pass
    run.answer("yes")
    assert run.result(timeout=10).text == "yes"


def test_code_that_changed_since(agent: Agent, launched: str) -> None:
    tools = ["a"]
    done: list[str] = []

    def body(_: None) -> Report:
        for name in tools:
            step("tool", name, lambda name=name: done.append(name))
        return Report("x")

    agent(body).run(run_id="r")
    tools.append("b")
    with pytest.raises(ResultNotRecorded, match="code has changed"):
        runs.get("r").result()
    assert done == ["a"]


def test_a_process_without_the_runner(agent: Agent, launched: str) -> None:
    runner = agent(lambda _: Report("x"))
    runner.run(run_id="r")
    engine.RUNNERS.clear()
    with pytest.raises(ConfigurationError, match=runner.name):
        runs.get("r").result()
