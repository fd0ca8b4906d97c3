"""Every error and signal of the library.

    DurableError
    ├── ConfigurationError      a setting, a name or a database that cannot be used
    ├── DatabaseUnavailable     the database cannot be used now, and nothing was begun
    ├── NotSupported            a feature of the framework that is not durable yet
    ├── RunNotFound             no run has this id
    ├── InputMismatch           the run id exists with another runner or input
    ├── RunWaiting              the run waits for an answer
    ├── RunCancelled            the run was cancelled
    ├── RunReleased             the run left this process before its end, and goes on elsewhere
    ├── ThreadBusy              a run calls its runner on its own thread, and would wait for itself
    ├── NotWaiting              an answer to a run or question that is not open
    ├── AlreadyAnswered         the question has another answer
    ├── RunOver                 the run has succeeded or was superseded: it cannot be resumed
    ├── StepNotFound            the run has recorded no step under this path
    ├── CodeChanged             the agent is built in another way than when the run began
    ├── NotRecoverable          a run that needs live arguments has none after a crash
    ├── DivergedError           a replayed tool call has other arguments than its record
    ├── ConcurrentPathError     two steps are running under one path
    ├── EncodingError           a value has no durable form
    ├── ResultNotRecorded       a step or run finished, its result could not be stored
    ├── BrokenRecord            a stored record does not fit its chain
    └── RecordedError           an error read from a record whose own type is not at hand

Signals (`Stop` and below) unwind a run without deciding its outcome. They derive from `BaseException`, so that no
framework takes them for a failure of the step it was in.
"""


class DurableError(Exception):
    """Base of every error this library raises."""


class ConfigurationError(DurableError, ValueError):
    """A setting, a name or a database cannot be used as given."""


class DatabaseUnavailable(DurableError, ConnectionError):
    """The database cannot be used now; what was asked for has not begun, or is attached to when asked again."""


class NotSupported(DurableError, NotImplementedError):
    """The framework has this feature and the runner does not support it yet."""


class RunNotFound(DurableError, LookupError):
    """No run has this id."""


class InputMismatch(DurableError, ValueError):
    """The run id exists with another runner or another input."""


class RunWaiting(DurableError):
    """The run waits for an answer; `questions` maps each open question to what is asked."""

    def __init__(self, run_id: str, questions: dict[str, object]) -> None:
        self.run_id, self.questions = run_id, questions
        asked = ", ".join(sorted(questions)) or "none recorded"
        super().__init__(
            f"run {run_id!r} waits for an answer (open questions: {asked}); "
            f"answer it with durable_agents.runs.get({run_id!r}).answer(value)"
        )


class RunCancelled(DurableError):
    """The run was cancelled."""


class RunReleased(DurableError):
    """The run left this process before its end: it shuts down, or another worker took the run over."""


class ThreadBusy(DurableError):
    """A run calls its own runner on its own thread: the call would wait for the run that makes it."""


class NotWaiting(DurableError):
    """An answer was given to a run or a question that is not open."""


class AlreadyAnswered(DurableError):
    """The question has been answered with another value."""


class RunOver(DurableError):
    """The run has succeeded, or another one came after it on its thread: it cannot be resumed."""


class StepNotFound(DurableError, LookupError):
    """The run has recorded no step under this path."""


class CodeChanged(DurableError):
    """The agent is built in another way than when the run began, and its runner was not told to go on."""


class NotRecoverable(DurableError):
    """The run depends on live arguments that are gone."""


class CallerNeeded(NotRecoverable):
    """No worker can go on with the run; whoever calls again with its id and the live arguments can."""


class DivergedError(DurableError):
    """A replayed tool call has other arguments than its record."""


class ConcurrentPathError(DurableError):
    """Two steps run under one path at the same time, so their records could be swapped."""


class EncodingError(DurableError, TypeError):
    """A value has no durable form: its type is not on the allow-list."""


class ResultNotRecorded(DurableError):
    """The step or run finished, but its result could not be stored and cannot be given again."""


class BrokenRecord(DurableError):
    """A stored record does not fit the chain it belongs to."""


class RecordedError(DurableError):
    """An error read from a record. `type` is the original's `module:qualname`, `traceback` its text."""

    def __init__(self, type: str, message: str, traceback: str = "") -> None:
        self.type, self.message, self.traceback = type, message, traceback
        super().__init__(f"{type}: {message}")


class Stop(BaseException):
    """Unwinds a run without an outcome."""


class OwnershipLost(Stop):
    """Another worker owns the run; nothing this process does to it is written any more."""


class Parked(Stop):
    """The run waits for answers and leaves this process."""


class CancelRequested(Stop):
    """Somebody cancelled the run."""


class Aborted(Stop):
    """The run cannot go on and fails with `error`, whatever the framework makes of it."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


class Released(Stop):
    """The run is handed back, so that any worker can go on with it."""
