"""The user's sessions: what was read is recorded, and nothing is appended twice.

A session lies in a store of its own, so that an append and its record cannot be one act. After a crash the session is
looked at before an append that has no record: if it holds what it held before and the new items, they are there.
One run at a time works on a session of one runner, so nobody else appends meanwhile.
"""

import json
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


def _held(frame: Frame) -> dict[int, tuple[Any, list[Any]]]:
    """What each session holds, as far as this run has read and written it: id → the session, its items."""
    held: dict[int, tuple[Any, list[Any]]] = frame.run.memory.setdefault("sessions", {})
    return held


def _recovers(frame: Frame) -> bool:
    """Whether something may have been done to the session that was not recorded."""
    return frame.run.journal.recorded_before > 1


async def _get(session: Any, limit: Any = _UNSET, **options: Any) -> list[Any]:
    frame = frame_here()
    if frame is None:
        native: list[Any] = await _native_get(session, limit, **options)
        return native
    items: list[Any] = await _call("get").ado(lambda: _native_get(session, limit, **options))
    if limit is _UNSET or limit is None:
        _held(frame)[id(session)] = session, list(items)
    return items


async def _add(session: Any, items: list[Any], **options: Any) -> None:
    frame = frame_here()
    if frame is None or not items:
        await _native_add(session, items, **options)
        return
    if id(session) not in _held(frame):
        await _get(session)
    before = _held(frame)[id(session)][1]

    async def add() -> None:
        # As far back as was read then: the session's own limit may be shorter than what was appended.
        reach = len(before) + len(items)
        if _recovers(frame) and _is_there(await _native_get(session, reach), before, items):
            return
        await _native_add(session, items, **options)

    await _call("add", _text(items)).ado(add)
    before.extend(items)


async def _pop(session: Any, **options: Any) -> Any:
    frame = frame_here()
    if frame is None:
        return await _native_pop(session, **options)
    if id(session) not in _held(frame):
        await _get(session)
    before = _held(frame)[id(session)][1]

    async def pop() -> Any:
        if _recovers(frame) and before and _text(await _native_get(session)) == _text(before[:-1]):
            return before[-1]
        return await _native_pop(session, **options)

    popped = await _call("pop").ado(pop)
    if before:
        before.pop()
    return popped


def _is_there(held: list[Any], before: list[Any], items: list[Any]) -> bool:
    """Whether the items were appended already; by its end alone, when somebody else has changed the session."""
    if _text(held) == _text([*before, *items]):
        return True
    as_before = _text(held[len(held) - len(before) :]) == _text(before) if before else not held
    return not as_before and _text(held[-len(items) :]) == _text(items)


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
    """The session's id; None for one whose service gives it one only when it is first used."""
    try:
        return str(session.session_id)
    except ValueError:
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
