"""At-most-once tools: a tool that was cut off does not run again until somebody has said what became of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import durable_agents
from core.harness import Programs, crash, eventually
from durable_agents import Run, RunWaiting, runs
from durable_agents._core import RUN, Pause, astep, engine, step
from durable_agents.errors import AlreadyAnswered, ConfigurationError, RecordedError
from plain import Plain, Steer

Agent = Callable[..., Plain]


class Cut(BaseException):
    """Ends the process, as far as the run can tell."""


def cut_off(runner: Plain, run_id: str = "r") -> Run:
    """A run whose process died inside the tool, after it had taken effect."""
    with pytest.raises(Cut):
        runner.run(run_id=run_id)
    with pytest.raises(RunWaiting) as waiting:
        runner.run(run_id=run_id)
    run = runs.get(run_id)
    assert run.status == "waiting"
    assert waiting.value.questions == run.questions
    return run


@pytest.fixture
def charges() -> list[str]:
    return []


@pytest.fixture
def shop(agent: Agent, launched: str, charges: list[str]) -> Plain:
    """Reserves, charges, mails; the first charge is cut off."""

    def charge() -> str:
        charges.append("charge")
        if len(charges) == 1:
            raise Cut
        return f"receipt {len(charges)}"

    def body(_: None) -> list[Any]:
        step("tool", "reserve", lambda: None)
        try:
            receipt = step("tool", "charge", charge, input='{"amount": 3}')
        except RecordedError as error:
            receipt = f"failed: {error.message}"
        return [receipt, step("tool", "mail", lambda: "sent")]

    return agent(body, at_most_once={"charge"})


def test_the_question_says_what_was_cut_off_and_how_to_answer(shop: Plain, charges: list[str]) -> None:
    run = cut_off(shop)
    ((question, asked),) = run.questions.items()
    assert question == "outcome:tool:charge"
    assert (asked["unknown_outcome"], asked["arguments"]) == ("charge", '{"amount": 3}')
    assert len(asked["idempotency_key"]) == 32
    assert all(word in str(asked["answers"]) for word in ("result", "error", "run again"))
    assert charges == ["charge"]


@pytest.mark.parametrize(
    ("said", "receipt", "count"),
    [
        ({"result": "receipt 7"}, "receipt 7", 1),
        ("run again", "receipt 2", 2),
        ({"error": "declined"}, "failed: declined", 1),
    ],
)
def test_each_answer(shop: Plain, charges: list[str], said: Any, receipt: str, count: int) -> None:
    run = cut_off(shop)
    run.answer(said)
    assert shop.run(run_id="r") == [receipt, "sent"]
    assert len(charges) == count
    assert [s.path for s in run.steps()] == ["tool:reserve", "tool:charge", "tool:mail"]
    crash("r")
    assert shop.run(run_id="r") == [receipt, "sent"]
    assert len(charges) == count


def test_a_tool_that_ran_again_and_was_cut_off_again_is_asked_about_again(
    agent: Agent, launched: str
) -> None:
    calls: list[int] = []

    def charge() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise Cut
        return len(calls)

    runner = agent(lambda _: step("tool", "charge", charge), at_most_once=["charge"])
    engine.current().shun("r")  # the next try is this test's
    run = cut_off(runner)
    run.answer("run again")
    with pytest.raises(Cut):
        runner.run(run_id="r")
    with pytest.raises(RunWaiting):
        runner.run(run_id="r")
    assert list(run.questions) == ["outcome:tool:charge@2"]
    run.answer("run again")
    assert (runner.run(run_id="r"), len(calls)) == (3, 3)


@pytest.mark.parametrize("said", ["yes", None, {}, {"error": 3}, {"result": 1, "error": "x"}, True])
def test_an_answer_that_says_nothing_about_the_outcome_is_refused_and_loses_nothing(
    shop: Plain, charges: list[str], said: Any
) -> None:
    run = cut_off(shop)
    with pytest.raises(ConfigurationError, match="run again"):
        run.answer(said)
    assert run.status == "waiting"
    run.answer({"result": "ok"})
    assert shop.run(run_id="r")[0] == "ok"


def test_two_answers_that_differ(shop: Plain) -> None:
    run = cut_off(shop)
    run.answer({"result": "a"})
    with pytest.raises(AlreadyAnswered):
        run.answer({"result": "b"})
    run.answer({"result": "a"})
    assert shop.run(run_id="r")[0] == "a"


def test_a_crash_outside_of_the_tool_asks_nothing(shop: Plain, charges: list[str]) -> None:
    charges.append("an earlier one")
    assert shop.run(run_id="r") == ["receipt 2", "sent"]
    seqs = durable_agents._core.engine.current().store.query(
        "SELECT function_id, function_name FROM operation_outputs WHERE workflow_uuid = 'r' ORDER BY function_id"
    )
    assert [path for _, path in seqs] == [
        "open", "tool:reserve", "tool:charge@started", "tool:charge", "tool:mail", "close",
    ]  # fmt: skip
    for seq, path in seqs[::-1]:
        if path in ("tool:mail", "tool:charge", "tool:reserve"):
            crash("r", after=seq)
            assert shop.run(run_id="r")[1] == "sent"
    assert runs.get("r").status == "succeeded"


def test_other_tools_and_other_kinds_of_that_name_are_not_marked(agent: Agent, launched: str) -> None:
    cuts: list[str] = []

    def once(name: str) -> str:
        if name not in cuts:
            cuts.append(name)
            raise Cut
        return name

    def body(_: None) -> list[str]:
        return [
            step("model", "charge", lambda: once("model")),
            step("tool", "mail", lambda: once("mail")),
        ]

    runner = agent(body, at_most_once={"charge"})
    for _ in range(2):
        with pytest.raises(Cut):
            runner.run(run_id="r")
    assert runner.run(run_id="r") == ["model", "mail"]


def test_an_error_of_the_tool_itself_is_an_outcome(agent: Agent, launched: str) -> None:
    def charge() -> None:
        raise ValueError("declined")

    runner = agent(lambda _: step("tool", "charge", charge), at_most_once={"charge"})
    with pytest.raises(ValueError, match="declined"):
        runner.run(run_id="r")
    crash("r")
    with pytest.raises(ValueError, match="declined"):
        runner.run(run_id="r")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_asks_somebody_itself_was_not_cut_off(
    agent: Agent, launched: str, is_async: bool
) -> None:
    """The framework's own question ends the tool, which runs again with the answer."""
    begun: list[str] = []

    def charge() -> str:
        begun.append("charge")
        if len(begun) == 1:
            raise Steer
        if len(begun) == 2:
            raise Cut
        return "charged"

    async def acharge() -> str:
        return charge()

    async def abody(_: None) -> str:
        return await astep("tool", "charge", acharge)

    def body(_: None) -> str:
        return step("tool", "charge", charge)

    runner = agent(abody if is_async else body, at_most_once={"charge"})

    def run() -> Any:
        return asyncio.run(runner.arun(run_id="r")) if is_async else runner.run(run_id="r")

    engine.current().shun("r")  # the next try is this test's
    with pytest.raises(Steer):
        run()
    runs.get("r").resume()
    with pytest.raises(Cut):
        run()
    with pytest.raises(RunWaiting):
        run()
    engine.current()._shunned.clear()
    assert begun == ["charge"] * 2, "asked once by itself, then cut off"
    assert list(runs.get("r").questions) == ["outcome:tool:charge"]
    runs.get("r").answer("run again")
    assert runs.get("r").result(timeout=20) == "charged"


