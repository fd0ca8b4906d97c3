"""The user's sessions: what was read is recorded, and nothing is appended twice.

A session lies in a store of its own, so that an append and its record cannot be one act. Before an append that may have
been made already, and is not recorded, its end is looked at: if that is what it was before and the new items, they are
there. The session is reached as the SDK reaches it for the append, through the same context, and no further back than
it was read: it may belong to one of many tenants, or refuse more.

One run at a time works on a session of one runner, so nobody else appends meanwhile.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import SQLiteSession

from .._core import JSON, Call, begin
from .._core.errors import NotSupported
from . import _private
from ._calls import Frame, frame_here

_native_get = _private.session_persistence._session_get_items
_native_add = _private.session_persistence._session_add_items
_native_pop = _private.session_persistence._session_pop_item
_UNSET = _private.session_persistence._SESSION_LIMIT_UNSET


def install() -> None:
    """Put the cuts in."""
    for module in _private.session_modules:
        module._session_get_items = _get
    _private.session_persistence._session_add_items = _add
    _private.session_persistence._session_pop_item = _pop


def _call(operation: str, input: str = "") -> Call:
    call = begin("state", f"session.{operation}", input=input, ordered=True, codec=JSON)
    assert call is not None
    return call


@dataclass(frozen=True, slots=True)
class End:
    """The end of a session, as far as this run has read and written it.

    Args:
        session: the object, whose id must not be given to another one.
        items: its last items, or all.
        limit: how far back it was read, in items; None when without limit, or not at all.
    """

    session: Any
    items: list[Any]
    limit: int | None = None

    def reach(self, items: list[Any]) -> int:
        """How far back shows whether these were appended."""
        after, limit = [*self.items, *items], self.limit
        if limit and not _same(after[-limit:], self.items[-limit:]):
            return limit
        return len(after)


def _ends(frame: Frame) -> dict[int, End]:
    ends: dict[int, End] = frame.run.memory.setdefault("sessions", {})
    return ends


async def _get(session: Any, limit: Any = _UNSET, **options: Any) -> list[Any]:
    frame = frame_here()
    if frame is None:
        native: list[Any] = await _native_get(session, limit, **options)
        return native
    items: list[Any] = await _call("get").ado(lambda: _native_get(session, limit, **options))
    ends, limit = _ends(frame), None if limit is _UNSET else limit
    if limit is None or id(session) not in ends or len(items) > len(ends[id(session)].items):
        ends[id(session)] = End(session, list(items), limit)
    return items


async def _add(session: Any, items: list[Any], **options: Any) -> None:
    frame = frame_here()
    if frame is None or not items:
        await _native_add(session, items, **options)
        return
    end = _ends(frame).setdefault(id(session), End(session, []))

    async def add() -> None:
        if not frame.run.is_first_try:
            reach = end.reach(items)
            if _is_there(await _native_get(session, reach, **options), end.items, items, reach):
                return
        await _native_add(session, items, **options)

    await _call("add", _text(items)).ado(add)
    end.items.extend(items)


async def _pop(session: Any, **options: Any) -> Any:
    frame = frame_here()
    if frame is None:
        return await _native_pop(session, **options)
    end = _ends(frame).setdefault(id(session), End(session, []))

    async def pop() -> Any:
        if end.items and not frame.run.is_first_try:
            before = end.items[-(end.limit or len(end.items)) :]
            held = await _native_get(session, len(before), **options)
            if not _same(held, before) and _ends_with(held, before[:-1]):
                return before[-1]
        return await _native_pop(session, **options)

    popped = await _call("pop").ado(pop)
    if end.items:
        end.items.pop()
    return popped


def _is_there(held: list[Any], before: list[Any], items: list[Any], reach: int) -> bool:
    """Whether the items were appended already; by its end alone, when somebody else has changed the session."""
    if _same(held, [*before, *items][-reach:]):
        return True
    as_before = _ends_with(held, before[-reach:]) if before else not held
    return not as_before and _ends_with(held, items[-reach:])


def _ends_with(held: list[Any], items: list[Any]) -> bool:
    return _same(held[max(len(held) - len(items), 0) :], items)


def _same(some: list[Any], others: list[Any]) -> bool:
    return _text(some) == _text(others)


def _text(items: list[Any]) -> str:
    return json.dumps(items, sort_keys=True, default=str)


# -- sessions as arguments


def check_session(session: Any) -> None:
    """Raise `NotSupported` for a session that rewrites its history by a model call of its own."""
    if hasattr(session, "run_compaction"):
        raise NotSupported(
            f"{type(session).__name__} compacts its history with a model call that is no durable step; use a session "
            f"without compaction"
        )


def id_of(session: Any) -> str | None:
    """The session's id; None for one that has none, or gets one only when it is first used."""
    try:
        return str(session.session_id)
    except Exception:  # its own code, which the SDK does not call: a run goes on without an id
        return None


def described(session: Any) -> tuple[dict[str, Any], bool]:
    """A session as JSON data, and whether another process can open it from that."""
    named = {"type": type(session).__qualname__, "id": id_of(session)}
    if type(session) is not SQLiteSession or str(session.db_path) == ":memory:":
        return named, False
    limit = session.session_settings.limit if session.session_settings is not None else None
    where = {
        "db_path": str(Path(session.db_path).absolute()),
        "sessions_table": session.sessions_table,
        "messages_table": session.messages_table,
        "limit": limit,
    }
    return {**named, **where}, True


def opened(data: dict[str, Any]) -> SQLiteSession:
    """The session that `described` has told of."""
    return SQLiteSession(
        data["id"],
        data["db_path"],
        data["sessions_table"],
        data["messages_table"],
        {"limit": data["limit"]},
    )
