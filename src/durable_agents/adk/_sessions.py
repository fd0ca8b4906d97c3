"""ADK's sessions on the engine's database.

Inside a run nothing is written at once: rows are staged and commit with the run's next record, so that session and
records cannot disagree, and a process that has lost the run writes neither. What a session held when a segment began is
recorded; a replay begins there and appends the same events again. They have the same ids, so they are known: each takes
its recorded time and content and its place among the others, whatever order parallel branches arrive in.

Not durable: `temp:` state, which ADK stores nowhere.
"""

import asyncio
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from .._core import RUN, SCOPE, Codec, Execution, Statement, Store, astep, dumps, engine
from .._core.errors import ConfigurationError, EncodingError, Stop
from . import _tables as sql
from ._places import instead_of, place_of
from ._private import extract_state_delta
from ._values import adk_codec

T = TypeVar("T")
Key = tuple[str, str, str]
"""App name, user id and session id."""

_LOG = "adk sessions"
_NEW = float("inf")


@dataclass(frozen=True, slots=True)
class Known:
    """An event that the run had appended before it was claimed again."""

    seq: float
    place: str
    body: str


class Log:
    """The events that one execution of a run appends, to whatever sessions."""

    def __init__(self, run: Execution) -> None:
        self._run = run
        self._known: dict[tuple[Key, str], Known] | None = None
        self._appended: dict[tuple[Key, str], float] = {}
        self._foreign: dict[str, int] = {}
        self.sessions: set[Key] = set()
        self._lock = threading.Lock()

    def load(self) -> None:
        with self._lock:
            if self._known is None:
                rows = self._run.engine.store.query(sql.EVENTS_OF_RUN, (self._run.id,))
                self._known = {
                    ((app, user, session), id): Known(seq, place, body)
                    for app, user, session, id, seq, place, body in rows
                }

    @property
    def is_loaded(self) -> bool:
        return self._known is not None

    def name(self, key: Key, event: Event) -> str:
        """The path an event is of. One whose id was not made here gets that of its replayed self, by who sent it."""
        if (place := place_of(self._run, event.id)) is not None:
            return place
        who = f"!{event.author}/{event.branch or ''}/{event.node_info.path}"
        count = self._foreign[who] = self._foreign.get(who, 0) + 1
        place = f"{who}#{count}"
        for (of, id), known in (self._known or {}).items():
            if known.place == place and of == key:
                event.id = id
        return place

    def take(self, key: Key, event: Event) -> Event | None:
        """The event being appended as it was recorded, None when it is new.

        A run that failed and was resumed goes another way than before: what is of another kind than the event that was
        recorded under its id gets an id of its own.
        """
        recorded: Event | None = None
        while (known := (self._known or {}).get((key, event.id))) is not None:
            recorded = self._run.runner.codec.decode(json.loads(known.body))
            if _kind(recorded) == _kind(event):
                break
            recorded, event.id = None, instead_of(event.id)
        self.sessions.add(key)
        self._appended[key, event.id] = known.seq if known else _NEW
        return recorded

    def seq(self, key: Key, id: str) -> float | None:
        """The number of an event that this execution has appended; endless for one that is new."""
        return self._appended.get((key, id))

    def pending_under(self, path: str) -> list[Event]:
        """Events of what ran inside a step, not appended by this execution, as the step is served from its record.

        Those that the step's own body made are not among them: it returned or yielded them.
        """
        decode = self._run.runner.codec.decode
        return [
            decode(json.loads(known.body))
            for at, known in (self._known or {}).items()
            if at not in self._appended and known.place.startswith(f"{path}/")
        ]


_LOGS_LOCK = threading.Lock()
_LOGS: "weakref.WeakSet[Execution]" = weakref.WeakSet()


async def log_of(run: Execution) -> Log:
    """The run's log, with what it had appended before."""
    log: Log = run.memory.setdefault(_LOG, Log(run))
    if not log.is_loaded:
        await run.in_thread(log.load)
        with _LOGS_LOCK:
            _LOGS.add(run)
    return log