def test_two_tools_that_were_cut_off_at_once_are_asked_about_together(agent: Agent, launched: str) -> None:
    begun: list[str] = []

    async def charge(who: str) -> str:
        begun.append(who)
        if len(begun) <= 2:
            await asyncio.sleep(0.05)
            raise Cut
        return who

    async def body(_: None) -> list[str]:
        return await asyncio.gather(
            *(astep("tool", "charge", lambda who=who: charge(who), key=who) for who in "ab")
        )

    runner = agent(body, at_most_once={"charge"})
    with pytest.raises(Cut):
        asyncio.run(runner.arun(run_id="r"))
    with pytest.raises(RunWaiting):
        asyncio.run(runner.arun(run_id="r"))
    run = runs.get("r")
    assert sorted(run.questions) == ["outcome:tool:charge:a", "outcome:tool:charge:b"]
    run.answer({"result": "A"}, "outcome:tool:charge:a")
    with pytest.raises(RunWaiting):
        asyncio.run(runner.arun(run_id="r"))
    run.answer({"result": "B"}, "outcome:tool:charge:b")
    assert asyncio.run(runner.arun(run_id="r")) == ["A", "B"]
    assert begun == ["a", "b"]


def test_a_step_says_itself_that_it_runs_at_most_once(agent: Agent, launched: str) -> None:
    def pay() -> None:
        raise Cut

    runner = agent(lambda _: step("node", "pay", pay, effect="at_most_once"))
    run = cut_off(runner)
    assert list(run.questions) == ["outcome:node:pay"]


def test_a_name_is_not_a_set_of_names(agent: Agent) -> None:
    with pytest.raises(ConfigurationError, match="set of tool names"):
        agent(lambda _: None, at_most_once="charge")


