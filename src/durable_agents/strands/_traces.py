"""What a tool changes in memory beside its result: the agent's state, the invocation state, a request to stop.

It is recorded with the tool's step and changed again on replay, where the tool does not run. What several tools change
at once is told apart by who calls `agent.state.set`, not by looking before and after.
"""

import copy
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from .._core import Codec, having
from .._core.errors import EncodingError

_WRITES: ContextVar[list[Any] | None] = ContextVar("durable_agents_strands_writes", default=None)

_NATIVE = frozenset(
    {"agent", "model", "messages", "system_prompt", "tool_config", "tool_choice"}
    | {"event_loop_cycle_id", "event_loop_cycle_trace", "event_loop_cycle_span", "event_loop_parent_cycle_id"}
)
"""Keys of the invocation state that Strands writes itself."""


def note_write(store: Any, key: str, *value: Any) -> None:
    """Called for each change of an agent's state."""
    if (writes := _WRITES.get()) is not None:
        writes.append([key, *copy.deepcopy(value)])


class Traces:
    """The traces of one tool call."""

    def __init__(self, agent: Any, invocation_state: dict[str, Any], codec: Codec) -> None:
        self._agent, self._invocation, self._codec = agent, invocation_state, codec
        self._writes: list[Any] = []
        self._before = self._encodable()
        self._deferred = agent._deferred_cancel

    def noting(self) -> AbstractContextManager[Any]:
        """What is written inside is written by the call."""
        return having(_WRITES, self._writes)

    def left(self) -> dict[str, Any]:
        """What is recorded; nothing for a tool that left nothing."""
        found: dict[str, Any] = {}
        if self._writes:
            found["state"] = self._writes
        after = self._encodable()
        if changed := {k: self._invocation[k] for k, v in after.items() if self._before.get(k) != v}:
            found["invocation"] = copy.deepcopy(changed)
        if self._agent._deferred_cancel and not self._deferred:
            found["cancel"] = [self._agent._cancel_message]
        return found

    def _encodable(self) -> dict[str, Any]:
        found = {}
        for key, value in self._invocation.items():
            if key not in _NATIVE:
                try:
                    found[key] = self._codec.encode(value)
                except EncodingError:
                    continue  # a live object, which the caller gives again
        return found

    @staticmethod
    def leave(agent: Any, invocation_state: dict[str, Any], kept: dict[str, Any]) -> None:
        """Change again what the recorded call had changed."""
        for key, *value in kept.get("state", ()):
            if value:
                agent.state.set(key, value[0])
            else:
                agent.state.delete(key)
        for key, value in kept.get("invocation", {}).items():
            mine = invocation_state.get(key)
            if isinstance(mine, dict) and isinstance(value, dict):
                mine.update(copy.deepcopy(value))
            else:
                invocation_state[key] = copy.deepcopy(value)
        if "cancel" in kept:
            agent.cancel(message=kept["cancel"][0], after_current_tools=True)