class DurableSessionService(BaseSessionService):
    """Sessions in the database of the engine; the default of `DurableRunner`, in the place of `InMemorySessionService`.

    Args:
        types: classes that may be stored in state and outputs beside plain data: pydantic models, dataclasses, enums.

    Every method raises `EncodingError`, which names the value, for one of a type that is not stored.
    """

    must_exist = False
    """Whether a run fails without its session: that is an error of the step then, which `Run.resume()` takes back."""

    def __init__(self, *, types: Iterable[type] = (), codec: Codec | None = None) -> None:
        self._codec = codec or adk_codec(types)
        self._migrated: weakref.WeakSet[Store] = weakref.WeakSet()

    # -- ADK's interface

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """As natively. Inside a run, a part of it: the same session again in a replay.

        Raises:
            AlreadyExistsError: there is one of this id.
        """
        id = (session_id or "").strip() or platform_uuid.new_uuid()
        key = (app_name, user_id, id)
        if not app_name or not user_id:
            raise ConfigurationError(
                "a session belongs to an app and a user: app_name and user_id must not be empty"
            )
        made = await self._recorded("new session", key, partial(self._create, key, state or {}))
        return self._session(key, made)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """As natively. Inside a run it is recorded what the session held, and a replay reads the same."""
        key = (app_name, user_id, session_id.strip())
        try:
            found = await self._recorded("session", key, partial(self._look, key))
        except SessionNotFoundError:
            return None
        if found is None:
            return None
        session = self._session(key, found)
        events = await asyncio.to_thread(self._events, key, found["seq"])
        session.events = wanted(events, config)
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """As natively: the oldest first, without their events."""

        def read() -> list[Session]:
            rows = self._store().query(sql.LIST_SESSIONS, (app_name,))
            return [
                Session(app_name=app_name, user_id=user, id=id, state=self._state((app_name, user, id)),
                        last_update_time=updated)
                for user, id, updated in rows
                if user_id in (None, user)
            ]  # fmt: skip

        return ListSessionsResponse(sessions=await asyncio.to_thread(read))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """As natively. No run on it may be active."""
        row = (app_name, user_id, session_id.strip())
        statements = [Statement(statement, (row,)) for statement in sql.DELETE_SESSION]
        await asyncio.to_thread(self._put, statements)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """As natively."""
        found = await asyncio.to_thread(self._state, (app_name, user_id, ""))
        return {
            k.removeprefix(State.USER_PREFIX): v for k, v in found.items() if k.startswith(State.USER_PREFIX)
        }

    async def append_event(self, session: Session, event: Event) -> Event:
        """As natively. Inside a run the event is written with the run's next record; a replayed one is known."""
        if event.partial:
            return event
        key = (session.app_name, session.user_id, session.id)
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        run = RUN.get()
        if run is None:
            await asyncio.to_thread(self._append, key, event)
            session.last_update_time = event.timestamp
            return self._commit_event_to_session(session, event)
        log = await log_of(run)
        if log.seq(key, event.id) is not None:
            return event  # a second time, which natively changes nothing either
        place = log.name(key, event)
        if (recorded := log.take(key, event)) is None:
            run.journal.stage(self._event_rows(key, event, run.id, place))
            self._commit_event_to_session(session, event)
        else:
            event.timestamp = recorded.timestamp
            if event.content != recorded.content:
                event.content = recorded.content
            _insert(session, key, event, log)
        session.last_update_time = event.timestamp
        return event

    # -- reading

    def _store(self) -> Store:
        store = engine.current().store
        if store not in self._migrated:
            store.migrate_tables("adk", sql.MIGRATIONS)
            self._migrated.add(store)
        return store

    async def _recorded(self, what: str, key: Key, work: Callable[[], T]) -> T:
        """What the work finds; between the steps of a run it is a step. Nothing in a step is recorded apart from it."""
        run, scope = RUN.get(), SCOPE.get()
        if run is None or (scope is not None and scope.in_step):
            return await asyncio.to_thread(work)
        return await astep("state", what, lambda: asyncio.to_thread(work), key=key[2])

    def _session(self, key: Key, found: dict[str, Any]) -> Session:
        app, user, id = key
        state = self._codec.decode(found["state"])
        return Session(app_name=app, user_id=user, id=id, state=state, last_update_time=found["updated"])

    def _flushed(self, key: Key) -> Store:
        """The database, with everything in it that runs of this process have appended to the session."""
        with _LOGS_LOCK:
            here = list(_LOGS)
        for run in here:
            log: Log = run.memory[_LOG]
            if key in log.sessions and run.journal.has_staged and run.journal.lost is None:
                try:
                    run.journal.flush()
                except Stop:
                    continue  # it is not ours any more, and what it had staged will be made again
        return self._store()

    def _look(self, key: Key) -> dict[str, Any] | None:
        """What a session holds now: the number of its last event, its state, and when it was changed."""
        store = self._flushed(key)
        rows = store.query(sql.GET_SESSION, key)
        if not rows:
            self._missed(key[2])
            return None
        seq = store.query(sql.LAST_SEQ, key)[0][0]
        return {"seq": seq, "state": self._codec.encode(self._state(key)), "updated": rows[0][0]}

    def _missed(self, id: str) -> None:
        if self.must_exist:
            raise SessionNotFoundError(f"Session {id} not found.")

    def _state(self, key: Key) -> dict[str, Any]:
        app, user, id = key
        found = {}
        for of_user, of_session, name, value in self._store().query(sql.GET_STATE, (app, user, user, id)):
            prefix = "" if of_session else State.USER_PREFIX if of_user else State.APP_PREFIX
            found[prefix + name] = self._codec.decode(json.loads(value))
        return found

    def _events(self, key: Key, upto: int) -> list[Event]:
        rows = self._store().query(sql.GET_EVENTS, (*key, upto))
        return [self._codec.decode(json.loads(body)) for (body,) in rows]

    def of_run(self, run_id: str, ids: Sequence[str]) -> list[Event]:
        """The events of a run with these ids, in this order."""
        rows = self._store().query(sql.EVENTS_OF_RUN, (run_id,))
        bodies = {id: body for _, _, _, id, _, _, body in rows}
        return [self._codec.decode(json.loads(bodies[id])) for id in ids if id in bodies]

    def run_of_call(self, key: Key, id: str) -> str | None:
        """The run that made the function call of this id in a session."""
        plain = id.replace("%", "_")
        rows = self._store().query(sql.RUN_OF_TEXT, (*key, f'%"{plain}"%'))
        return rows[0][0] if rows else None

    # -- writing

    def _create(self, key: Key, state: dict[str, Any]) -> dict[str, Any]:
        run = RUN.get()
        rows = self._flushed(key).query(sql.GET_SESSION, key)
        if rows and (run is None or rows[0][1] != run.id):  # a run may have made it before it was cut off
            raise AlreadyExistsError(f"Session with id {key[2]} already exists.")
        now = platform_time.get_time()
        made = Statement(sql.PUT_SESSION, ((*key, now, run.id if run else None),))
        self._put([made, *self._state_rows(key, state)])
        given = {k: v for k, v in state.items() if not k.startswith(State.TEMP_PREFIX)}
        return {"state": self._codec.encode({**self._state(key), **given}), "updated": now}

    def _append(self, key: Key, event: Event) -> None:
        if not self._flushed(key).query(sql.GET_SESSION, key):
            raise SessionNotFoundError(f"Session {key[2]} not found.")
        self._put(self._event_rows(key, event, None, ""))

    def _body(self, event: Event) -> str:
        try:
            return dumps(self._codec.encode(event))
        except EncodingError as error:
            raise EncodingError(
                f"event {event.id!r} of {event.author!r} cannot be stored: {error}"
            ) from error

    def _event_rows(self, key: Key, event: Event, run: str | None, place: str) -> list[Statement]:
        row = (*key, event.id, *key, event.timestamp, run, place, self._body(event))
        state = self._state_rows(key, event.actions.state_delta)
        touch = Statement(sql.TOUCH_SESSION, ((event.timestamp, *key),))
        return [Statement(sql.PUT_EVENT, (row,)), touch, *state]

    def _state_rows(self, key: Key, delta: dict[str, Any]) -> list[Statement]:
        app, user, id = key
        parts = extract_state_delta(delta)
        rows = [
            (app, *of, name, dumps(self._codec.encode(value)))
            for part, of in (("app", ("", "")), ("user", (user, "")), ("session", (user, id)))
            for name, value in parts[part].items()
        ]
        return [Statement(sql.PUT_STATE, tuple(rows))] if rows else []

    def _put(self, statements: Sequence[Statement]) -> None:
        run = RUN.get()
        if run is not None:
            run.journal.stage(statements)
        else:
            self._store().write(statements)


