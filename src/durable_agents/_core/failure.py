"""Errors as records, and back as the type they were."""

import sys
import traceback
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any

from .codec import JSON
from .errors import EncodingError, RecordedError

_TEXT_LIMIT = 20_000
_NESTING_LIMIT = 20
_TAG = "__durable_agents_steps__"
_ARGS: Any = vars(BaseException)["args"]
_DICT: Any = vars(BaseException)["__dict__"]


def encode(error: BaseException) -> dict[str, Any]:
    """Type, message, traceback, a group's members, and the arguments and attributes that are plain data."""
    return _encode(error, 0)


def _encode(error: BaseException, depth: int) -> dict[str, Any]:
    cls = type(error)
    data: dict[str, Any] = {"type": f"{cls.__module__}:{cls.__qualname__}", "message": text(error)}
    if depth == 0:
        data["traceback"] = _traceback(error)[-_TEXT_LIMIT:]
    if isinstance(error, BaseExceptionGroup):
        data["args"] = [error.message]
        members = error.exceptions if depth < _NESTING_LIMIT else ()
        data["exceptions"] = [_encode(member, depth + 1) for member in members]
    else:
        try:
            data["args"] = JSON.encode(list(error.args))
        except EncodingError:
            data["args"] = None
    native = {}
    for name in _native(cls):
        with suppress(AttributeError, EncodingError):
            if (value := getattr(error, name)) is not None:
                native[name] = JSON.encode(value)
    if native:
        data["native"] = native
    attributes = {}
    for name, value in _dictionary(error).items():
        if name == _TAG:
            continue
        try:
            attributes[name] = JSON.encode(value)
        except EncodingError:
            continue  # no plain data, such as a response object
    if attributes:
        data["attributes"] = attributes
    return data


def _native(cls: type) -> dict[str, Any]:
    """What the built-in exceptions that a class derives from keep outside of `args` and the dictionary."""
    return {
        name: member
        for base in cls.__mro__
        if base.__module__ == "builtins" and base not in (BaseException, object, BaseExceptionGroup)
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }


def tag(error: BaseException, run_id: str, path: str) -> None:
    """Note on an error that this step recorded it, so that `paths` finds the step whatever the error becomes."""
    _dictionary(error).setdefault(_TAG, []).append((run_id, path))


def paths(error: BaseException, run_id: str) -> list[str]:
    """The steps of the run that recorded this error, one of its causes, or one of its members."""
    found: list[str] = []
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found += [
            path for run, path in _dictionary(each).get(_TAG, ()) if run == run_id and path not in found
        ]
        left += [each.__cause__, each.__context__]  # also what `from None` keeps out of the traceback
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return found


def _dictionary(error: BaseException) -> dict[str, Any]:
    """The error's attributes, whatever its class makes of `__dict__`."""
    found: dict[str, Any] = _DICT.__get__(error)
    return found


def text(error: BaseException) -> str:
    """The error's own text, or what went wrong when it was asked for."""
    try:
        return str(error)
    except Exception as broken:
        return f"<{type(error).__name__}, whose text raises {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as broken:
        return f"<no traceback: {type(broken).__name__}>"


def decode(data: dict[str, Any]) -> Exception:
    """The error again: its own type when that is an exception class this process has already imported.

    No code of the class runs: its constructor may want other arguments, or do something. The built-in exception it
    derives from is constructed with the recorded arguments, which sets what only that can set (`errno`, a group's
    members), and the recorded attributes are put into its dictionary.
    """
    found = _class(str(data["type"]))
    if found is None:
        return _recorded(data)
    native = next(cls for cls in found.__mro__ if cls.__module__ == "builtins")
    members = [decode(member) for member in data.get("exceptions", ())]
    try:
        arguments = JSON.decode(data["args"]) if data["args"] is not None else [data["message"]]
        given = [*arguments, members] if members else arguments
        error: Exception = native.__new__(found, *given)
        native.__init__(error, *given)  # type: ignore[misc]
        if not members:
            _ARGS.__set__(error, tuple(arguments))  # not `error.args =`: the class may have a __setattr__
        own = _native(found)
        for name, value in data.get("native", {}).items():
            own[name].__set__(error, JSON.decode(value))
        error.__dict__.update({k: JSON.decode(v) for k, v in data.get("attributes", {}).items()})
    except (LookupError, TypeError, ValueError, AttributeError):
        return _recorded(data)
    return error


def is_of(data: dict[str, Any], cls: type[Exception]) -> bool:
    """Whether the recorded error is of exactly this class."""
    return data.get("type") == f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> type[Exception] | None:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _recorded(data: dict[str, Any]) -> RecordedError:
    return RecordedError(str(data["type"]), str(data["message"]), str(data.get("traceback", "")))
