"""Results of tools and nodes as plain data, where they have no durable form of their own.

A tool may return whatever pydantic can make JSON of, and a model sees only that JSON. So what the codec refuses, such
as a model that is not in `types=[…]`, is recorded as ADK writes it into an event: after a crash the JSON is the same,
and the object is plain data.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from .._core import Codec, logger
from .._core.errors import EncodingError

_SHOWN = 20
"""How deep an error says where the odd part of a value is."""


def plain(value: Any) -> Any:
    """A value as ADK writes it into an event's function response.

    Raises:
        EncodingError: there is no JSON of it; the message says of which part.
    """
    try:
        return _jsonable(value)
    except Exception as error:
        where = "".join(_odd(value))
        raise EncodingError(f"{f'at {where}: ' if where else ''}{error}") from error


def _jsonable(value: Any) -> Any:
    return to_jsonable_python(value, by_alias=False, exclude_none=True, bytes_mode="base64")


def _odd(value: Any) -> Iterator[str]:
    """The way to the part of a value of which there is no JSON."""
    above: list[Any] = []
    while len(above) < _SHOWN:
        above.append(value)
        for name, part in _parts(value):
            if any(part is each for each in above):
                yield name
                return
            if not _is_jsonable(part):
                yield name
                value = part
                break
        else:
            return


def _is_jsonable(value: Any) -> bool:
    try:
        _jsonable(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{name!r}]", part) for name, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{at}]", part) for at, part in enumerate(value))
    elif isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        yield from ((f".{name}", part) for name, part in vars(value).items())


class Results:
    """Results in the form in which they are recorded. `codec` is that of the app, and has the last word."""

    codec: Codec

    def __init__(self) -> None:
        self._told: set[type] = set()

    def response(self, result: Any) -> Any:
        """What a tool returned to a model. ADK wraps what is no mapping, so also what has become one here."""
        durable = self._durable(result)
        return {"result": durable} if isinstance(durable, dict) and not isinstance(result, dict) else durable

    def output(self, result: Any) -> Any:
        """What a node gave. Of a model ADK makes a mapping itself, in this way."""
        if isinstance(result, BaseModel) and self._refusal(result) is not None:
            result = result.model_dump()
        return self._durable(result)

    def _durable(self, value: Any) -> Any:
        try:
            return self._softened(value)
        except RecursionError:
            return value  # the codec says what is wrong with it

    def _softened(self, value: Any) -> Any:
        cls = type(value)
        if value is None or cls in (str, int, float, bool, bytes):
            return value
        if cls is list:
            return [self._softened(part) for part in value]
        if cls is dict and all(type(name) is str for name in value):
            return {name: self._softened(part) for name, part in value.items()}
        refusal = self._refusal(value)
        if refusal is None or isinstance(value, Iterator):  # which to read would be to use up
            return value
        try:
            data = plain(value)
        except EncodingError:
            return value
        if cls not in self._told:
            self._told.add(cls)
            logger.warning("a result is recorded as plain data, and is that after a crash: %s", refusal)
        return data

    def _refusal(self, value: Any) -> EncodingError | None:
        try:
            self.codec.encode(value)
        except EncodingError as refusal:
            return refusal
        return None
