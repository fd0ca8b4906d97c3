"""Whether a worker drives a run it has just claimed: run and code must fit; a run that stops its workers rests."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .codec import dumps
from .errors import Aborted, CancelRequested, CodeChanged, NotRecoverable
from .execution import Execution
from .journal import load
from .log import logger
from .opening import version_of
from .record import CODE, OPEN, Draft, Record
from .store import Store, runs

if TYPE_CHECKING:
    from .runner import Runner

_REST_FROM = 3
# A run that kills or stops its worker each time would otherwise go round for ever.
_FRUITLESS_CLAIMS = 15


_TOLD_AT_ONCE = 100
_ADVICE = (
    "it waits for a worker that has the code it began with; "
    'give the runner on_code_change="continue" to go on with this one'
)


class NotNow(Exception):
    """The run has been given back, to be claimed again later."""


def admit(execution: Execution, row: runs.Row) -> None:
    """Raise, having given the run back, when it is not to be driven here and now.

    Raises:
        NotNow: it was claimed again and again without a new record, and rests.
        CodeChanged: the agent is built in another way than when the run began, and its runner was not told to go on.
    """
    if row.cancelled:  # its last owner died before it heard of that
        execution.stop(CancelRequested(f"run {execution.id!r} was cancelled"))
        return
    _rest(execution, row)
    if execution.closing is None:
        _check_code(execution)
    if row.blocked:
        runs.unblock(execution.engine.store, execution.id)
    observers = execution.journal.opening.get("observers", ())
    if observers and execution.live is None and execution.runner.restore is None:
        logger.warning(
            "run %r goes on without %s, which only its caller had", execution.id, ", ".join(observers)
        )


def _rest(execution: Execution, row: runs.Row) -> None:
    fruitless = row.epoch - execution.journal.last_epoch
    if fruitless > _FRUITLESS_CLAIMS:
        why = f"run {execution.id!r} was claimed {fruitless} times without a new record; the workers' logs say why"
        execution.stop(Aborted(NotRecoverable(why)))
    elif fruitless >= _REST_FROM and not row.rested:
        first = execution.engine.liveness.rest
        seconds = min(first * 2 ** (fruitless - _REST_FROM), runs.LONGEST_REST)
        runs.unclaim(execution.engine.store, execution.id, execution.owner, rest=seconds)
        why = f"run {execution.id!r} was claimed {fruitless} times without a new record, and rests for {seconds:g} s"
        logger.warning(why)
        raise NotNow(why)


def _check_code(execution: Execution) -> None:
    runner = execution.runner
    then, now = code_of(execution.journal.known.values()), runner.code
    if then is None or then == now:
        return
    store = execution.engine.store
    changed = _changed(execution.id, runner, then)
    if runner.on_code_change == "continue" and (misfit := runner.misfit(execution, then)) is not None:
        why = f"{changed}; {misfit}, so that it waits for a worker that has the code it began with"
        runs.unclaim(store, execution.id, execution.owner, rest=runs.LONGEST_REST, why=why)
        raise CodeChanged(why)
    if runner.on_code_change == "continue":
        logger.warning("%s; the run goes on", changed)
        number = len(execution.journal.records(CODE)) + 1
        execution.journal.commit(Draft(CODE, f"{CODE}:{number}", dumps({"then": then, "now": now})))
        runs.set_version(store, execution.id, execution.owner, version_of(now))
        return
    why = f"{changed}; {_ADVICE}"
    runs.unclaim(store, execution.id, execution.owner, why=why)
    raise CodeChanged(why)


def tell_stranded(store: Store, runners: Mapping[str, "Runner"]) -> None:
    """Say of queued runs that this process has other code for what has changed: in the log, and in `Run.blocked`."""
    wanted = {name: runner.takes for name, runner in runners.items()}
    for run_id, name in runs.stranded(store, wanted, _TOLD_AT_ONCE):
        then = code_of(load(run_id, runs.records(store, run_id)))
        why = f"{_changed(run_id, runners[name], then)}; {_ADVICE}"
        logger.warning("%s", why)
        runs.block(store, run_id, why)


def code_of(records: Iterable[Record]) -> Mapping[str, Any] | None:
    """The fingerprint of the agent that drove the run last; None for a run that has none."""
    found: Mapping[str, Any] | None = None
    for record in records:
        if record.kind == OPEN:
            found = record.value().get("code")
        elif record.kind == CODE:
            found = record.value()["now"]
    return found


def _changed(run_id: str, runner: "Runner", then: Any) -> str:
    differences = describe(then or {}, runner.code)
    return f"run {run_id!r}: the code of {runner.name!r} has changed: {differences}"


def describe(then: Any, now: Any, what: str = "") -> str:
    """How two fingerprints differ, for people."""
    if isinstance(then, dict) and isinstance(now, dict):
        parts = []
        for name in sorted({*then, *now}):
            where = f"{what} {name!r}" if what else name
            if name not in now:
                parts.append(f"{where} is gone")
            elif name not in then:
                parts.append(f"{where} is new")
            elif then[name] != now[name]:
                parts.append(describe(then[name], now[name], where))
        return ", ".join(parts)
    if isinstance(then, list) and isinstance(now, list):
        gone = [item for item in then if item not in now]
        new = [item for item in now if item not in then]
        parts = [f"{what} lost {item!r}" for item in gone] + [f"{what} got {item!r}" for item in new]
        return ", ".join(parts) or f"{what} are in another order"
    return f"{what} was {then!r} and is {now!r}"
