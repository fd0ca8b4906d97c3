"""Steps: a body runs once ever under its path, and its record is served afterwards."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

import durable_agents
from core.harness import crash
from durable_agents import DurableError, errors, idempotency_key, runs
from durable_agents._core import RUN, Usage, astep, begin, inside, is_replaying, scope, step
from plain import Plain, Steer

pytestmark = pytest.mark.usefixtures("sqlite")
Agent = Callable[..., Plain]


class Calls(list[Any]):
    """A tool that counts what it was called with."""

    def __call__(self, *given: Any) -> Any:
        self.append(given[0] if given else None)
        return given[0] if given else len(self)


def paths(run_id: str) -> list[str]:
    return [s.path for s in runs.get(run_id).steps()]


def replay(runner: Plain, run_id: str, input: Any = None) -> Any:
    """The result of the run when a crash takes its end, and it is driven again over its records."""
    crash(run_id)
    return runner.run(input, run_id=run_id)


# -- once


def test_a_finished_step_is_served_from_its_record(agent: Agent) -> None:
    calls = Calls()
    runner = agent(lambda _: [step("tool", "a", lambda: calls("A")), step("model", "b", lambda: calls("B"))])
    assert runner.run(run_id="once") == ["A", "B"]
    assert replay(runner, "once") == ["A", "B"]
    assert calls == ["A", "B"]
    assert paths("once") == ["tool:a", "model:b"]


def test_outside_a_run_a_step_is_a_plain_call() -> None:
    assert step("tool", "a", lambda: 1) == 1
    assert asyncio.run(astep("tool", "a", lambda: asyncio.sleep(0, 2))) == 2
    with scope("x"):
        assert step("tool", "a", lambda: 3) == 3


def test_sequential_uses_of_one_path_are_numbered(agent: Agent) -> None:
    calls = Calls()
    runner = agent(lambda _: [step("tool", "a", calls) for _ in range(3)])
    assert runner.run(run_id="repeat") == [1, 2, 3]
    assert paths("repeat") == ["tool:a", "tool:a#2", "tool:a#3"]
    assert replay(runner, "repeat") == [1, 2, 3]
    assert len(calls) == 3


def test_a_crash_between_repeats_continues_with_the_next_one(agent: Agent) -> None:
    calls = Calls()
    runner = agent(lambda _: [step("tool", "a", calls) for _ in range(3)])
    runner.run(run_id="between")
    crash("between", after=2)
    assert runner.run(run_id="between") == [1, 4, 5]


def test_the_same_name_at_once_never_swaps_results(agent: Agent) -> None:
    """DBOS numbers steps in call order: its gather of equal names returned [c, b, a] for [a, b, c]."""
    calls = Calls()

    async def lookup(city: str) -> str:
        await asyncio.sleep({"a": 0.06, "b": 0.03, "c": 0.0}[city])
        return str(calls(city)).upper()

    async def body(order: str) -> list[str]:
        found = await asyncio.gather(*(astep("tool", "f", lambda c=c: lookup(c), input=c) for c in order))
        return sorted(found) if order != "abc" else found

    runner = agent(body)
    assert asyncio.run(runner.arun("abc", run_id="swap")) == ["A", "B", "C"]
    assert calls == ["c", "b", "a"]
    crash("swap")
    assert asyncio.run(runner.arun("abc", run_id="swap")) == ["A", "B", "C"]
    assert len(calls) == 3


def test_the_same_name_at_once_with_keys_of_the_framework(agent: Agent) -> None:
    calls = Calls()

    async def lookup(key: str) -> str:
        await asyncio.sleep({"1": 0.03, "2": 0.0}[key])
        return str(calls(key))

    async def body(_: None) -> list[str]:
        return await asyncio.gather(*(astep("tool", "f", lambda k=k: lookup(k), key=k) for k in "12"))

    runner = agent(body)
    assert asyncio.run(runner.arun(run_id="keys")) == ["1", "2"]
    crash("keys")
    assert asyncio.run(runner.arun(run_id="keys")) == ["1", "2"]
    assert len(calls) == 2
    assert sorted(paths("keys")) == ["tool:f:1", "tool:f:2"]


def test_the_same_name_in_threads_never_swaps_results(agent: Agent) -> None:
    calls = Calls()

    def lookup(city: str) -> str:
        time.sleep({"a": 0.05, "b": 0.02, "c": 0.0}[city])
        return str(calls(city)).upper()

    def body(_: None) -> list[str]:
        with ThreadPoolExecutor(3) as pool:
            started = [
                pool.submit(copy_context().run, step, "tool", "f", lambda c=c: lookup(c), input=c)
                for c in "abc"
            ]
            return [future.result() for future in started]

    runner = agent(body)
    assert runner.run(run_id="threads") == ["A", "B", "C"]
    assert replay(runner, "threads") == ["A", "B", "C"]
    assert len(calls) == 3


def test_another_thread_without_key_and_input_is_an_error(agent: Agent) -> None:
    def body(_: None) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(copy_context().run, step, "tool", "f", lambda: 1).result()

    with pytest.raises(errors.ConcurrentPathError, match="neither a key nor an input"):
        agent(body).run()


def test_one_path_at_once_is_an_error(agent: Agent) -> None:
    async def body(_: None) -> list[int]:
        async def tool(delay: float, result: int) -> int:
            await asyncio.sleep(delay)
            return result

        calls = [astep("tool", "f", lambda v=v: tool(0.02 * v, v), key="same") for v in (2, 1)]
        return await asyncio.gather(*calls)

    with pytest.raises(errors.ConcurrentPathError):
        asyncio.run(agent(body).arun())


@pytest.mark.parametrize("key", ["same", ""], ids=["key", "own task"])
def test_one_path_at_once_ends_the_run_whatever_the_framework_makes_of_it(agent: Agent, key: str) -> None:
    calls = Calls()

    def body(_: None) -> str:
        call = begin("tool", "f", key=key)
        assert call is not None
        with call.running(), inside(call.scope):
            try:
                step("tool", "f", calls, key=key)
            except Exception as error:
                return f"told the model: {error}"
        return "unreachable"

    runner, run_id = agent(body), f"at-once-{key}"
    with pytest.raises(errors.ConcurrentPathError, match="give each a key of its own"):
        runner.run(run_id=run_id)
    assert calls == []
    assert isinstance(runs.get(run_id).error, errors.ConcurrentPathError)


def test_other_threads_and_tasks_without_input_end_the_run_too(agent: Agent) -> None:
    async def body(_: None) -> str:
        async def tool() -> int:
            return 1

        found = await asyncio.gather(*(astep("tool", "f", tool) for _ in range(2)), return_exceptions=True)
        return f"told the model: {found}"

    with pytest.raises(errors.ConcurrentPathError):
        asyncio.run(agent(body).arun(run_id="tasks"))
    assert runs.get("tasks").status == "failed"


# -- paths


def test_steps_nest_and_scopes_prefix(agent: Agent) -> None:
    def body(_: None) -> Any:
        with scope("researcher"):
            found = step("node", "plan", lambda: step("tool", "search", lambda: 1, key="c1"), leaf=False)
        with scope("researcher"):
            again = step("tool", "search", lambda: 2)
        return [found, again]

    runner = agent(body)
    assert runner.run(run_id="nest") == [1, 2]
    assert paths("nest") == [
        "researcher/node:plan/tool:search:c1",
        "researcher/node:plan",
        "researcher#2/tool:search",
    ]
    assert replay(runner, "nest") == [1, 2]


def test_a_container_that_was_killed_runs_again_over_its_finished_steps(agent: Agent) -> None:
    calls = Calls()
    runner = agent(
        lambda _: step("node", "n", lambda: [step("tool", t, lambda t=t: calls(t)) for t in "ab"], leaf=False)
    )
    runner.run(run_id="container")
    crash("container", after=2)
    assert runner.run(run_id="container") == ["a", "b"]
    assert calls == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("x", ""), ("x#2", "")),
        (("a", "b"), ("a:b", "")),
        (("a", "b:c"), ("a:b", "c")),
        (("a@2", ""), ("a", "@2")),
        (("a", ""), ("a", "#2")),
    ],
)
def test_different_steps_never_share_a_path(
    agent: Agent, one: tuple[str, str], other: tuple[str, str]
) -> None:
    """Names come from models and users: a tool may be called `x#2`."""

    def body(_: None) -> list[str]:
        first = [step("tool", one[0], lambda: "one", key=one[1]) for _ in range(2)]
        return [*first, step("tool", other[0], lambda: "other", key=other[1])]

    assert agent(body).run() == ["one", "one", "other"]


def test_a_nested_path_is_not_a_name_with_a_slash(agent: Agent) -> None:
    runner = agent(
        lambda _: [
            step("node", "n", lambda: step("tool", "t", lambda: "inner"), leaf=False),
            step("node", "n/tool:t", lambda: "outer"),
        ]
    )
    assert runner.run() == ["inner", "outer"]


def test_what_separates_parts_of_a_path_is_escaped_in_names(agent: Agent) -> None:
    agent(lambda _: step("tool", "a/b:c#2@3%\n\0", lambda: 1, key="k:1")).run(run_id="escaped")
    assert paths("escaped") == ["tool:a%2Fb%3Ac%232%403%25%0A%00:k%3A1"]
    assert runs.get("escaped").steps()[0].name == "a/b:c#2@3%\n\0"


NAMES = {
    "zero": "zero\0byte",
    "surrogate": "lone\ud800surrogate",
    "feed": "line\nfeed",
    "é☃": "é☃😀",
    "long": "x" * 5000,
}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_a_path(agent: Agent, name: str) -> None:
    calls = Calls()
    runner = agent(lambda _: step("tool", NAMES[name], lambda: calls("done"), key=NAMES[name]))
    try:
        assert runner.run(run_id=f"name-{name}") == "done"
        assert replay(runner, f"name-{name}") == "done"
    finally:
        runs.get(f"name-{name}").cancel()
    assert calls == ["done"]


# -- errors


class OddConstructor(Exception):
    def __init__(self, response: str, *, code: int) -> None:
        super().__init__(f"{code}: {response}")
        self.code = code


class OddNew(Exception):
    def __new__(cls, response: str, code: int) -> "OddNew":
        return super().__new__(cls, response, code)

    def __init__(self, response: str, code: int) -> None:
        super().__init__(f"{code}: {response}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(runner: Plain, run_id: str) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  its type is what the tests look at
        runner.run(run_id=run_id)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        KeyError("key"),
        OddConstructor("slow down", code=429),
        OddNew("slow down", 429),
        FileNotFoundError(2, "No such file", "/missing"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ExceptionGroup("two", [ValueError("one"), TypeError("two")]),
        ImportError("no module", name="missing", path="/p"),
        StopAsyncIteration(3),
        Exception(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_as_its_own_type(agent: Agent, error: Exception) -> None:
    calls = Calls()

    def tool() -> None:
        calls()
        raise error

    def body(_: None) -> str:
        try:
            step("tool", "a", tool)
        except Exception as caught:
            seen = f"{type(caught).__name__}: {caught}"
            if isinstance(caught, OSError):
                seen += f" {caught.errno} {caught.filename}"
            if isinstance(caught, ExceptionGroup):
                seen += f" {[repr(e) for e in caught.exceptions]}"
            if isinstance(caught, OddConstructor):
                seen += f" {caught.code}"
            return seen
        raise AssertionError("unreachable")

    runner, run_id = agent(body), f"error-{type(error).__name__}"
    first = runner.run(run_id=run_id)
    assert replay(runner, run_id) == first
    assert len(calls) == 1


def test_a_failed_run_raises_its_error_again(agent: Agent) -> None:
    def body(_: None) -> None:
        raise OddConstructor("slow down", code=429)

    runner = agent(body)
    assert isinstance(raised(runner, "fails"), OddConstructor)
    again = raised(runner, "fails")
    assert isinstance(again, OddConstructor)
    assert (str(again), again.code) == ("429: slow down", 429)
    assert runs.get("fails").status == "failed"
    assert isinstance(runs.get("fails").error, OddConstructor)


def test_an_error_without_text_is_recorded(agent: Agent) -> None:
    def body(_: None) -> None:
        step("tool", "a", lambda: (_ for _ in ()).throw(Unprintable()))

    assert isinstance(raised(agent(body), "unprintable"), Unprintable)
    assert "whose text raises RuntimeError" in str(runs.get("unprintable").steps()[0].error)


def test_an_error_of_an_unknown_type_is_a_recorded_error(agent: Agent) -> None:
    calls = Calls()

    def tool() -> None:
        calls()
        raise type("ProviderError", (Exception,), {"__module__": "provider.gone"})("no credit")

    def body(_: None) -> str:
        try:
            step("tool", "a", tool)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        raise AssertionError("unreachable")

    runner = agent(body)
    assert runner.run(run_id="unknown-type") == "ProviderError: no credit"
    assert replay(runner, "unknown-type") == "RecordedError: provider.gone:ProviderError: no credit"
    assert len(calls) == 1


def test_an_error_a_container_passes_on_is_recorded_for_it_too_after_a_replay(agent: Agent) -> None:
    def tool() -> None:
        raise type("ProviderError", (Exception,), {"__module__": "provider.gone"})("no credit")

    def body(_: None) -> str:
        try:
            step("node", "n", lambda: step("tool", "a", tool), leaf=False)
        except Exception:
            return "handled"
        raise AssertionError("unreachable")

    runner = agent(body)
    runner.run(run_id="passes-on")
    crash("passes-on", after=2)
    runner.run(run_id="passes-on")
    assert paths("passes-on") == ["node:n/tool:a", "node:n"]


def test_what_the_framework_steers_with_is_no_error(agent: Agent) -> None:
    calls = Calls()

    def tool() -> None:
        calls()
        raise Steer

    def body(_: None) -> str:
        try:
            step("node", "a", tool)
        except Steer:
            return "steered"
        raise AssertionError("unreachable")

    runner = agent(body)
    assert runner.run(run_id="steer") == "steered"
    assert paths("steer") == []
    replay(runner, "steer")
    assert len(calls) == 2


# -- results that are no data


def test_an_opaque_container_runs_again_over_its_steps(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()

    def node() -> Any:
        step("tool", "t", calls)
        return object()

    runner = agent(lambda _: step("node", "n", node, leaf=False) is not None)
    assert runner.run(run_id="opaque") is True
    assert "node:n" in caplog.text
    assert "builtins.object" in caplog.text
    assert replay(runner, "opaque") is True
    assert len(calls) == 1


def test_an_opaque_leaf_goes_on_live_and_stops_a_replay(agent: Agent) -> None:
    calls = Calls()
    runner = agent(lambda _: step("tool", "t", lambda: (calls(), object())[1]) is not None)
    assert runner.run(run_id="leaf") is True
    with pytest.raises(errors.ResultNotRecorded, match=r"builtins\.object"):
        replay(runner, "leaf")
    assert len(calls) == 1
    assert runs.get("leaf").status == "failed"


def test_a_framework_that_handles_every_error_cannot_hide_a_lost_result(agent: Agent) -> None:
    calls = Calls()

    def body(_: None) -> str:
        try:
            step("tool", "t", lambda: (calls(), object())[1])
        except Exception as error:
            return f"told the model: {error}"
        return "done"

    runner = agent(body)
    assert runner.run(run_id="hidden-leaf") == "done"
    with pytest.raises(errors.ResultNotRecorded):
        replay(runner, "hidden-leaf")
    assert len(calls) == 1


@pytest.mark.parametrize("how", ["task group", "gather"])
def test_what_ends_a_run_reaches_the_caller_as_itself_however_it_was_wrapped(agent: Agent, how: str) -> None:
    argument = ["1"]

    async def tool() -> str:
        return "charged"

    async def body(_: None) -> Any:
        charge = lambda: astep("tool", "charge", tool, input=argument[0], key="k")  # noqa: E731
        if how == "gather":
            return await asyncio.gather(charge(), asyncio.sleep(0), return_exceptions=True) and "ok"
        async with asyncio.TaskGroup() as group:
            group.create_task(charge())
        return "ok"

    runner, run_id = agent(body), f"wrapped-{how}"
    assert asyncio.run(runner.arun(run_id=run_id)) == "ok"
    argument[0] = "2"
    crash(run_id)
    with pytest.raises(errors.DivergedError):
        asyncio.run(runner.arun(run_id=run_id))
    assert isinstance(runs.get(run_id).error, errors.DivergedError)


def deep() -> Any:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize("result", [10**5000, deep()], ids=["huge int", "deep list"])
def test_an_odd_result_never_loses_the_record_of_the_effect(agent: Agent, result: Any) -> None:
    calls = Calls()
    runner = agent(lambda _: step("tool", "t", lambda: (calls(), result)[1]) is not None)
    run_id = f"odd-{type(result).__name__}"
    assert runner.run(run_id=run_id) is True
    assert paths(run_id) == ["tool:t"]
    assert len(calls) == 1


def test_a_usage_that_cannot_be_read_never_loses_the_record(agent: Agent) -> None:
    def broken(_: Any) -> Usage:
        raise KeyError("prompt_tokens")

    runner = agent(lambda _: step("model", "m", lambda: 1, usage=broken))
    assert runner.run(run_id="usage-broken") == 1
    assert paths("usage-broken") == ["model:m"]


@pytest.mark.parametrize("result", [10**5000, deep(), object()], ids=["huge int", "deep list", "object"])
def test_a_run_with_an_odd_result_ends(agent: Agent, result: Any) -> None:
    runner = agent(lambda _: result)
    run_id = f"odd-run-{type(result).__name__}"
    assert runner.run(run_id=run_id) is result
    assert runs.get(run_id).status == "succeeded"


# -- replays that differ


def test_a_tool_with_other_arguments_stops_the_run(agent: Agent) -> None:
    argument, calls = ["1"], Calls()
    runner = agent(lambda _: step("tool", "charge", lambda: calls(1), input=argument[0]))
    runner.run(run_id="diverged")
    argument[0] = "2"
    with pytest.raises(errors.DivergedError, match="tool:charge"):
        replay(runner, "diverged")
    assert calls == [1]


def test_a_framework_that_handles_every_tool_error_cannot_hide_a_divergence(agent: Agent) -> None:
    argument = ["1"]

    def body(_: None) -> str:
        try:
            return str(step("tool", "charge", lambda: "charged", input=argument[0]))
        except Exception as error:
            return f"told the model: {error}"

    runner = agent(body)
    runner.run(run_id="hidden")
    argument[0] = "2"
    with pytest.raises(errors.DivergedError):
        replay(runner, "hidden")


def test_a_model_with_another_prompt_is_served(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    prompt, calls = ["1"], Calls()
    runner = agent(lambda _: step("model", "m", lambda: calls("answer"), input=prompt[0]))
    runner.run(run_id="prompt")
    prompt[0] = "2"
    assert replay(runner, "prompt") == "answer"
    assert calls == ["answer"]
    assert "model:m" in caplog.text


def test_rerun_always_runs_and_is_not_recorded(agent: Agent) -> None:
    calls, inner = Calls(), Calls()

    def handoff() -> None:
        calls()
        step("tool", "inside", inner)

    runner = agent(lambda _: step("tool", "handoff", handoff, effect="rerun"))
    runner.run(run_id="rerun")
    replay(runner, "rerun")
    assert len(calls) == 2
    assert len(inner) == 1
    assert paths("rerun") == ["tool:handoff/tool:inside"]


def test_hooks_can_tell_a_replay(agent: Agent) -> None:
    seen: list[bool] = []

    def body(_: None) -> None:
        seen.append(is_replaying())
        step("tool", "a", lambda: None)
        seen.append(is_replaying())
        step("tool", "b", lambda: None)
        seen.append(is_replaying())

    runner = agent(body)
    runner.run(run_id="hooks")
    assert seen == [False, False, False]
    seen.clear()
    crash("hooks", after=2)
    runner.run(run_id="hooks")
    assert seen == [True, True, False]
    assert is_replaying() is False


# -- idempotency keys


def test_the_key_is_known_only_inside_a_step(agent: Agent) -> None:
    with pytest.raises(DurableError, match="only inside a step"):
        idempotency_key()

    def body(_: None) -> str:
        with scope("node"):
            return idempotency_key()

    with pytest.raises(DurableError, match="only inside a step"):
        agent(body).run()


def test_every_step_has_its_own_key(agent: Agent) -> None:
    def body(_: None) -> list[str]:
        keys = [step("tool", "a", idempotency_key) for _ in range(2)]
        keys += [step("tool", "a", idempotency_key, key=k) for k in "xy"]
        with scope("s"):
            keys.append(step("tool", "a", idempotency_key))
        return [*keys, step("node", "n", lambda: step("tool", "a", idempotency_key))]

    runner = agent(body)
    first, second = runner.run(run_id="own-1"), runner.run(run_id="own-2")
    assert len({*first, *second}) == 12
    assert all(len(key) == 32 for key in first)


def test_the_key_is_the_same_in_every_attempt(agent: Agent) -> None:
    def body(_: None) -> list[str]:
        return [step("tool", "charge", idempotency_key, attempt=n) for n in (1, 2, 3)]

    runner = agent(body)
    assert len(set(runner.run(run_id="attempts"))) == 1
    assert paths("attempts") == ["tool:charge", "tool:charge@2", "tool:charge@3"]
    assert [s.attempts for s in runs.get("attempts").steps()] == [1, 2, 3]


def test_a_retry_of_the_second_call_has_the_key_of_the_second_call(agent: Agent) -> None:
    """With the key of the first call, a payment provider would take the second payment for the first."""

    def body(_: None) -> list[str]:
        first = step("tool", "charge", idempotency_key)
        second = step("tool", "charge", idempotency_key)
        retried = step("tool", "charge", idempotency_key, attempt=2)
        return [first, second, retried]

    first, second, retried = agent(body).run(run_id="second-call")
    assert retried == second != first
    assert paths("second-call") == ["tool:charge", "tool:charge#2", "tool:charge#2@2"]


def test_inside_a_retried_container_the_keys_are_those_of_the_first_try(agent: Agent) -> None:
    def body(_: None) -> list[str]:
        def node() -> str:
            return step("tool", "charge", idempotency_key)

        return [step("node", "n", node, leaf=False, attempt=n) for n in (1, 2)]

    first, second = agent(body).run(run_id="container-retry")
    assert first == second
    assert paths("container-retry") == ["node:n/tool:charge", "node:n", "node:n@2/tool:charge", "node:n@2"]


def test_a_default_is_given_where_there_is_no_key(agent: Agent) -> None:
    assert idempotency_key(default="none") == "none"

    def body(_: None) -> list[str]:
        with scope("node"):
            bare = idempotency_key(default="none")
        return [
            idempotency_key(default="none"),
            bare,
            step("tool", "t", lambda: idempotency_key(default="none")),
        ]

    top, bare, key = agent(body).run()
    assert (top, bare) == ("none", "none")
    assert len(key) == 32


def test_a_scope_inside_a_step_has_a_key(agent: Agent) -> None:
    def tool() -> str:
        with scope("inner"):
            return idempotency_key()

    def body(_: None) -> list[str]:
        return [step("tool", "t", tool), step("tool", "t", idempotency_key)]

    assert len(set(agent(body).run())) == 2


def test_rerun_steps_have_keys_of_their_own(agent: Agent) -> None:
    def body(_: None) -> list[str]:
        return [step("tool", "handoff", idempotency_key, effect="rerun") for _ in range(2)]

    runner = agent(body)
    first = runner.run(run_id="rerun-keys")
    assert len(set(first)) == 2
    assert replay(runner, "rerun-keys") == first


# -- what else a step may be


def test_usage_is_recorded_and_added_up(agent: Agent) -> None:
    used = Usage("gpt", 10, 3, "0.01 USD")
    runner = agent(lambda _: [step("model", "m", lambda: "a", usage=lambda _: used) for _ in range(2)])
    runner.run(run_id="usage")
    run = runs.get("usage")
    assert [s.usage for s in run.steps()] == [used, used]
    assert (run.usage.model, run.usage.input_tokens, run.usage.output_tokens) == ("gpt", 20, 6)


def test_a_streaming_body_is_recorded_by_hand(agent: Agent) -> None:
    calls = Calls()

    def body(_: None) -> list[int]:
        call = begin("model", "stream")
        assert call is not None
        if (record := call.recorded()) is not None:
            served: list[int] = call.value_of(record)
            return served
        with call.running():
            chunks = [calls(n) for n in range(3)]
            RUN.get().journal.commit(call.draft(chunks))  # type: ignore[union-attr]
        return chunks

    runner = agent(body)
    assert runner.run(run_id="stream") == [0, 1, 2]
    assert replay(runner, "stream") == [0, 1, 2]
    assert len(calls) == 3


def test_a_step_in_flight_is_recorded_before_the_run_fails(agent: Agent) -> None:
    done = threading.Event()

    async def slow() -> str:
        await asyncio.sleep(0.2)
        done.set()
        return "slow"

    async def fails() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("sibling")

    async def body(_: None) -> None:
        await asyncio.gather(astep("tool", "slow", slow, key="1"), astep("tool", "bad", fails, key="2"))

    runner = agent(body)
    with pytest.raises(ValueError, match="sibling"):
        asyncio.run(runner.arun(run_id="flight"))
    assert done.is_set()
    assert sorted(paths("flight")) == ["tool:bad:2", "tool:slow:1"]


def test_many_runs_that_fail_at_once_record_what_is_in_flight(agent: Agent) -> None:
    """Settling waits for the steps in flight: it must not take the threads that write their records."""

    async def body(_: None) -> None:
        async def fails() -> None:
            await asyncio.sleep(0.2)
            raise ValueError("sibling")

        await asyncio.gather(
            astep("tool", "slow", lambda: asyncio.sleep(1.0, "slow"), key="1"),
            astep("tool", "bad", fails, key="2"),
        )

    runner = agent(body)

    async def main() -> list[Any]:
        return await asyncio.gather(
            *(runner.arun(run_id=f"many-{n}") for n in range(12)), return_exceptions=True
        )

    started = time.monotonic()
    assert {type(error) for error in asyncio.run(main())} == {ValueError}
    assert time.monotonic() - started < 10
    assert {tuple(sorted(paths(f"many-{n}"))) for n in range(12)} == {("tool:bad:2", "tool:slow:1")}


def test_a_cancelled_caller_of_a_step_does_not_cancel_its_record(agent: Agent) -> None:
    calls = Calls()

    async def body(_: None) -> str:
        task = asyncio.create_task(astep("tool", "t", lambda: asyncio.sleep(0.01, calls("done")), key="k"))
        while not calls:
            await asyncio.sleep(0)
        for _ in range(200):  # somewhere in here its record is being written
            await asyncio.sleep(0.0005)
            if task.done():
                break
            if "tool:t:k" in RUN.get().journal.known:  # type: ignore[union-attr]
                task.cancel()
        return "ok"

    runner = agent(body)
    assert asyncio.run(runner.arun(run_id="record")) == "ok"
    assert paths("record") == ["tool:t:k"]


def test_a_users_dbos_step_inside_a_tool_is_a_plain_call(agent: Agent) -> None:
    from dbos import DBOS

    @DBOS.step()
    def theirs() -> int:
        return 7

    assert agent(lambda _: step("tool", "t", theirs)).run() == 7


def test_launching_needs_no_dbos_of_the_application() -> None:
    from dbos._dbos import _dbos_global_instance

    assert durable_agents.runs.list() is not None
    assert _dbos_global_instance is None


def test_an_error_of_this_library_in_a_tool_is_the_tools_error(agent: Agent) -> None:
    """A tool that has charged, then looks something up and does not find it, has finished."""
    calls = Calls()

    def charge() -> None:
        calls()
        runs.get("no such run")

    def body(_: Any) -> str:
        try:
            step("tool", "charge", charge)
        except errors.RunNotFound as error:
            return str(error)
        raise AssertionError

    runner = agent(body)
    said = runner.run(run_id="r")
    assert "no such run" in said
    assert replay(runner, "r") == said
    assert len(calls) == 1


def test_a_usage_that_cannot_be_written_costs_only_itself(agent: Agent) -> None:
    calls = Calls()
    odd: Any = Usage("m", 1, 2, cost=object())  # type: ignore[arg-type]
    runner = agent(lambda _: step("model", "m", lambda: calls("said"), usage=lambda _: odd))
    assert runner.run(run_id="odd") == replay(runner, "odd") == "said"
    assert calls == ["said"]
    assert runs.get("odd").steps()[0].usage is None
