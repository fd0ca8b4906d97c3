"""Serialisation of LangGraph's state: its own msgpack format with a closed list of types, checked when writing too.

LangGraph's serializer writes any type and, where the type is not allowed, hands plain data back when reading. Here a
type that is not allowed fails when it is written, so that nobody learns of it from a recovered run.
"""

import sys
from collections.abc import Iterable
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde._msgpack import (
    SAFE_MSGPACK_METHODS,
    SAFE_MSGPACK_TYPES,
)  # langgraph-checkpoint 4.3.2
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_DELTA_SNAPSHOT,
    EXT_METHOD_SINGLE_ARG,
    EXT_NUMPY_ARRAY,
    EXT_PYDANTIC_V1,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)

from .._core import logger
from .._core.errors import EncodingError

TypeName = tuple[str, ...]
"""Module and name of a class."""

_FORMATS = frozenset({"null", "bytes", "bytearray", "msgpack"})
_NAMED = frozenset(
    {
        EXT_CONSTRUCTOR_SINGLE_ARG,
        EXT_CONSTRUCTOR_POS_ARGS,
        EXT_CONSTRUCTOR_KW_ARGS,
        EXT_PYDANTIC_V1,
        EXT_PYDANTIC_V2,
    }
)


def strict_serde(allowlist: Iterable[TypeName | type] = ()) -> SerializerProtocol:
    """A serializer for LangGraph's safe types and those given, and for nothing else.

    Args:
        allowlist: classes, or their (module, name), that state may hold besides messages, documents, LangGraph's own
            types and the standard library's values. A compiled graph collects those of its schemas in
            `_serde_allowlist`.

    The serializer's methods raise `EncodingError` for other types, for values that msgpack has no form for, and when
    reading a format that it never writes.
    """
    return _StrictSerializer(allowlist)


class _StrictSerializer(JsonPlusSerializer):
    """A `JsonPlusSerializer`, so that `BaseCheckpointSaver.with_allowlist` can extend it."""

    def __init__(self, allowlist: Iterable[TypeName | type]) -> None:
        self._allowed = frozenset(
            (t.__module__, t.__name__) if isinstance(t, type) else tuple(t) for t in allowlist
        )
        super().__init__(allowed_msgpack_modules=self._allowed or None)
        self._seen: set[TypeName] = set()

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[TypeName | type]) -> JsonPlusSerializer:
        return _StrictSerializer([*self._allowed, *extra_allowlist])

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        try:
            format, data = super().dumps_typed(obj)
        except TypeError as error:  # ormsgpack's own errors among them
            raise EncodingError(str(error)) from error
        if format == "msgpack":
            for name in self._check(data) - self._seen:
                self._warn_unless_importable(name)
        return format, bytes(data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        format, content = data
        if format not in _FORMATS:
            raise EncodingError(f"the format {format!r} is never written here and is not read")
        if format == "msgpack":
            self._check(content)
        return super().loads_typed(data)

    def _check(self, data: bytes) -> set[TypeName]:
        """The types that serialised data names.

        Raises:
            EncodingError: one of them is not allowed.
        """
        names: set[TypeName] = set()
        refused: set[TypeName] = set()

        def visit(code: int, content: bytes) -> Any:
            parts = ormsgpack.unpackb(content, ext_hook=visit, option=ormsgpack.OPT_NON_STR_KEYS)
            if code in _NAMED:
                name: TypeName = (parts[0], parts[1])
                (names if name in SAFE_MSGPACK_TYPES or name in self._allowed else refused).add(name)
            elif code == EXT_METHOD_SINGLE_ARG:
                name = (parts[0], parts[1], parts[3])
                if name not in SAFE_MSGPACK_METHODS:
                    refused.add(name)
            elif code not in (EXT_DELTA_SNAPSHOT, EXT_NUMPY_ARRAY):
                refused.add(("msgpack", f"extension {code}"))
            return None

        ormsgpack.unpackb(data, ext_hook=visit, option=ormsgpack.OPT_NON_STR_KEYS)
        if refused:
            types = ", ".join(sorted(".".join(name) for name in refused))
            raise EncodingError(f"not on the list of types that are stored: {types}; name them in types=[…]")
        return names

    def _warn_unless_importable(self, name: TypeName) -> None:
        self._seen.add(name)
        if not hasattr(sys.modules.get(name[0]), name[1]):
            logger.warning(
                "%s is not at the top level of its module: values of this class are plain data once they were stored",
                ".".join(name),
            )
