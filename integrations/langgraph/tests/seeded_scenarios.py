"""Scenarios with a bug each; `test_crash_selfcheck.py` says how the crash matrix must complain of it."""

import operator
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from crashmatrix import Resume, Scenario, Turn, World, scenario
from durable_agents.langgraph import DurableGraph, _tasks
from durable_agents.langgraph._saver import DurableSaver

THREAD: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def graph_of(**nodes: Any) -> Any:
    """These nodes, all at once."""
    builder: Any = StateGraph(Log)
    for name, body in nodes.items():
        builder.add_node(name, body)
        builder.add_edge(START, name)
    return builder.compile(checkpointer=InMemorySaver())


def left_behind(app: Any) -> Any:
    return app.get_state(THREAD).values


def say(input: Any) -> Any:
    return lambda app, **run: app.invoke(input, THREAD, **run)


@scenario
def unpinned_answers(world: World) -> Scenario:
    """An answer that is sent again after a crash goes to whoever asks next."""
    _tasks._TaskStep._pin_answers = lambda self: None  # type: ignore[method-assign]

    def ask(state: Any) -> Any:
        first = interrupt("first?")
        second = interrupt("second?")
        world.effect(f"{first}, {second}")
        return {"log": [first, second]}

    return Scenario(
        runner=DurableGraph(graph_of(ask=ask), "agent"),
        turns=[
            Turn("r1", say({"log": []})),
            Resume("r1", say(Command(resume="one"))),
            Resume("r1", say(Command(resume="two"))),
        ],
        show=left_behind,
    )


@scenario
def unfenced_writes(world: World) -> Scenario:
    """What a task leaves that did not finish is written at once, whoever owns the run."""

    def put_writes(self: Any, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if not self._was_recorded(config, writes, task_id):
            self._store().write(self._write_rows(config, writes, task_id, task_path))

    DurableSaver.put_writes = put_writes  # type: ignore[method-assign]

    def act(name: str) -> Any:
        def body(state: Any) -> Any:
            world.effect(name)
            return {"log": [name]}

        return body

    app = DurableGraph(graph_of(a=act("a"), b=act("b")), "agent")
    return Scenario(runner=app, turns=[Turn("r1", say({"log": []}))], show=left_behind)
