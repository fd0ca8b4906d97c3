"""What a flow method did to the state of its flow, and doing it again.

A method's record holds its own changes, field by field. Where methods run side by side each works on a copy of the
state, and its changes are merged when it finishes: what two append, add up or put under different keys is kept from
both, also where the field was missing or None before; else the later one wins. So a method that is cut off leaves
nothing half done, and the merge is the same in every replay.
"""

import copy
from typing import Any

from pydantic import BaseModel

Change = tuple[Any, ...]
_MISSING = object()
_EMPTY: dict[type, Any] = {list: [], set: set(), dict: {}, int: 0, float: 0.0}
_RUNAWAY = 20  # levels; what is nested deeper is set as a whole


class View:
    """The state as one method sees it.

    Args:
        shared: the flow's state.
        isolated: whether other methods may run beside this one, so that it gets a copy.
    """

    def __init__(self, shared: Any, isolated: bool) -> None:
        self.own = shared
        try:
            self._base = copy.deepcopy(_fields(shared))
            if isolated:
                self.own = copy.deepcopy(shared)
        except Exception:  # a client, a lock: the state is worked on as it is, and recorded as a whole
            self._base, self.own, isolated = {}, shared, False
        self.isolated = isolated

    def changes(self) -> list[list[Any]]:
        """Field by field what the method has changed, as `[name, operation, …]`."""
        now = _fields(self.own)
        found = []
        for name in [*now, *(name for name in self._base if name not in now)]:
            change = self._change(self._base.get(name, _MISSING), now.get(name, _MISSING), 0)
            if change is not None:
                found.append([name, *change])
        return found

    def _change(self, base: Any, now: Any, depth: int) -> Change | None:
        if now is _MISSING:
            return ("drop",)
        if _is_same(base, now):
            return None
        if self.isolated and (base is _MISSING or base is None) and type(now) in _EMPTY:
            base = _EMPTY[type(now)]  # what two methods begin side by side is kept from both, too
        if type(base) is not type(now) or depth > _RUNAWAY:
            return ("set", now)
        if self.isolated and type(now) in (int, float):
            return ("number", base, now)
        if type(now) is list and len(now) >= len(base) and _is_same(base, now[: len(base)]):
            return ("append", now[len(base) :])
        if type(now) is set:
            return ("members", now - base, base - now)
        if type(now) is dict:
            changed = {
                k: c for k, v in now.items() if (c := self._change(base.get(k, _MISSING), v, depth + 1))
            }
            return ("keys", changed | {k: ("drop",) for k in base if k not in now})
        return ("set", now)


def apply(state: Any, changes: list[list[Any]]) -> None:
    """Do a method's changes to the flow's state. Validators are not asked: they have accepted before."""
    for name, operation, *details in changes:
        if not isinstance(state, BaseModel):
            _apply(state, name, operation, details)
            continue
        extra = state.__pydantic_extra__
        known = extra is None or name in type(state).model_fields
        _apply(state.__dict__ if known else extra, name, operation, details)
        state.__pydantic_fields_set__.add(name)


def _apply(fields: Any, name: Any, operation: str, details: list[Any]) -> None:
    there = fields.get(name)
    if operation == "drop":
        fields.pop(name, None)
    elif operation == "number" and not _is_same(there, details[0]) and type(there) in (int, float):
        fields[name] = there + details[1] - details[0]
    elif operation == "append" and isinstance(there, list):
        there.extend(details[0])
    elif operation == "members" and isinstance(there, set):
        there |= details[0]
        there -= details[1]
    elif operation == "keys" and isinstance(there, dict):
        for key, (inner, *rest) in details[0].items():
            _apply(there, key, inner, rest)
    elif operation == "members":
        fields[name] = set(details[0])
    elif operation == "keys":
        fields[name] = {}
        _apply(fields, name, operation, details)
    else:
        fields[name] = details[-1]


def _fields(state: Any) -> dict[Any, Any]:
    if isinstance(state, dict):
        return dict(state)
    return {**state.__dict__, **(getattr(state, "__pydantic_extra__", None) or {})}


def _is_same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(_is_same(value, right[key]) for key, value in left.items())
    try:
        return bool(left == right)
    except Exception:  # an array, whose comparison is no yes or no
        return False
