"""Lanes: the loop of one agent, in which calls are made one after the other, and what its retries go on from.

When an agent fails, CrewAI executes the task again: the conversation begins anew, and tools that have acted act again
(crewai 1.15.30, `Agent._handle_execution_error`). Here the new try goes over the records of the failed one: what had
finished is served, and the step the try failed at is made again, as another attempt.
"""

from contextvars import ContextVar, Token
from typing import Any

from .._core import RUN, SCOPE, Call, Scope

_LANE: ContextVar["Lane | None"] = ContextVar("durable_agents_crewai_lane", default=None)
_TRIES: ContextVar["_Tries | None"] = ContextVar("durable_agents_crewai_tries", default=None)


class Lane:
    """One agent's loop. As a context manager: the code inside runs in it.

    Args:
        agent: whose loop it is.
        scope: under which its steps live.
        attempts: path → number of the attempt that is made of it.
    """

    def __init__(self, agent: Any, scope: Scope, attempts: dict[str, int] | None = None) -> None:
        self.agent, self.scope = agent, scope
        self._attempts = attempts or {}
        self._last: tuple[Call, bool] | None = None
        self._token: Token[Lane | None] | None = None

    def __enter__(self) -> "Lane":
        self._token = _LANE.set(self)
        tries = _TRIES.get()
        if tries is not None and tries.agent is self.agent:
            tries.lane, tries.is_retry = self, False
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _LANE.reset(self._token)

    def attempt_of(self, path: str) -> int:
        return self._attempts.get(path, 1)

    def ended(self, call: Call, *, failed: bool) -> None:
        if call.scope is self.scope:
            self._last = call, failed

    def again(self) -> "Lane":
        """The lane of the next try. A step that failed, or a model whose answer was of no use, is made again."""
        attempts = dict(self._attempts)
        if self._last is not None:
            call, failed = self._last
            if failed or call.kind == "model":
                path = call.path.removesuffix(f"@{call.attempt}") if call.attempt > 1 else call.path
                attempts[path] = call.attempt + 1
        above = self.scope
        scope = Scope(above.path, above.key, in_step=above.in_step, events=above.events)
        return Lane(self.agent, scope, attempts)


class _Tries:
    """The tries of one `execute_task`."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.lane: Lane | None = None
        self.is_retry = False


class retrying:
    """Inside, an agent executes a task; a retry comes through here again, and stays with the first try."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._token: Token[_Tries | None] | None = None

    def __enter__(self) -> None:
        tries = _TRIES.get()
        if RUN.get() is None or (tries is not None and tries.agent is self._agent and tries.is_retry):
            return
        self._token = _TRIES.set(_Tries(self._agent))

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _TRIES.reset(self._token)

    @staticmethod
    def again(agent: Any) -> None:
        """The agent is going to try again."""
        tries = _TRIES.get()
        if tries is not None and tries.agent is agent:
            tries.is_retry = True


def lane_of(agent: Any) -> Lane | None:
    """The lane of the try before, when this agent is trying again."""
    tries = _TRIES.get()
    return tries.lane if tries is not None and tries.agent is agent and tries.is_retry else None


def current_lane() -> Lane | None:
    """The lane whose scope the current code is directly in."""
    lane = _LANE.get()
    return lane if lane is not None and SCOPE.get() is lane.scope else None


def in_agent_loop() -> bool:
    """Whether the current code runs, at any depth, inside an agent's loop."""
    return _LANE.get() is not None
