"""The first record of a run: what it was asked to do."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .codec import dumps
from .errors import ConfigurationError, InputMismatch
from .journal import load
from .record import OPEN, Draft, now_us
from .store import Store, runs

_ID_LENGTH = 255
_VERSION = "durable_agents-1"


def version_of(code: Mapping[str, Any] | None) -> str:
    """The application version of a run: pinned, because DBOS's own would strand every run at each upgrade.

    Args:
        code: the fingerprint of the agent; runs of other code are left to workers that have it.
    """
    return f"{_VERSION}:{hashlib.sha256(dumps(code).encode()).hexdigest()[:12]}" if code else _VERSION


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a runner's verb.

    Args:
        input: everything a recovery needs, as JSON data.
        thread: the conversation the run belongs to, None when it has none; one run at a time in each.
        live: what only the calling process has (callbacks, streams, objects), handed to the runner's loop as it is.
        live_names: the arguments among `live` that the behaviour depends on; a run that has any is not recoverable.
        observers: the arguments among `live` that only watch; a recovery goes on without them.
        incidental: recorded like the input, but no part of what the run id stands for (tags, metadata).
        answers: a native answer to the run that waits, question → answer; None for a new input.
    """

    input: Any
    thread: str | None = None
    live: Any = None
    live_names: tuple[str, ...] = ()
    observers: tuple[str, ...] = ()
    incidental: Any = None
    answers: Mapping[str | None, Any] | None = None

    @property
    def recoverable(self) -> bool:
        return not self.live_names


def open_run(
    store: Store,
    name: str,
    request: Request,
    run_id: str,
    worker: str | None,
    *,
    code: Mapping[str, Any] | None = None,
    parent: str | None = None,
) -> tuple[bool, str | None]:
    """Insert the run if its id is new; see `store.runs.start` for what comes back.

    Args:
        worker: the worker whose caller wants to drive the run; None queues it for any.
        code: the fingerprint of how the agent is built.
        parent: the run that starts this one.

    Raises:
        InputMismatch: the id exists with another runner or input.
    """
    check_id("run_id", run_id)
    if request.thread is not None:
        check_id("thread", request.thread)
    payload = {
        "input": request.input,
        "incidental": request.incidental,
        "thread": request.thread,
        "digest_key": os.urandom(16).hex(),
        "live": list(request.live_names),
        "observers": list(request.observers),
        "code": dict(code or {}),
    }
    draft = Draft(OPEN, OPEN, dumps(payload), name=name)
    record = draft.seal(run=run_id, seq=1, prev="", at=now_us(), worker=worker or "", epoch=0)
    thread = None if request.thread is None else runs.thread_key(name, request.thread)
    new, token = runs.start(
        store, runs.NewRun(run_id, name, thread, record, version_of(code), parent), worker
    )
    if not new:
        _check_same(store, name, request, run_id)
    return new, token


def check_id(what: str, value: Any) -> None:
    """Raise `ConfigurationError` for an id that a database or a person could not handle."""
    if not isinstance(value, str) or not 0 < len(value) <= _ID_LENGTH or not value.isprintable():
        raise ConfigurationError(f"{what} must be 1 to {_ID_LENGTH} printable characters, not {value!r:.80}")


def _check_same(store: Store, name: str, request: Request, run_id: str) -> None:
    row = runs.get(store, run_id)
    if row is None:
        raise InputMismatch(
            f"{run_id!r} is the id of a DBOS workflow that is no durable run; choose another run_id"
        )
    if row.name != name:
        raise InputMismatch(
            f"run {run_id!r} exists and belongs to the runner {row.name!r}, not {name!r}; choose another run_id"
        )
    first = load(run_id, runs.records(store, run_id)[:1])[0].value()
    if first["input"] != json.loads(dumps(request.input)) or first["thread"] != request.thread:
        raise InputMismatch(
            f"run {run_id!r} exists with another input; a run id names one piece of work: give new work a new id"
        )
