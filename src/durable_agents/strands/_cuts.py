"""The cuts that Strands has no extension point for. Outside of a durable run they call the native code, nothing else.

- A summary that the summarising conversation manager asks the model for is a step.
- The nodes of a graph that become ready together, its execution order and its results are in the order in which the
  nodes were added: natively it is that of hashes, which differ between processes, and of arrival.
- Ids of messages are made from the run and the message's place in it, so that they are the same after a crash.
- Back-off between two tries of a model is not waited for again in a replay.
- Changes of an agent's state are noted by the tool that makes them.
"""

import asyncio
import copy
import hashlib
import uuid
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

from .._core import RUN, SCOPE, begin, cut, described, inside, is_replaying
from ._places import InRun, find
from ._private import (
    Graph,
    JSONSerializableDict,
    SummarizingConversationManager,
    content,
    generate_summary,
    retry,
    run_async,
)
from ._traces import note_write
from ._values import model_id, usage_of


def install() -> None:
    """Put the cuts in."""
    cut(Graph, "_find_newly_ready_nodes", _ready_in_order)
    cut(SummarizingConversationManager, "_generate_summary_with_model", _summary)
    cut(content, "_generate_tracking_id", _lasting_id)
    cut(JSONSerializableDict, "set", _noted_set)
    cut(JSONSerializableDict, "delete", _noted_delete)
    names = {name: getattr(asyncio, name) for name in dir(asyncio) if not name.startswith("__")}
    retry.asyncio = SimpleNamespace(**{**names, "sleep": _sleep})


def _ready_in_order(native: Any, self: Any, completed_batch: Any) -> Any:
    run = RUN.get()
    assert run is not None
    if id(self) not in InRun.of(run).groups:
        return native(self, completed_batch)
    InRun.of(run).check(run)
    rank = {node_id: number for number, node_id in enumerate(self.nodes)}
    _put_in_order(
        self.state, {node.node_id for node in completed_batch}, rank, InRun.of(run).groups[id(self)]
    )
    return sorted(native(self, completed_batch), key=lambda node: rank[node.node_id])


def _put_in_order(state: Any, batch: set[str], rank: dict[str, int], order: list[str]) -> None:
    """Put what the last batch of a graph left behind into the order of the graph's nodes.

    Args:
        order: the nodes in the order of their first results so far.
    """
    done = state.execution_order
    count = 0
    while count < min(len(done), len(batch)) and done[-1 - count].node_id in batch:
        count += 1
    done[len(done) - count :] = sorted(done[len(done) - count :], key=lambda node: rank[node.node_id])
    order += sorted(batch & state.results.keys() - set(order), key=rank.__getitem__)
    for node_id in [each for each in order if each in state.results]:
        state.results[node_id] = state.results.pop(node_id)


def _summary(native: Any, self: Any, messages: Any, agent: Any) -> Any:
    found = find(agent)
    if found is None:
        return native(self, messages, agent)
    _, place, active = found
    name = model_id(agent.aux_model)

    def ask() -> dict[str, Any]:
        model = _Heard(agent.aux_model)
        prompt = self.summarization_system_prompt
        message = run_async(lambda: generate_summary(messages, model, prompt))
        return {"message": copy.deepcopy(message), "usage": model.usage}

    with inside(place.turn):
        call = begin(
            "model", name, key="summary", input=described(_without_ids(messages)), codec=active.codec,
            usage=lambda kept: usage_of(name, kept["usage"]),
        )  # fmt: skip
        return call.do(ask)["message"] if call is not None else ask()["message"]


def _without_ids(messages: Any) -> Any:
    return [[message["role"], message["content"]] for message in messages]


class _Heard:
    """A model that remembers what its stream said about tokens."""

    def __init__(self, model: Any) -> None:
        self._model, self.usage = model, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        async for chunk in self._model.stream(*args, **kwargs):
            if "metadata" in chunk:
                self.usage = copy.deepcopy(chunk["metadata"].get("usage"))
            yield chunk


def _lasting_id(native: Callable[[], str]) -> str:
    run = RUN.get()
    assert run is not None
    scope = SCOPE.get() or run.top
    if not InRun.of(run).active or not scope.is_ours:
        return native()
    number = scope.count("message")
    digest = hashlib.sha256(f"{run.id}\0{len(run.pauses)}\0{scope.path}\0{number}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


async def _sleep(seconds: float, *args: Any) -> Any:
    return await asyncio.sleep(0 if is_replaying() else seconds, *args)


def _noted_set(native: Any, self: Any, key: str, value: Any) -> None:
    native(self, key, value)
    note_write(self, key, value)


def _noted_delete(native: Any, self: Any, key: str) -> None:
    native(self, key)
    note_write(self, key)
