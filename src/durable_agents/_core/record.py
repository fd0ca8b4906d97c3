"""The record of one finished step: its format, its hash, its place in the chain.

Three parts, kept apart. The **body** is ASCII JSON, stored as it was hashed and never written again to be checked. The
**signature** covers the body's pre-authentication encoding (empty until signing is on). The **payload** is the result
or error; the body only holds its salted digest, so that a payload can be redacted and the chain still verifies.

`hash = SHA-256(PAE(RECORD, body))` and `out = SHA-256(PAE(PAYLOAD, salt ‖ payload))`, with DSSE's PAE
(https://github.com/secure-systems-lab/dsse). Every body names the hash of the one before it as `prev`.

Body fields, absent when empty: `v` format, `run` id, `seq` from 1, `prev` hash, `kind`, `path`, `name`, `at` and
`started` in microseconds since 1970, `worker`, `epoch` (how often the run was claimed), `in` digest of the input,
`out` digest of the payload, `rows` digest of the framework state written with it, `status` (`error`, `opaque` or
`cancelled`), `attempt`, `usage`. Numbers are integers: parsers disagree about floats.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from .codec import dumps
from .errors import BrokenRecord

if TYPE_CHECKING:
    from .stream import Emitted

FORMAT = 1
RECORD = "application/vnd.durable-agents.record.v1+json"
PAYLOAD = "application/vnd.durable-agents.payload.v1"
INPUT = "application/vnd.durable-agents.input.v1"
ROWS = "application/vnd.durable-agents.rows.v1"

# Kinds the core writes itself; all others are steps.
OPEN, CLOSE, WAIT, ANSWER, FLUSH = "open", "close", "wait", "answer", "flush"
RETRY, MARK, CODE = "retry", "mark", "code"
OWN_KINDS = (OPEN, CLOSE, WAIT, ANSWER, FLUSH, RETRY, MARK, CODE)


def pae(kind: str, body: bytes) -> bytes:
    """DSSE v1 pre-authentication encoding."""
    tag = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(tag), tag, len(body), body)


def digest(kind: str, body: bytes) -> str:
    return hashlib.sha256(pae(kind, body)).hexdigest()


def now_us() -> int:
    return time.time_ns() // 1000


def utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def rows_digest(statements: Iterable[tuple[str, Iterable[tuple[object, ...]]]]) -> str:
    """Digest of the rows written beside a record: each value with its type and length, in order."""
    parts: list[bytes] = []
    for sql, rows in statements:
        parts.append(sql.encode())
        for row in rows:
            for value in row:
                raw = value if isinstance(value, bytes) else repr(value).encode()
                parts.append(b"%b %d " % (type(value).__name__.encode(), len(raw)))
                parts.append(raw)
    return digest(ROWS, b"".join(parts))


@dataclass(frozen=True, slots=True)
class Usage:
    """What a model step consumed.

    Args:
        model: the provider's name of the model.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        cost: money, as a decimal string with its currency, such as "0.0125 USD"; None when unknown.
    """

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {k: v for k in ("model", "input_tokens", "output_tokens", "cost") if (v := getattr(self, k))}


@dataclass(frozen=True, slots=True)
class Draft:
    """A record before it has its number and its link.

    `payload` is JSON text; `status` is "", "error", "opaque" or "cancelled"; `started` is in microseconds since 1970;
    `events` are committed with the record and no part of it.
    """

    kind: str
    path: str
    payload: str
    name: str = ""
    status: str = ""
    started: int = 0
    input: str = ""
    attempt: int = 1
    usage: Usage | None = None
    events: Sequence["Emitted"] = ()

    def seal(
        self, *, run: str, seq: int, prev: str, at: int, worker: str, epoch: int, rows: str = ""
    ) -> "Record":
        """The finished record at its place in the chain of `run`."""
        salt = os.urandom(16)
        body: dict[str, Any] = {
            "v": FORMAT,
            "run": run,
            "seq": seq,
            "prev": prev,
            "kind": self.kind,
            "path": self.path,
        }
        if self.name:
            body["name"] = self.name
        body["at"] = at
        if self.started:
            body["started"] = self.started
        body["worker"], body["epoch"] = worker, epoch
        if self.input:
            body["in"] = self.input
        body["out"] = digest(PAYLOAD, salt + self.payload.encode())
        if rows:
            body["rows"] = rows
        if self.status:
            body["status"] = self.status
        if self.attempt != 1:
            body["attempt"] = self.attempt
        if self.usage:
            body["usage"] = self.usage.to_json()
        return Record(body, dumps(body), "", salt.hex(), self.payload)

    def after(self, last: "Record", *, epoch: int, worker: str = "") -> "Record":
        """The finished record after `last`, for a run that nobody drives."""
        return self.seal(
            run=str(last.body["run"]),
            seq=last.seq + 1,
            prev=last.hash,
            at=max(int(last.body["at"]), now_us()),
            worker=worker,
            epoch=epoch,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One finished step as it is stored."""

    body: Mapping[str, Any]
    text: str = field(repr=False)
    signature: str = field(repr=False)
    salt: str = field(repr=False)
    payload: str | None = field(repr=False)

    @property
    def hash(self) -> str:
        return digest(RECORD, self.text.encode())

    @property
    def path(self) -> str:
        return str(self.body["path"])

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def seq(self) -> int:
        return int(self.body["seq"])

    @property
    def status(self) -> str:
        return str(self.body.get("status", ""))

    def is_among(self, records: Sequence["Record"]) -> bool:
        """Whether exactly this record stands at its place: an earlier try was committed, its acknowledgement lost."""
        return len(records) >= self.seq and records[self.seq - 1].text == self.text

    def value(self) -> Any:
        """The payload as JSON data; `BrokenRecord` when it is redacted or is not what the body vouches for."""
        if self.payload is None:
            raise BrokenRecord(
                f"step {self.path!r} of run {self.body['run']!r}: its payload has been redacted"
            )
        if digest(PAYLOAD, bytes.fromhex(self.salt) + self.payload.encode()) != self.body["out"]:
            raise BrokenRecord(
                f"step {self.path!r} of run {self.body['run']!r}: its payload was changed after it was recorded"
            )
        return json.loads(self.payload)

    def dump(self) -> str:
        """The stored text: JSON that DBOS's own tools decode."""
        return dumps(
            {"body": self.text, "signature": self.signature, "salt": self.salt, "payload": self.payload}
        )

    @classmethod
    def load(cls, stored: str) -> Self:
        try:
            data = json.loads(stored)
            body = json.loads(data["body"])
            record = cls(body, data["body"], data["signature"], data["salt"], data["payload"])
            _check_shape(record)
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise BrokenRecord(f"a stored record is not one: {error!r:.200}") from error
        return record


