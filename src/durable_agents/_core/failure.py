"""Errors as records, and back as the type they were."""

import sys
import traceback
from typing import Any

from .codec import JSON
from .errors import EncodingError, RecordedError

_TEXT_LIMIT = 20_000


def encode(error: BaseException) -> dict[str, Any]:
    """Type, message, arguments and attributes as far as they are plain data, and the traceback's text."""
    cls = type(error)
    data: dict[str, Any] = {"type": f"{cls.__module__}:{cls.__qualname__}", "message": _text(error)}
    data["traceback"] = "".join(traceback.format_exception(error))[-_TEXT_LIMIT:]
    try:
        data["args"] = JSON.encode(list(error.args))
    except EncodingError:
        data["args"] = None
    attributes = {}
    for name, value in vars(error).items():
        try:
            attributes[name] = JSON.encode(value)
        except EncodingError:
            continue  # an attribute that is no plain data, such as a response object, is not kept
    if attributes:
        data["attributes"] = attributes
    return data


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<the error's own text failed: {type(broken).__name__}>"


def decode(data: dict[str, Any]) -> Exception:
    """The error again: its own type when that is an exception class this process has already imported.

    The constructor is not called: it may want other arguments, or do something.
    """
    module, _, qualname = str(data["type"]).partition(":")
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = vars(found).get(name) if found is not None else None
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return RecordedError(data["type"], data["message"], data.get("traceback", ""))
    arguments = data["args"]
    error = found.__new__(found)
    error.args = tuple(JSON.decode(arguments)) if arguments is not None else (data["message"],)
    for name, value in data.get("attributes", {}).items():
        try:
            setattr(error, name, JSON.decode(value))
        except AttributeError:
            continue  # a read-only property of the class
    return error