@pytest.mark.parametrize(
    ("said", "result", "count"),
    [
        ('{"result": "receipt"}', '["receipt", "mail"]', 1),
        ('"run again"', '["charge", "mail"]', 2),
        ('{"error": "declined"}', '["declined", "mail"]', 1),
    ],
)
def test_killed_inside_the_tool_and_answered_from_another_process(
    programs: Programs, said: str, result: str, count: int
) -> None:
    assert programs.start("agents", "run", "careful", "r", die="after:charge").ends() == -9
    worker = programs.start("agents", "work")
    worker.until("works")
    durable_agents.launch(programs.database_url, poll=3600)
    try:
        eventually(lambda: runs.get("r").status == "waiting", 10, worker.output)
        assert programs.ledger.effects() == ["reserve", "charge"]
        assert programs.start("agents", "answer", "r", said).ends() == 0
        eventually(lambda: runs.get("r").status == "succeeded", 10, worker.output)
    finally:
        durable_agents.shutdown()
    assert programs.ledger.effects().count("charge") == count
    assert programs.ledger.effects().count("mail") == 1
    assert len(set(programs.ledger.keys("charge"))) == 1
    shown = programs.start("agents", "run", "careful", "r")
    assert shown.ends() == 0
    assert result in shown.output


@pytest.mark.parametrize("where", ["before:reserve", "after:reserve", "before:mail", "after:mail"])
def test_killed_outside_of_the_tool_asks_nothing(programs: Programs, where: str) -> None:
    assert programs.start("agents", "run", "careful", "r", die=where).ends() == -9
    again = programs.start("agents", "run", "careful", "r")
    assert again.ends() == 0, again.output
    assert programs.ledger.effects().count("charge") == 1


def test_a_tool_that_the_framework_stopped_was_not_cut_off(agent: Agent, launched: str) -> None:
    """It asks a person, and is called again with the answer."""
    calls: list[int] = []

    def answers() -> dict[str, Any]:
        run = RUN.get()
        assert run is not None
        return run.answers

    def charge() -> str:
        calls.append(1)
        if not answers():
            raise Steer
        return f"charged, {answers()['q']}"

    def body(_: None) -> Any:
        try:
            return step("tool", "charge", charge)
        except Steer:
            return Pause({"q": "charge?"})

    runner = agent(body, at_most_once={"charge"})
    runner.run(run_id="r")
    run = runs.get("r")
    assert run.questions == {"q": "charge?"}
    run.answer("yes")
    assert (run.result(timeout=10), len(calls)) == ("charged, yes", 2)


def test_a_tool_that_raised_runs_again_when_the_run_is_resumed(agent: Agent, launched: str) -> None:
    calls: list[int] = []

    def charge() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no funds")
        return "charged"

    runner = agent(lambda _: step("tool", "charge", charge), at_most_once={"charge"})
    with pytest.raises(ValueError, match="no funds"):
        runner.run(run_id="r")
    run = runs.get("r")
    run.resume()
    assert (run.result(timeout=10), len(calls)) == ("charged", 2)


def test_an_answer_that_ended_the_run_is_asked_for_again(agent: Agent, launched: str) -> None:
    calls: list[int] = []

    def charge() -> None:
        calls.append(1)
        raise Cut

    runner = agent(lambda _: step("tool", "charge", charge), at_most_once={"charge"})
    run = cut_off(runner)
    run.answer({"error": "declined"})
    eventually(lambda: run.status == "failed")
    run.resume()
    eventually(lambda: run.status == "waiting")
    assert list(run.questions) == ["outcome:tool:charge@2"]
    run.answer({"result": "it was charged after all"})
    assert run.result(timeout=10) == "it was charged after all"
    assert len(calls) == 1


def test_a_result_that_the_agent_cannot_use_is_asked_for_again(agent: Agent, launched: str) -> None:
    runner = agent(
        lambda _: int(step("tool", "charge", lambda: (_ for _ in ()).throw(Cut()))), at_most_once={"charge"}
    )
    run = cut_off(runner)
    run.answer({"result": "not a number"})
    eventually(lambda: run.status == "failed")
    run.resume()
    eventually(lambda: run.status == "waiting")
    run.answer({"result": "7"})
    assert run.result(timeout=10) == 7


def test_a_runner_called_inside_another_ones_run_keeps_its_own(agent: Agent, launched: str) -> None:
    calls: list[int] = []

    def charge() -> None:
        calls.append(1)
        raise Cut

    payments = agent(lambda _: step("tool", "charge", charge), at_most_once={"charge"})
    outer = agent(lambda _: payments.run())
    run = cut_off(outer)
    run.answer({"result": "charged"})
    assert run.result(timeout=10) == "charged"
    assert len(calls) == 1
