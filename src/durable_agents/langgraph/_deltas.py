"""Lists stored as what changed since a list that is stored already.

An element becomes a *token*: the digest of its row, or its encoding itself where that is shorter than a row's overhead.
A *node* builds a list: runs of another node's list, and new tokens in between. Rows and nodes are named by a digest of
their content, so that a name stands for one list for ever: whatever is put twice, lost or put elsewhere, a node cannot
come to mean another list, and no chain of nodes can lead back to itself.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from itertools import takewhile
from operator import attrgetter, eq, is_, truth
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

import ormsgpack
from langchain_core import messages
from langchain_core.documents import Document

Dump = Callable[[object], tuple[str, bytes]]
"""A value's serialised form: the name of the format and the bytes."""

NODE = "list"
"""The `type` of an item row that is a node."""

_INLINE_BYTES = 48
_DIGEST, _INLINE = b"\0", b"\1"


@dataclass(frozen=True, slots=True)
class Item:
    """A row to store: an element, or a node together with the node its runs are taken from."""

    digest: bytes
    base: bytes | None
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StoredList:
    """A list that is stored.

    Args:
        root: digest of its node.
        depth: how many nodes its node builds upon.
        tokens: one per element.
        elements: the very objects that were stored or loaded.
        guards: one per element; equals `_state(element)` until the element is changed in place.
    """

    root: bytes
    depth: int
    tokens: list[bytes]
    elements: list[object]
    guards: list[object]


Place = tuple[str, str]
"""Thread id and checkpoint namespace."""
_Places = OrderedDict[Place, Mapping[str, StoredList]]
_MAX_PLACES = 256
_MAX_PLACES_OUTSIDE = 32  # fewer than in a run: nothing ends that would let go of them


class KnownLists:
    """Lists that are stored and may be built upon, for the runs and the outside in which that is certain.

    What a run has staged is stored for this run and for nobody else: either it commits before all that the run writes
    later, or nothing of the run is ever written again. What it has read is in the database.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outside: _Places = OrderedDict()
        self._runs: WeakKeyDictionary[object, _Places] = WeakKeyDictionary()

    def get(self, run: object | None, place: Place) -> Mapping[str, StoredList]:
        with self._lock:
            return self._places(run).get(place, {})

    def replace(self, run: object | None, place: Place, lists: Mapping[str, StoredList]) -> None:
        """These, and no others, are the place's lists."""
        with self._lock:
            places = self._places(run)
            places[place] = lists
            places.move_to_end(place)
            while len(places) > (_MAX_PLACES_OUTSIDE if run is None else _MAX_PLACES):
                places.popitem(last=False)

    def forget(self, thread: str) -> None:
        with self._lock:
            for places in (self._outside, *self._runs.values()):
                for place in [place for place in places if place[0] == thread]:
                    del places[place]

    def _places(self, run: object | None) -> _Places:
        return self._outside if run is None else self._runs.setdefault(run, OrderedDict())


def encode_list(
    value: Sequence[object], known: StoredList | None, dump: Dump
) -> tuple[StoredList, list[Item]]:
    """Encode a list, as a delta of `known` if there is one, and the rows that are not stored yet.

    Elements that are the same objects as before, and unchanged, are not encoded again. A change in place is noticed in
    messages, documents and plain data, unless old and new compare equal (`1` and `True`); objects of other types are
    encoded again each time. A chain of nodes is never longer than the list it builds: it is then cheap to read beside
    the elements, and what the whole list costs, about 19 bytes per element, is paid once in as many supersteps.
    """
    elements = list(value)
    kept = _unchanged_prefix(known, elements) if known else 0
    tokens, guards = (known.tokens[:kept], known.guards[:kept]) if known else ([], [])
    rest = known.elements[kept:] if known else []
    moved = {id(element): at for at, element in enumerate(rest, kept)}
    items: list[Item] = []
    for element in elements[kept:]:
        at = moved.get(id(element))
        if known and at is not None and _is_unchanged(known.guards[at], element):
            tokens.append(known.tokens[at])
            guards.append(known.guards[at])
        else:
            guards.append(_guard(element))
            tokens.append(_encode(element, dump, items))
    if known and tokens == known.tokens:  # the same list under a new version
        return StoredList(known.root, known.depth, tokens, elements, guards), items
    parts = _runs(known.tokens, tokens, kept) if known and known.depth < len(tokens) else []
    if known and any(isinstance(part, list) for part in parts):
        base, depth, body = known.root, known.depth + 1, ormsgpack.packb(parts)
    else:
        base, depth, body = None, 0, ormsgpack.packb(tokens)
    root = _digest(NODE, body, base)
    items.append(Item(root, base, NODE, body))
    return StoredList(root, depth, tokens, elements, guards), items


def encode_elements(value: Sequence[object], dump: Dump) -> tuple[bytes, list[Item]]:
    """Encode a list that nothing will build upon: the body of the row that holds it, and its elements' rows."""
    items: list[Item] = []
    return ormsgpack.packb([_encode(element, dump, items) for element in value]), items


def loaded_list(root: bytes, tokens: list[bytes], depth: int, elements: Iterable[object]) -> StoredList:
    """A list as it was just read, before anybody else has seen its elements."""
    elements = list(elements)
    return StoredList(root, depth, tokens, elements, [_guard(element) for element in elements])