def _kind(event: Event) -> Any:
    called = [call.name for call in event.get_function_calls()]
    return event.author, event.error_code, called, [each.name for each in event.get_function_responses()]


def _insert(session: Session, key: Key, event: Event, log: Log) -> None:
    """Put a known event where it stands among those of the run, and its changes of state before later ones.

    What ADK has put there without appending it, such as the request to an agent that is a tool, stays before all that
    its branch says then.
    """
    at, seq = len(session.events), log.seq(key, event.id)
    assert seq is not None
    later: set[str] = set()
    for index in range(len(session.events) - 1, -1, -1):
        other = session.events[index]
        theirs = log.seq(key, other.id)
        if theirs is None:
            continue
        if theirs < seq:
            break
        at = index
        later.update(other.actions.state_delta)
    after = session.events[at:]
    put = [other for other in after if log.seq(key, other.id) is None and other.branch == event.branch]
    session.events[at:] = [*put, event, *(other for other in after if not any(other is each for each in put))]
    for name, value in event.actions.state_delta.items():
        if name not in later:
            session.state[name] = value


def wanted(events: list[Event], config: GetSessionConfig | None) -> list[Event]:
    if config is None:
        return events
    if config.num_recent_events is not None:
        events = events[len(events) - min(config.num_recent_events, len(events)) :]
    if config.after_timestamp is not None:
        old = [i for i, event in enumerate(events) if event.timestamp < config.after_timestamp]
        events = events[old[-1] + 1 :] if old else events
    return events
