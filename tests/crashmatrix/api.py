"""What a scenario is written with.

    @scenario
    def three_nodes(world):
        graph = ...                                   # nodes and tools call world.effect("charge 1")
        return Scenario(
            runner=DurableGraph(graph, "three_nodes"),
            native=graph,
            turns=[Turn("r1", lambda app, **run: app.invoke({"order": 55}, **run))],
        )

The function runs anew in every process, as an application's module would. Names and run ids are fixed: a process that
recovers must find what the killed one has left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .world import World


@dataclass(frozen=True, slots=True)
class Turn:
    """A new input, sent with a verb of the runner.

    Args:
        run_id: the run it opens.
        call: `call(app, run_id=…)` uses the runner and returns the verb's result, or an awaitable of it. The native
            agent gets the same call without `run_id`.
        native: another call for the native agent, where it has no such verb.
        attaches: whether the same call, sent again once the run is over, must return the same.
    """

    run_id: str
    call: Callable[..., Any]
    native: Callable[[Any], Any] | None = None
    attaches: bool = True


@dataclass(frozen=True, slots=True)
class Resume:
    """The framework's own way of answering a run that waits; `call` and `native` as in `Turn`."""

    run_id: str
    call: Callable[..., Any]
    native: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`Run.answer` by whichever process has come so far.

    Args:
        run_id: the run that waits.
        value: the answer.
        pick: finds the question's id among the open ones (id → what is asked); None when there is only one.
        native: the framework's own way of giving the same answer, for the native agent.
    """

    run_id: str
    value: Any
    pick: Callable[[dict[str, Any]], str] | None = None
    native: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The cause of a failure is mended, see `World.mend`, and `Run.resume` lets the failed run go on."""

    run_id: str
    native: Callable[[Any], Any] | None = None


Step = Turn | Resume | Answer | Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An agent, and what is said to it.

    Args:
        runner: the durable runner.
        turns: inputs and answers, in order.
        is_async: whether calls are awaited, all on one event loop.
        show: what is left behind, read from the runner and from the native agent (such as the state of a thread).
        native: the agent without the runner. Its results, effects and `show` must be the uncrashed durable run's.
        settle: says what became of a tool that was cut off and may not run again, given what is asked: an answer.
        once: names of effects that such tools have: they never happen again, wherever the process was cut off.
        ordered: whether its effects have one order, which must be the native one: nothing in it happens side by side.
        replays: whether a run that is over can be driven over its records alone. A graph's cannot: its state is in the
            thread's checkpoints, and later turns have moved that on.
        may_fail: whether a run may end in an error; else an uncrashed run that does is a mistake of the scenario.
    """

    runner: Any
    turns: Sequence[Step]
    is_async: bool = False
    show: Callable[[Any], Any] | None = None
    native: Any = None
    settle: Callable[[dict[str, Any]], Any] | None = None
    once: Sequence[str] = ()
    ordered: bool = False
    replays: bool = True
    may_fail: bool = False


Build = Callable[[World], Scenario]


@dataclass(slots=True)
class Registry:
    """The scenarios of the modules loaded so far: name → the function that builds it."""

    found: dict[str, Build] = field(default_factory=dict)


REGISTRY = Registry()


def scenario(build: Build) -> Build:
    """Register a scenario under the function's name."""
    name = build.__name__
    if name in REGISTRY.found:
        raise ValueError(f"there are two scenarios named {name!r}")
    REGISTRY.found[name] = build
    return build