def parse_parts(body: bytes) -> list[Any]:
    """A node's parts: `[start, stop]` is a run of its base's tokens, bytes are a token."""
    parts: list[Any] = ormsgpack.unpackb(body)
    return parts


def resolve(root: bytes, nodes: Mapping[bytes, tuple[bytes | None, list[Any]]]) -> tuple[list[bytes], int]:
    """The tokens of the list that `root` builds, and the node's depth.

    Args:
        root: digest of the node.
        nodes: digest → base and parts, for the node and all that it builds upon.

    Raises:
        KeyError: a node is missing.
    """
    chain, at = [], root
    while True:
        base, parts = nodes[at]
        chain.append(parts)
        if base is None:
            break
        at = base
    tokens: list[bytes] = []
    for parts in reversed(chain):
        tokens = _build(parts, tokens)
    return tokens, len(chain) - 1


def digest_in(token: bytes) -> bytes | None:
    """The digest of the row that holds the token's element; None when the token holds it itself."""
    return token[1:] if token[:1] == _DIGEST else None


def inline_in(token: bytes) -> tuple[str, bytes]:
    """The serialised element that a token holds itself."""
    return "msgpack", token[1:]


def _encode(element: object, dump: Dump, items: list[Item]) -> bytes:
    type_, body = dump(element)
    if type_ == "msgpack" and len(body) <= _INLINE_BYTES:
        return _INLINE + body
    digest = _digest(type_, body)
    items.append(Item(digest, None, type_, body))
    return _DIGEST + digest


def _digest(type_: str, body: bytes, base: bytes | None = None) -> bytes:
    return blake2b(b"%s\0%s" % (type_.encode(), body), digest_size=16, key=base or b"").digest()


def _runs(base: list[bytes], tokens: list[bytes], start: int) -> list[object]:
    """`tokens` as runs of `base` and tokens that are not in it; the first `start` are the same."""
    start += _leading(map(eq, base[start:], tokens[start:]))
    run = [0, start]
    parts: list[object] = [run] if start else []
    places = {token: at for at, token in enumerate(base[start:], start)}
    for token in tokens[start:]:
        if parts and parts[-1] is run and run[1] < len(base) and base[run[1]] == token:
            run[1] += 1
        elif (at := places.get(token)) is not None:
            run = [at, at + 1]
            parts.append(run)
        else:
            parts.append(token)
    return parts


def _build(parts: list[Any], base: list[bytes]) -> list[bytes]:
    """The list that a node builds; `base` is used up."""
    runs = [part for part in parts if isinstance(part, list)]
    if len(runs) == 1 and runs[0] is parts[0] and runs[0][0] == 0:
        base[runs[0][1] :] = parts[1:]  # nearly every node keeps a prefix and appends: no need to copy it
        return base
    tokens: list[bytes] = []
    for part in parts:
        if isinstance(part, list):
            tokens += base[part[0] : part[1]]
        else:
            tokens.append(part)
    return tokens


def _leading(flags: Iterable[bool]) -> int:
    """How many of them are true before the first that is not; iterators written in C make it a pointer scan."""
    return sum(takewhile(truth, flags))


def _unchanged_prefix(known: StoredList, elements: list[object]) -> int:
    same = _leading(map(is_, known.elements, elements))
    try:
        return _leading(map(eq, known.guards[:same], map(_state, elements)))
    except Exception:  # what was put into an element in place may compare as it likes: look at each by itself
        return 0


def _is_unchanged(guard: object, element: object) -> bool:
    try:
        return bool(guard == _state(element))
    except Exception:
        return False


# What is compared to notice a change in place. A pydantic model's fields stand in `__dict__`, and those that a message
# was given beyond its class's in `__pydantic_extra__` (langchain-core 1.8).
_fields = attrgetter("__dict__", "__pydantic_extra__")
_MODELS = frozenset(
    {
        messages.AIMessage, messages.AIMessageChunk, messages.ChatMessage, messages.ChatMessageChunk,
        messages.FunctionMessage, messages.FunctionMessageChunk, messages.HumanMessage, messages.HumanMessageChunk,
        messages.RemoveMessage, messages.SystemMessage, messages.SystemMessageChunk, messages.ToolMessage,
        messages.ToolMessageChunk, Document,
    }
)  # fmt: skip
_ATOMS = frozenset({str, int, float, bool, type(None), bytes, datetime, date, time, timedelta, UUID, Decimal})
_PLAIN = _ATOMS | {dict, list, tuple, set}
_UNKNOWN, _NEVER = object(), object()


def _state(element: object) -> object:
    """What a guard is compared with."""
    kind = type(element)
    if kind in _MODELS:
        return _fields(element)
    return element if kind in _PLAIN else _UNKNOWN


def _guard(element: object) -> object:
    """The element's state with its containers copied, or something that equals no state."""
    try:
        return _copy(_state(element))
    except TypeError:
        return _NEVER


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {key: item if type(item) in _ATOMS else _copy(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) in _ATOMS else _copy(item) for item in value]
    if kind is tuple:
        return tuple(_copy(item) for item in value)
    if kind is set:
        return {_copy(item) for item in value}
    raise TypeError(kind)
