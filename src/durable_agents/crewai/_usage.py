"""Tokens per run. CrewAI counts them per model object, for its lifetime; a run counts its own, served answers included.

So `CrewOutput.token_usage` is what the crew used in this run, however many processes it took.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from crewai.events.types.llm_events import LLMCallType
from crewai.types.usage_metrics import UsageMetrics

from .._core import RUN, Execution, having
from ._private import BaseLLM

CALL_TYPES = {kind.value: kind for kind in LLMCallType}

_COUNTERS = "crewai.tokens"
_lock = threading.Lock()


class Meter:
    """What one model call consumes.

    `completed` are the call's events for listeners: the type of call, and the usage as the provider tells it.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._before = dict(llm._token_usage)
        self._tracked: dict[str, int] = {}
        self.completed: list[tuple[str, Any]] = []

    def add(self, used: dict[str, int]) -> None:
        for name, amount in used.items():
            self._tracked[name] = self._tracked.get(name, 0) + amount

    def tokens(self) -> dict[str, int]:
        """As the model tracked them; for one that writes its own counters, how far those have moved."""
        return self._tracked or _difference(self._before, self._llm._token_usage)


_METER: ContextVar[Meter | None] = ContextVar("durable_agents_crewai_meter", default=None)


def metered(llm: Any) -> AbstractContextManager[Any]:
    """What the model tracks inside is this call's."""
    return having(_METER, Meter(llm))


def _difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: moved for name, now in after.items() if (moved := now - before.get(name, 0))}


def count(run: Execution, llm: Any, tokens: dict[str, int]) -> None:
    """Add to the run's counters. Copies of one model share theirs, as they share CrewAI's."""
    with _lock:
        counters = run.memory.setdefault(_COUNTERS, {})
        _, mine = counters.setdefault(id(llm._token_usage), (llm._token_usage, {}))
        for name, amount in tokens.items():
            mine[name] = mine.get(name, 0) + amount


def install() -> None:
    summary = BaseLLM.get_token_usage_summary

    def get_token_usage_summary(self: Any) -> UsageMetrics:
        run = RUN.get()
        if run is None:
            return summary(self)
        _, mine = run.memory.get(_COUNTERS, {}).get(id(self._token_usage), (None, {}))
        return UsageMetrics(**mine)

    BaseLLM.get_token_usage_summary = get_token_usage_summary  # type: ignore[method-assign]
    left: list[Any] = [BaseLLM]
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        if (native := vars(cls).get("_track_token_usage_internal")) is not None:
            cls._track_token_usage_internal = _tracking(native)
    completed = BaseLLM._emit_call_completed_event

    def _emit_call_completed_event(self: Any, *args: Any, **kwargs: Any) -> None:
        meter = _METER.get()
        if meter is not None:
            kind = kwargs["call_type"] if "call_type" in kwargs else args[1]
            meter.completed.append((kind.value, kwargs.get("usage")))
        completed(self, *args, **kwargs)

    BaseLLM._emit_call_completed_event = _emit_call_completed_event  # type: ignore[method-assign]


def _tracking(native: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def _track_token_usage_internal(self: Any, usage_data: Any) -> None:
        meter = _METER.get()
        if meter is None:
            native(self, usage_data)
            return
        with _lock:
            before = dict(self._token_usage)
            native(self, usage_data)
            meter.add(_difference(before, self._token_usage))

    return _track_token_usage_internal
