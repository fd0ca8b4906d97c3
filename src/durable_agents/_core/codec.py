"""Values as JSON, and back, by allow-list.

JSON's own types stay as they are. Everything else is a tagged object `{"$": tag, "v": …}`; a user's dict that has the
key "$" or keys that are no strings is tagged too. Pydantic models, dataclasses and enums are coded by name, and only
those the codec was given: a name that stands only in the database is never looked up, imported or called. What is not
allowed fails when it is written, where somebody sees it.

Not kept: identity of shared objects (each place gets its own copy) and subclasses of built-in types.
"""

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pydantic

from .errors import EncodingError

TAG = "$"


class Codec(Protocol):
    """A framework's objects as JSON values, and back.

    `encode` raises `EncodingError` for a value without durable form; `decode(encode(value))` equals `value`.
    """

    def encode(self, value: Any, /) -> Any: ...

    def decode(self, data: Any, /) -> Any: ...


def dumps(data: Any) -> str:
    """JSON text of encoded data: ASCII, no blanks, no NaN."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def type_name(cls: type) -> str:
    """`module:qualname`, the name under which records know a type."""
    return f"{cls.__module__}:{cls.__qualname__}"


_PLAIN: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode(), base64.b64decode),
    bytearray: (
        "bytearray",
        lambda v: base64.b64encode(v).decode(),
        lambda s: bytearray(base64.b64decode(s)),
    ),
    complex: ("complex", lambda v: [v.real, v.imag], lambda v: complex(*v)),
    dt.datetime: (
        "datetime",
        lambda v: [v.isoformat(), v.fold],
        lambda v: dt.datetime.fromisoformat(v[0]).replace(fold=v[1]),
    ),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: ("time", dt.time.isoformat, dt.time.fromisoformat),
    dt.timedelta: (
        "timedelta",
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: dt.timedelta(days=v[0], seconds=v[1], microseconds=v[2]),
    ),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
}
_PLAIN_BY_TAG = {tag: decode for tag, _, decode in _PLAIN.values()}
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_SEQUENCES_BY_TAG: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}


class JsonCodec:
    """The library's own codec.

    Args:
        types: pydantic models, dataclasses and enums that may be stored and rebuilt.
        hooks: types with a coder of their own: `{type: (encode, decode)}`, each from and to encodable values.
    """

    def __init__(
        self,
        types: Iterable[type] = (),
        hooks: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] | None = None,
    ) -> None:
        self._types = {type_name(cls): cls for cls in types}
        self._hooks = {type_name(cls): coders for cls, coders in (hooks or {}).items()}

    def encode(self, value: Any) -> Any:
        return self._encode(value, "value", set())

    def _encode(self, value: Any, where: str, above: set[int]) -> Any:
        cls = type(value)
        if value is None or cls is str or cls is bool or cls is int:
            return value
        if cls is float:
            return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
        if plain := _PLAIN.get(cls):
            tag, encode, _ = plain
            return {TAG: tag, "v": encode(value)}
        if id(value) in above:
            raise EncodingError(f"{where} contains itself")
        above.add(id(value))
        try:
            return self._encode_compound(cls, value, where, above)
        finally:
            above.discard(id(value))

    def _encode_compound(self, cls: type, value: Any, where: str, above: set[int]) -> Any:
        if cls is list:
            return [self._encode(v, f"{where}[{i}]", above) for i, v in enumerate(value)]
        if cls is dict:
            if all(type(k) is str for k in value) and TAG not in value:
                return {k: self._encode(v, f"{where}.{k}", above) for k, v in value.items()}
            pairs = [
                [self._encode(k, f"key of {where}", above), self._encode(v, f"{where}[{k!r}]", above)]
                for k, v in value.items()
            ]
            return {TAG: "dict", "v": pairs}
        if tag := _SEQUENCES.get(cls):
            items = [self._encode(v, f"{where}[…]", above) for v in value]
            # Sets iterate in the order of hashes, which differs between processes; their text must not.
            return {TAG: tag, "v": items if cls is tuple else sorted(items, key=dumps)}
        name = type_name(cls)
        if hook := self._hooks.get(name):
            return {TAG: "type", "t": name, "v": self._encode(hook[0](value), where, above)}
        if self._types.get(name) is not cls:
            raise EncodingError(
                f"{where} is a {cls.__module__}.{cls.__qualname__}, which may not be stored; "
                f"allow it with types=[{cls.__name__}] on the runner, or return plain data"
            )
        return {TAG: "type", "t": name, "v": self._encode(_fields(value), where, above)}

    def decode(self, data: Any) -> Any:
        if isinstance(data, list):
            return [self.decode(v) for v in data]
        if not isinstance(data, dict):
            return data
        tag = data.get(TAG)
        if tag is None:
            return {k: self.decode(v) for k, v in data.items()}
        value = data["v"]
        if tag == "dict":
            return {self.decode(k): self.decode(v) for k, v in value}
        if tag == "float":
            return float(value)
        if plain := _PLAIN_BY_TAG.get(tag):
            return plain(value)
        if sequence := _SEQUENCES_BY_TAG.get(tag):
            return sequence([self.decode(v) for v in value])
        return self._rebuild(data.get("t"), self.decode(value))

    def _rebuild(self, name: Any, value: Any) -> Any:
        if hook := self._hooks.get(name):
            return hook[1](value)
        cls = self._types.get(name)
        if cls is None:
            raise EncodingError(
                f"a stored value is a {name}, which is not allowed here; add it with types=[…] on the runner"
            )
        if issubclass(cls, enum.Enum):
            return cls[value]
        if issubclass(cls, pydantic.BaseModel):
            return _model(cls, value["fields"], set(value["set"]))
        built = object.__new__(cls)
        for field, content in value.items():
            object.__setattr__(built, field, content)
        return built


def _fields(value: Any) -> Any:
    """What a typed value consists of, without calling anything of its class."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, pydantic.BaseModel):
        fields = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return {"fields": fields, "set": sorted(value.model_fields_set)}
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
    raise EncodingError(f"{type(value).__qualname__} is neither a pydantic model, a dataclass nor an enum")


def _model(cls: type[pydantic.BaseModel], fields: dict[str, Any], fields_set: set[str]) -> pydantic.BaseModel:
    """The model as it was, without validating: validators may reject, change or act on what they already accepted."""
    built = cls.__new__(cls)
    known = cls.model_fields
    extra = {k: v for k, v in fields.items() if k not in known}
    private = {k: v.get_default() for k, v in cls.__private_attributes__.items()}
    object.__setattr__(built, "__dict__", {k: v for k, v in fields.items() if k in known})
    object.__setattr__(built, "__pydantic_fields_set__", fields_set)
    object.__setattr__(
        built, "__pydantic_extra__", extra if cls.model_config.get("extra") == "allow" else None
    )
    object.__setattr__(built, "__pydantic_private__", private or None)
    return built


JSON = JsonCodec()
"""Plain data: JSON's types, bytes, dates, decimals, UUIDs, tuples and sets."""
