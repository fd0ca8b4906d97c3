"""Leads CrewAI's own tests through `DurableCrew` and `DurableFlow`: every kickoff that a test makes.

A crew is copied for its run, as always; a flow is the test's own instance, which a function hands over. The kickoffs of
nested crews, and the flows that CrewAI is made of, are native.
"""

import inspect
import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from crewai import Crew

from conformance.ledger import Ledger
from durable_agents import runs
from durable_agents._core import RUN
from durable_agents._core.engine import RUNNERS
from durable_agents.crewai import DurableCrew, DurableFlow
from durable_agents.crewai._private import Flow
from durable_agents.errors import NotSupported, RunNotFound

Verb = Callable[..., Any]
Durable = DurableCrew | DurableFlow


def install(ledger: Ledger) -> None:
    """Replace the kickoffs of crews and of flows."""
    router = Router(ledger)
    verbs = {Crew: ("kickoff", "kickoff_async", "akickoff"), Flow: ("kickoff", "kickoff_async", "akickoff")}
    for cls, names in verbs.items():
        for name in names:
            native = getattr(cls, name)
            led = _async_verb if inspect.iscoroutinefunction(native) else _verb
            setattr(cls, name, led(native, router))


class Router:
    """Makes the durable form of crews and flows, and tells what became of their calls."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._numbers = itertools.count(1)

    def durable(self, native: Any) -> Durable | None:
        """The runner of a crew or flow; None where the call is to be native."""
        if RUN.get() is not None or getattr(type(native), "is_crewai_internal", False):
            return None
        name = f"{type(native).__name__}-{next(self._numbers)}"
        try:
            runner = (
                DurableCrew(native, name) if isinstance(native, Crew) else DurableFlow(lambda: native, name)
            )
        except NotSupported as error:
            self._ledger.refused(error)
            return None
        del RUNNERS[runner.name]  # a process that lives long would keep them all
        return runner

    @contextmanager
    def call(self, run_id: str) -> Iterator[None]:
        """Around a verb of a runner: tells of it, and ends it in silence when the runner has refused."""
        try:
            yield
        except NotSupported as error:
            if _has_steps(run_id):
                self._ledger.ran()
                raise
            self._ledger.refused(error)
        except BaseException:
            self._ledger.ran()
            raise
        else:
            self._ledger.ran()


def _has_steps(run_id: str) -> bool:
    try:
        return bool(runs.get(run_id).steps())
    except RunNotFound:
        return False


def _verb(native: Verb, router: Router) -> Verb:
    @wraps(native)
    def verb(self: Any, *args: Any, **keywords: Any) -> Any:
        durable = router.durable(self)
        if durable is not None:
            given, run_id = (
                inspect.signature(native).bind(self, *args, **keywords).arguments,
                uuid.uuid4().hex,
            )
            del given["self"]
            with router.call(run_id):
                return getattr(durable, native.__name__)(**given, run_id=run_id)
        return native(self, *args, **keywords)

    return verb


def _async_verb(native: Verb, router: Router) -> Verb:
    @wraps(native)
    async def verb(self: Any, *args: Any, **keywords: Any) -> Any:
        durable = router.durable(self)
        if durable is not None:
            given, run_id = (
                inspect.signature(native).bind(self, *args, **keywords).arguments,
                uuid.uuid4().hex,
            )
            del given["self"]
            with router.call(run_id):
                return await getattr(durable, native.__name__)(**given, run_id=run_id)
        return await native(self, *args, **keywords)

    return verb
