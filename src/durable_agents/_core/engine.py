"""The engine of this process: one database, one worker.

`launch` is optional: the first run launches with the defaults. There is one engine per process, and none in a forked
child until that launches its own.
"""

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict

from .background import RUNNERS, Engine
from .context import RUN, SCOPE
from .errors import ConfigurationError
from .store import open_store
from .worker import Liveness

__all__ = ["RUNNERS", "Engine", "current", "launch", "launched", "shutdown"]

DATABASE_URL = "DURABLE_AGENTS_DATABASE_URL"
DEFAULT_DATABASE_URL = "sqlite:///durable_agents.sqlite"

_engine: Engine | None = None
_launched_with: tuple[str, Liveness, int] | None = None
"""What `launch` was told last: an implicit one after a shutdown, or in a forked child, means the same database."""
_launching = threading.Lock()


def launch(
    database_url: str | None = None,
    *,
    heartbeat: float = Liveness.heartbeat,
    grace: float = Liveness.grace,
    lease: float = Liveness.lease,
    poll: float = Liveness.poll,
    rest: float = Liveness.rest,
    max_runs: int = 64,
) -> None:
    """Start driving and recovering the runs of this process's runners.

    Optional: the first run launches with the defaults. A worker process calls it, so that it recovers runs without
    starting one. Called again with the same database it does nothing.

    Args:
        database_url: `sqlite:///file` or `postgresql://user@host:port/name`. Default: the environment variable
            `DURABLE_AGENTS_DATABASE_URL`, else the file `durable_agents.sqlite` in the working directory.
        heartbeat, grace, lease, poll, rest: see `Liveness`; seconds.
        max_runs: how many queued and recovered runs are driven at once.

    Raises:
        ConfigurationError: a database that cannot be used, or another one than this process already runs on.
    """
    global _engine, _launched_with
    if max_runs < 1:
        raise ConfigurationError(f"max_runs must be at least 1, not {max_runs!r}")
    url = database_url or os.environ.get(DATABASE_URL) or DEFAULT_DATABASE_URL
    liveness = Liveness(heartbeat=heartbeat, grace=grace, lease=lease, poll=poll, rest=rest)
    with _launching:
        if _engine is None:
            _engine = _apart(lambda: Engine(open_store(url), liveness, max_runs))
            _launched_with = (url, liveness, max_runs)
            atexit.register(shutdown)
        elif database_url is not None and _engine.store.url != url:
            raise ConfigurationError(
                f"this process already runs on {_engine.store.shown}; call shutdown() first"
            )


def shutdown() -> None:
    """Stop driving runs: steps in flight get ten seconds to finish and be recorded, the runs are released for others.

    Called at the end of the process too, unless it is killed.
    """
    global _engine
    with _launching:
        if _engine is not None:
            engine, _engine = _engine, None
            atexit.unregister(shutdown)
            engine.close()


def current() -> Engine:
    """The engine of this process, launched if need be."""
    if _engine is None:
        if _launched_with is None:
            launch()
        else:
            url, liveness, max_runs = _launched_with
            launch(url, **asdict(liveness), max_runs=max_runs)
    engine = _engine
    assert engine is not None
    return engine


def launched() -> Engine | None:
    """The engine of this process, if it is launched."""
    return _engine


def _apart(work: Callable[[], Engine]) -> Engine:
    """Run in a plain thread: nothing in it may take the caller's event loop for its own."""
    with ThreadPoolExecutor(1) as thread:
        future: Future[Engine] = thread.submit(work)
        return future.result()


def _after_fork() -> None:
    global _engine, _launching
    _launching = threading.Lock()
    RUN.set(None)
    SCOPE.set(None)
    if _engine is not None:
        _engine.abandon()
        _engine = None


os.register_at_fork(after_in_child=_after_fork)
