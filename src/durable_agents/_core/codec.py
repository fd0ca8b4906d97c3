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
import zoneinfo
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Protocol

import pydantic
from pydantic_core import PydanticUndefined

from .errors import EncodingError

TAG = "$"
_TOLD_BY_TEXT = (
    dt.date,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
    PurePath,
    complex,
    zoneinfo.ZoneInfo,
)
_BIG = 2**1024  # beyond, parsers of JSON refuse numbers
# One for all: `json.dumps` makes an encoder for each text unless it is asked for its own defaults.
_to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


class Codec(Protocol):
    """A framework's objects as JSON values, and back.

    `encode` raises `EncodingError` for a value without durable form; `decode(encode(value))` equals `value`.
    """

    def encode(self, value: Any, /) -> Any: ...

    def decode(self, data: Any, /) -> Any: ...


def dumps(data: Any) -> str:
    """JSON text of encoded data: ASCII, no blanks, no NaN."""
    return _to_json(data)


def described(value: Any) -> str:
    """The text of a call's input, by which it is known in every replay.

    A framework that has kept a value gives back much the same: lists for tuples, all fields of a model as set, text
    without lone surrogates. Such differences are none here. Of an object that has no content to be told by only the
    type counts: its text may hold an address.
    """
    try:
        return json.dumps(_content(value, ()), sort_keys=True)
    except (RecursionError, ValueError):  # nested too deeply, or a number too long to be written
        return type_name(type(value))


def _content(value: Any, above: tuple[int, ...]) -> Any:
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value, (str, int)) else value.name
    if isinstance(value, str):
        return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, _TOLD_BY_TEXT):
        return str(value)
    if id(value) in above:
        return "…"
    above = (*above, id(value))
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {_content(key, above): _content(each, above) for key, each in value.items()}
        return sorted(
            ([_content(key, above), _content(each, above)] for key, each in value.items()), key=repr
        )
    if isinstance(value, (list, tuple, deque)):
        return [_content(each, above) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_content(each, above) for each in value), key=repr)
    name = type_name(type(value))
    if isinstance(value, pydantic.BaseModel):
        return [name, _content({**value.__dict__, **(value.__pydantic_extra__ or {})}, above)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return [name, _content({field: getattr(value, field) for field in fields}, above)]
    return name


def type_name(cls: type) -> str:
    """`module:qualname`, the name under which records know a type."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _encode_datetime(value: dt.datetime) -> list[Any]:
    zone = value.tzinfo
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        return [value.replace(tzinfo=None).isoformat(), value.fold, zone.key]
    if zone is not None and type(zone) is not dt.timezone:
        raise EncodingError(
            f"a datetime has a time zone of type {type(zone).__qualname__}; use zoneinfo or datetime.timezone"
        )
    return [value.isoformat(), value.fold]


def _encode_time(value: dt.time) -> list[Any]:
    if value.tzinfo is not None and type(value.tzinfo) is not dt.timezone:
        raise EncodingError("a time without a date has a time zone that depends on one; use a datetime")
    return [value.isoformat(), value.fold]


def _decode_datetime(data: list[Any]) -> dt.datetime:
    value = dt.datetime.fromisoformat(data[0]).replace(fold=data[1])
    return value.replace(tzinfo=zoneinfo.ZoneInfo(data[2])) if len(data) > 2 else value


def _is_text(value: str) -> bool:
    """Whether JSON gives the string back: two lone surrogates side by side would come back as one character."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_PLAIN: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode(), base64.b64decode),
    bytearray: (
        "bytearray",
        lambda v: base64.b64encode(v).decode(),
        lambda s: bytearray(base64.b64decode(s)),
    ),
    complex: ("complex", lambda v: [repr(v.real), repr(v.imag)], lambda v: complex(*map(float, v))),
    dt.datetime: ("datetime", _encode_datetime, _decode_datetime),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: ("time", _encode_time, lambda v: dt.time.fromisoformat(v[0]).replace(fold=v[1])),
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
        try:
            return self._encode(value, "value", set())
        except RecursionError:
            raise EncodingError("the value is nested too deeply") from None

    def _encode(self, value: Any, where: str, above: set[int]) -> Any:
        cls = type(value)
        if value is None or cls is bool:
            return value
        if cls is str:
            return value if _is_text(value) else {TAG: "str", "v": [ord(char) for char in value]}
        if cls is int:
            return value if -_BIG < value < _BIG else {TAG: "int", "v": hex(value)}
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
            if TAG not in value and all(type(k) is str and _is_text(k) for k in value):
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
                f"{where} is a {cls.__module__}.{cls.__qualname__}, which may not be stored; {_way_out(cls)}"
            )
        fields = self._model_fields(value) if isinstance(value, pydantic.BaseModel) else _fields(value)
        return {TAG: "type", "t": name, "v": self._encode(fields, where, above)}

    def _model_fields(self, model: pydantic.BaseModel) -> dict[str, Any]:
        """What a model consists of. Private attributes without durable form, such as a client, start anew."""
        known = type(model).model_fields
        parts: dict[str, Any] = {
            "fields": {k: v for k, v in model.__dict__.items() if k in known},
            "set": sorted(model.model_fields_set),
        }
        if model.__pydantic_extra__:
            parts["extra"] = model.__pydantic_extra__
        private = {k: v for k, v in (model.__pydantic_private__ or {}).items() if self._is_durable(v)}
        if private:
            parts["private"] = private
        return parts

    def _is_durable(self, value: Any) -> bool:
        try:
            self._encode(value, "", set())
        except EncodingError:
            return False
        return True

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
        if tag == "int":
            return int(value, 16)
        if tag == "str":
            return "".join(map(chr, value))
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
        if issubclass(cls, enum.Flag):
            return cls(value)
        if issubclass(cls, enum.Enum):
            return cls[value]
        if issubclass(cls, pydantic.BaseModel):
            return _model(cls, value)
        built = object.__new__(cls)
        for field, content in value.items():
            object.__setattr__(built, field, content)
        return built


