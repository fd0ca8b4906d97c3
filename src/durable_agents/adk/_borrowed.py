"""A session service of the user's own (a database, Vertex AI) under a durable runner.

Sessions stay where they are. What a session held when a segment began is recorded, so that a replay begins there; each
event that a run appends is a step, and a note of it is kept beside the run's records. After a crash between the
service's write and the record the service is asked whether it has the event already, whose id is the same each time.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session

from .._core import RUN, SCOPE, Codec, Execution, Statement, astep
from . import _tables as sql
from ._sessions import DurableSessionService, Key, wanted

_OPEN = "adk sessions of the user's service"


class BorrowedSessionService(DurableSessionService):
    """The user's service, in the place of the durable one.

    Args:
        inner: the service; outside of runs it is called and nothing else.
        codec: of the runner.
    """

    def __init__(self, inner: BaseSessionService, codec: Codec) -> None:
        super().__init__(codec=codec)
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        run = RUN.get()

        async def create() -> Session:
            try:
                return await self.inner.create_session(
                    app_name=app_name, user_id=user_id, state=state, session_id=session_id
                )
            except AlreadyExistsError:
                if run is None or session_id is None or run.journal.recorded_before <= 1:
                    raise
                return await self._read((app_name, user_id, session_id))  # made before the run was cut off

        if run is None or _is_in_step():
            return await create()
        made = await self._noted("new session", session_id or "", create)
        return self._session((app_name, user_id, made["id"]), made)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        key = (app_name, user_id, session_id)
        if RUN.get() is None or _is_in_step():
            return await self.inner.get_session(
                app_name=app_name, user_id=user_id, session_id=session_id, config=config
            )
        try:
            found = await self._noted("session", session_id, lambda: self._find(key))
        except SessionNotFoundError:
            return None
        if found is None:
            return None
        session = self._session(key, found)
        session.events = wanted((await self._read(key)).events[: found["events"]], config)
        return session

    async def append_event(self, session: Session, event: Event) -> Event:
        run = RUN.get()
        if run is None:
            return await self.inner.append_event(session, event)
        if event.partial:
            return event
        event = await super().append_event(session, event)
        key = (session.app_name, session.user_id, session.id)
        at = await astep("state", "append", lambda: self._forward(run, key, event), key=event.id)
        event.timestamp = at
        return event

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        return await self.inner.list_sessions(app_name=app_name, user_id=user_id)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        await self.inner.delete_session(app_name=app_name, user_id=user_id, session_id=session_id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await self.inner.get_user_state(app_name=app_name, user_id=user_id)

    async def flush(self) -> None:
        await self.inner.flush()

    # -- helpers

    async def _find(self, key: Key) -> Session | None:
        app, user, id = key
        return await self.inner.get_session(app_name=app, user_id=user, session_id=id)

    async def _read(self, key: Key) -> Session:
        found = await self._find(key)
        if found is None:
            raise LookupError(f"session {key[2]!r} is gone: it was deleted while a run was on it")
        return found

    async def _noted(self, what: str, key: str, find: Callable[[], Awaitable[Session | None]]) -> Any:
        """What a session held, as a step: how many events, and its state."""

        async def look() -> dict[str, Any] | None:
            found = await find()
            if found is None:
                self._missed(key)
                return None
            state = self._codec.encode(dict(found.state))
            return {
                "id": found.id,
                "events": len(found.events),
                "state": state,
                "updated": found.last_update_time,
            }

        return await astep("state", what, look, key=key)

    async def _forward(self, run: Execution, key: Key, event: Event) -> float:
        """Append the event to the user's session, unless it is there; its time."""
        opened: dict[Key, Session] = run.memory.setdefault(_OPEN, {})
        if key not in opened:
            opened[key] = await self._read(key)
        session = opened[key]
        for there in reversed(session.events):
            if there.id == event.id:
                return there.timestamp
        await self.inner.append_event(session, event.model_copy(deep=True))
        return event.timestamp

    def _event_rows(self, key: Key, event: Event, run: str | None, place: str) -> list[Statement]:
        """The note of an event: the session itself is not ours."""
        row = (*key, event.id, *key, event.timestamp, run, place, self._body(event))
        return [Statement(sql.PUT_EVENT, (row,))]


def _is_in_step() -> bool:
    scope = SCOPE.get()
    return scope is not None and scope.in_step