_TEXTS = ("run", "prev", "kind", "path", "worker", "out")
_NUMBERS = ("v", "seq", "at", "epoch")
_OPTIONAL: dict[str, type] = {
    "name": str, "in": str, "rows": str, "status": str, "started": int, "attempt": int, "usage": dict
}  # fmt: skip
_LATEST_US = 253_402_300_799_000_000  # the year 9999


def _check_shape(record: Record) -> None:
    """Raise `TypeError` or `ValueError` for what no version of this library has written."""
    body = record.body
    shape = {**dict.fromkeys(_TEXTS, str), **dict.fromkeys(_NUMBERS, int)}
    shape |= {name: kind for name, kind in _OPTIONAL.items() if name in body}
    for name, kind in shape.items():
        if type(body[name]) is not kind:
            raise TypeError(f"{name} is {body[name]!r:.80}")
    if not 0 <= body["at"] <= _LATEST_US or not 0 <= body.get("started", 0) <= _LATEST_US:
        raise ValueError("a time out of range")
    Usage(**body.get("usage", {}))
    bytes.fromhex(record.salt)
    if not record.text.isascii() or not isinstance(record.payload, str | None):
        raise TypeError("text or payload")


def check_link(record: Record, run: str, seq: int, prev: str) -> None:
    """Raise `BrokenRecord` unless the record stands where the chain of this run expects it."""
    body = record.body
    if (body.get("v"), body.get("run"), body.get("seq"), body.get("prev")) != (FORMAT, run, seq, prev):
        raise BrokenRecord(
            f"run {run!r}: record {seq} does not fit its chain (found v={body.get('v')!r}, run={body.get('run')!r}, "
            f"seq={body.get('seq')!r}); the table was changed from outside, or by a newer version of this library"
        )
