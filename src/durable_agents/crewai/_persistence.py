"""What a flow begins from: the state that CrewAI loads when it is kicked off with an id is a step.

`@persist` saves after each method, so that later in the run the store holds what the run itself has done. A replay
begins from the state as it was, and does that again. One that only rebuilds a result saves nothing: later runs may
have moved the state on.
"""

import inspect
from typing import Any

from .._core import RUN, begin, cut
from ._flow import flow_being_kicked_off
from ._private import FlowPersistence
from ._scopes import each_class


def install() -> None:
    """Put the cuts in; outside a durable run they call the native code and nothing else."""
    each_class(FlowPersistence, _cut_persistence)


def _cut_persistence(cls: type) -> None:
    for name, durable in (("load_state", _load_state), ("save_state", _save_state)):
        native = vars(cls).get(name)
        if inspect.isfunction(native) and not getattr(native, "__isabstractmethod__", False):
            cut(cls, name, durable)


def _load_state(native: Any, self: Any, flow_uuid: str) -> Any:
    flow_run = flow_being_kicked_off()
    if flow_run is None:
        return native(self, flow_uuid)
    call = begin("state", str(flow_uuid), ordered=True, codec=flow_run.run.runner.codec)
    assert call is not None  # in a run
    return call.do(lambda: native(self, flow_uuid))


def _save_state(native: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    run = RUN.get()
    assert run is not None
    if not run.muted:
        native(self, *args, **kwargs)