def _way_out(cls: type) -> str:
    if issubclass(cls, (pydantic.BaseModel, enum.Enum)) or dataclasses.is_dataclass(cls):
        return f"allow it with types=[{cls.__name__}] on the runner, or return plain data"
    return "use plain data, or a pydantic model, dataclass or enum that is named in types=[…]"


def _fields(value: Any) -> Any:
    """What a typed value consists of, without calling anything of its class."""
    if isinstance(value, enum.Flag):
        return value.value
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        try:
            object.__new__(type(value))
        except TypeError:
            raise EncodingError(
                f"{type(value).__qualname__} is a dataclass and more: it derives from a built-in type"
            ) from None
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)}
    raise EncodingError(f"{type(value).__qualname__} is neither a pydantic model, a dataclass nor an enum")


def _model(cls: type[pydantic.BaseModel], parts: dict[str, Any]) -> pydantic.BaseModel:
    """The model as it was, without validating: validators may reject, change or act on what they already accepted."""
    built = cls.__new__(cls)
    private = {}
    for name, attribute in cls.__private_attributes__.items():
        value = parts.get("private", {}).get(name, attribute.get_default())
        if value is not PydanticUndefined:
            private[name] = value
    extra = parts.get("extra", {}) if cls.model_config.get("extra") == "allow" else None
    object.__setattr__(built, "__dict__", parts["fields"])
    object.__setattr__(built, "__pydantic_fields_set__", set(parts["set"]))
    object.__setattr__(built, "__pydantic_extra__", extra)
    object.__setattr__(built, "__pydantic_private__", private if cls.__private_attributes__ else None)
    return built


JSON = JsonCodec()
"""Plain data: JSON's types, bytes, dates, decimals, UUIDs, tuples and sets."""
