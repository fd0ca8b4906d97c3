"""Which points are tried."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from .attempts import Kill

T = TypeVar("T")


def sample(kills: Iterable[Kill], size: int) -> list[Kill]:
    """A fixed sample, spread over scenarios, and in each over kinds of boundary, databases and modes.

    The choice depends on names only, so it is the same every time.
    """
    by_scenario: dict[str, dict[str, list[Kill]]] = defaultdict(lambda: defaultdict(list))
    for kill in kills:
        by_scenario[kill.subject.name][kill.point.kind].append(kill)
    spread = [
        _interleaved([_shuffled(kind) for kind in by_scenario[name].values()]) for name in sorted(by_scenario)
    ]
    return _interleaved(spread)[:size]


def _shuffled(kills: Sequence[Kill]) -> list[Kill]:
    def fate(kill: Kill) -> bytes:
        return hashlib.sha256(
            f"{kill.subject.name} {kill.point} {kill.mode} {kill.subject.database.name}".encode()
        ).digest()

    return sorted(kills, key=fate)


def _interleaved(lists: Sequence[list[T]]) -> list[T]:
    """The first of each, then the second of each, and so on; the order of the lists is theirs."""
    return [item for row in zip_longest(*lists) for item in row if item is not None]
