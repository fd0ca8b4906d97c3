"""Which points are tried."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from .attempts import Kill

T = TypeVar("T")


def sample(kills: Iterable[Kill], size: int) -> list[Kill]:
    """A fixed sample, spread over scenarios, and in each over ways, databases and kinds of boundary.

    The choice depends on names only, so it is the same every time.
    """
    scenarios = [
        _interleaved([_by_kind(found) for found in _groups(same, _setting)])
        for same in _groups(kills, lambda kill: kill.subject.name)
    ]
    return _interleaved(scenarios)[:size]


def _setting(kill: Kill) -> str:
    return f"{kill.subject.database.name} {kill.way}"


def _by_kind(kills: Sequence[Kill]) -> list[Kill]:
    """One kind of boundary after the other, beginning with another one in each scenario."""
    kinds = [sorted(kind, key=_fate) for kind in _groups(kills, lambda kill: kill.point.kind)]
    return _interleaved(sorted(kinds, key=lambda kind: _fate(kind[0])))


def _fate(kill: Kill) -> bytes:
    return hashlib.sha256(f"{kill.subject.name} {_setting(kill)} {kill.mode} {kill.point}".encode()).digest()


def _groups(kills: Iterable[Kill], name: Callable[[Kill], str]) -> list[list[Kill]]:
    found: dict[str, list[Kill]] = defaultdict(list)
    for kill in kills:
        found[name(kill)].append(kill)
    return [found[key] for key in sorted(found)]


def _interleaved(lists: Sequence[list[T]]) -> list[T]:
    """The first of each, then the second of each, and so on; the order of the lists is theirs."""
    return [item for row in zip_longest(*lists) for item in row if item is not None]
