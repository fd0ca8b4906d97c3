"""Death at a COMMIT: the process kills itself just before or just after that of one operation."""

from typing import Any

import effects

from durable_agents._core import run
from durable_agents._core.store import runs


def die(operation: str, when: str) -> None:
    """SIGKILL at the first `start`, `claim`, `park`, `answer` or `finish` that does something.

    Args:
        when: `begin` before its transaction, `before` its COMMIT with everything else done, `after` its COMMIT.
    """
    module: Any = run if operation == "answer" else runs
    do = getattr(module, operation)

    def dying(store: Any, *given: Any, **options: Any) -> Any:
        return do(_Mortal(store, when), *given, **options)

    setattr(module, operation, dying)


class _Mortal:
    """The store, for one operation."""

    def __init__(self, store: Any, when: str) -> None:
        self._store, self._when = store, when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, work: Any) -> Any:
        if self._when == "begin":
            effects.die()

        def inside(tx: Any) -> Any:
            done = work(tx)
            if self._when == "before" and done != []:  # a claim that finds nothing
                effects.die()
            return done

        done = self._store.transact(inside)
        if self._when == "after" and done != []:
            effects.die()
        return done
