"""What became of a run that was driven: it ends, parks, is released, or is lost to another worker.

The run's own state decides, not the exception that arrives: frameworks swallow our signals, and task groups wrap them.
"""

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

from . import failure
from .codec import dumps
from .errors import Aborted, CancelRequested, EncodingError, Parked, Released, RunCancelled, RunWaiting, Stop
from .log import logger
from .pause import Pause
from .record import CLOSE, WAIT, Draft

if TYPE_CHECKING:
    from .execution import Execution


def settle_error(run: "Execution", error: BaseException) -> Any:
    """The native loop raised: record the failure, or hand the run back. Raises what the caller is told."""
    run.settling = True
    interrupted = not isinstance(error, Exception | Stop | asyncio.CancelledError)
    if interrupted and not run.is_attended:
        # No Ctrl-C gets here: the agent's own code raises this, and would end each worker that takes the run.
        error, interrupted = failure.decode(failure.encode(error)), False
    if run.closing is not None or (run.journal.lost is not None and not interrupted):
        return settle(run, None)
    run.stop(Released())
    if isinstance(error, Exception):
        _drain(run)
        _fail(run, error)
    if not isinstance(error, asyncio.CancelledError):
        # KeyboardInterrupt and SystemExit are the caller's to hear; the run is for other processes.
        run.engine.interrupted(run.id)
    try:
        run.drain(patiently=isinstance(error, asyncio.CancelledError))
    finally:
        run.release()
    raise error


def settle(run: "Execution", outcome: Any) -> Any:
    """The native loop returned: record the outcome. Returns the native result, or raises why there is none."""
    run.settling = True
    why = run.closing
    if isinstance(why, Parked):
        outcome = Pause(run.asked)
    elif why is None:
        run.stop(Released(f"run {run.id!r} is over"))  # nothing that was left running may start a step
    _drain(run)
    if run.journal.lost is not None:
        run.engine.forget(run)
        raise run.journal.lost
    if why is not None and not isinstance(why, Parked):
        _settle_stop(run, why)
    if isinstance(outcome, Pause):
        _park(run, outcome)
        if isinstance(why, Parked):
            raise RunWaiting(run.id, outcome.questions)
        return outcome.result
    _close(run, "SUCCESS", *_encoded(run, outcome))
    return outcome


def _drain(run: "Execution") -> None:
    try:
        run.drain()
    except BaseException:  # Ctrl-C while it waited: any worker comes to the same outcome
        run.engine.interrupted(run.id)
        run.release()
        raise


def _settle_stop(run: "Execution", why: Stop) -> NoReturn:
    if isinstance(why, CancelRequested):
        _close(run, "CANCELLED", "cancelled", "{}")
        raise RunCancelled(f"run {run.id!r} was cancelled")
    if isinstance(why, Aborted):
        _fail(run, why.error)
    run.release()
    raise why


def _encoded(run: "Execution", outcome: Any) -> tuple[str, str]:
    """The status and payload of the close record of a run that succeeded."""
    try:
        return "", dumps(run.runner.encode_result(run, outcome))
    except Exception as reason:
        logger.warning("run %r: its result is not stored: %s", run.id, reason)
        return "opaque", dumps({"reason": failure.text(reason)})


def _fail(run: "Execution", error: Exception) -> NoReturn:
    payload = dumps({**failure.encode(error), "steps": failure.paths(error, run.id)})
    _close(run, "ERROR", "error", payload, f"{type(error).__name__}: {failure.text(error)}")
    raise error


def _close(run: "Execution", status: str, record_status: str, payload: str, error: str = "") -> None:
    try:
        run.journal.close(Draft(CLOSE, CLOSE, payload, status=record_status), status, error)
    finally:
        run.engine.forget(run)


def _park(run: "Execution", pause: Pause) -> None:
    try:
        payload = dumps({"questions": pause.questions, "state": pause.state})
    except (TypeError, ValueError) as error:
        _fail(run, EncodingError(f"the questions of run {run.id!r} cannot be recorded: {error}"))
    number = run.pauses[-1].number + 1 if run.pauses else 1
    try:
        parked = run.journal.park(Draft(WAIT, f"{WAIT}:{number}", payload))
    finally:
        run.engine.forget(run)
    if not parked:
        raise RunCancelled(f"run {run.id!r} was cancelled")
