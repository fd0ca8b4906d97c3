"""The engine. Integrations use the names below and nothing else of it; only this package knows DBOS."""

from . import effects, engine, failure
from .codec import JSON, Codec, JsonCodec, described, dumps, type_name
from .context import RUN, SCOPE, Scope, acting, escape, having, here, inside, lend, lend_call, scope
from .cut import cut
from .execution import Execution
from .log import logger
from .opening import Request
from .parts import aparts, parts
from .pause import Pause, Question
from .record import Draft, Record, Usage, now_us
from .run import Run, Step
from .runner import OnCodeChange, Options, Restore, Runner, default_name, new_id
from .standin import StandIn
from .step import Call, astep, begin, idempotency_key, is_replaying, step
from .store import Statement, Store
from .stream import Event, emit

__all__ = [
    "JSON",
    "RUN",
    "SCOPE",
    "Call",
    "Codec",
    "Draft",
    "Event",
    "Execution",
    "JsonCodec",
    "OnCodeChange",
    "Options",
    "Pause",
    "Question",
    "Record",
    "Request",
    "Restore",
    "Run",
    "Runner",
    "Scope",
    "StandIn",
    "Statement",
    "Step",
    "Store",
    "Usage",
    "acting",
    "aparts",
    "astep",
    "begin",
    "cut",
    "default_name",
    "described",
    "dumps",
    "effects",
    "emit",
    "engine",
    "escape",
    "failure",
    "having",
    "here",
    "idempotency_key",
    "inside",
    "is_replaying",
    "lend",
    "lend_call",
    "logger",
    "new_id",
    "now_us",
    "parts",
    "scope",
    "step",
    "type_name",
]
