"""The loop hook: each graph that a run calls has its place among the paths, whatever comes first in a replay."""

import dataclasses
import hashlib
import weakref
from typing import Any

from .._core import RUN, SCOPE, Execution, Scope, described, having
from ._private import (
    CONF,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_THREAD_ID,
    PregelLoop,
    patch_configurable,
)
from ._saver import DurableSaver, is_lasting, maker

_init_loop = PregelLoop.__init__
_put_writes = PregelLoop.put_writes

LOOP = "langgraph.loop"
"""In `Execution.memory`: the loop of the run's own graph."""
EXIT = "exit"
"""The durability of a graph that saves its state when it exits, and nothing before."""
# A graph or `@task` called from another thread or task of its node is numbered by its input, from here on.
_BY_INPUT = 1_000_000


def install() -> None:
    """Put the hook in; outside a durable run it calls the native code and nothing else."""
    PregelLoop.__init__ = _durable_init_loop  # type: ignore[method-assign]
    PregelLoop.put_writes = _durable_put_writes  # type: ignore[method-assign]


def _durable_init_loop(self: Any, input: Any, *, config: Any, **kwargs: Any) -> None:
    """Give each loop its place among the paths, and number the graphs a node calls so that a replay finds them again.

    Natively their number is the order of arrival, and the number names their checkpoints: two parallel calls would get
    each other's state after a crash.
    """
    run, scope = RUN.get(), SCOPE.get()
    self._durable_run = weakref.ref(run) if run is not None else None  # the run holds its loop
    pad = config.get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    if run is None or scope is None:
        _init_loop(self, input, config=config, **kwargs)
        return
    if pad is None or scope is run.top:
        _init_loop(self, input, config=config, **kwargs)
        self._durable_scope = scope
        if scope is run.top and LOOP not in run.memory:
            run.memory[LOOP] = self
        return
    number = number_of(run, scope, "graph", input)
    numbered = dataclasses.replace(pad, subgraph_counter=lambda: number)
    _init_loop(self, input, config=patch_configurable(config, {CONFIG_KEY_SCRATCHPAD: numbered}), **kwargs)
    segment = f"graph:{number}"
    self._durable_scope = (
        Scope(scope.child(segment), scope.child_key(segment), in_step=True) if number else scope
    )
    if kwargs["durability"] == EXIT and _was_called_before(self, run, scope):
        self.config = patch_configurable(self.config, {CONFIG_KEY_RESUMING: True})


def _was_called_before(loop: Any, run: Execution, scope: Scope) -> bool:
    """Whether this very call of a graph with a memory of its own has saved its state before a crash.

    Then it goes on from there: its input is in that state, and given again it would be the next turn.
    """
    saver, place = loop.checkpointer, loop.checkpoint_config[CONF]
    namespace = place.get(CONFIG_KEY_CHECKPOINT_NS, "")
    if not isinstance(saver, DurableSaver) or not is_lasting(namespace):
        return False
    return saver.maker(place[CONFIG_KEY_THREAD_ID], namespace) == maker(run.id, scope)


def _durable_put_writes(self: Any, task_id: str, writes: Any, *, cached: bool = False) -> None:
    """Parallel tasks end in threads that know nothing of the run: their writes would go around its journal."""
    run: Execution | None = self._durable_run() if self._durable_run is not None else None
    if run is None or RUN.get() is run:
        _put_writes(self, task_id, writes, cached=cached)
        return
    with having(RUN, run):
        _put_writes(self, task_id, writes, cached=cached)


def number_of(run: Execution, scope: Scope, what: str, input: Any) -> int:
    """The number of a call: by order from the scope's own task, else by its input, the same in every replay."""
    if scope.is_ours:
        return scope.count(what) - 1
    digest = int(hashlib.blake2b(described(input).encode(), digest_size=4).hexdigest(), 16)
    return _BY_INPUT + digest * 1000 + scope.count(f"{what}:{digest}") - 1
