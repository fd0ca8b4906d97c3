"""A process that executes runs: how others see that it lives, and how it sees that others have died.

A worker is a uuid per boot and a row in `durable_agents_worker`; without its row it is dead. It bumps a counter there
and holds a lock that dies with its process. No clock is compared: a sweeper declares a worker dead when its counter
stood still, on the sweeper's own monotonic clock, for the grace with the lock free, or for the lease with it held.
"""

import os
import secrets
import socket
import time
from dataclasses import dataclass

from .errors import ConfigurationError
from .log import logger
from .store import ProcessLock, Store, runs

_LONGEST_SECONDS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """How fast deaths are noticed; all in seconds.

    Args:
        heartbeat: between two bumps of the counter, and two looks at the other workers.
        grace: how long the counter of a worker whose lock is free must stand still.
        lease: the same for a worker whose lock is held. C code can hold the interpreter for seconds, and a takeover
            from a living worker repeats the effect it was in.
        poll: between two looks for queued runs; runs queued by the same process are seen at once.
        rest: of a run that was claimed three times without a new record; twice as long after each further claim, up to
            30 s. After 15 such claims the run fails.
    """

    heartbeat: float = 0.2
    grace: float = 0.6
    lease: float = 30.0
    poll: float = 0.2
    rest: float = 0.25

    def __post_init__(self) -> None:
        seconds = (self.heartbeat, self.grace, self.lease, self.poll, self.rest)
        if not all(isinstance(each, (int, float)) and each <= _LONGEST_SECONDS for each in seconds):
            raise ConfigurationError(f"need numbers of seconds, at most {_LONGEST_SECONDS:,}: {self}")
        if not 0 < self.heartbeat <= self.grace <= self.lease or self.poll <= 0 or self.rest < 0:
            raise ConfigurationError(f"need 0 < heartbeat <= grace <= lease, poll > 0 and rest >= 0: {self}")


class Worker:
    """This process's row among the workers.

    `heard` is when it last was sure to be alive in the eyes of others, on the monotonic clock.
    """

    def __init__(self, store: Store, liveness: Liveness) -> None:
        self._store, self._liveness = store, liveness
        self._seen: dict[str, tuple[int, float]] = {}
        self._last_sweep = self.heard = time.monotonic()
        self.id, self._lock = self._enrol()

    def _enrol(self) -> tuple[str, ProcessLock]:
        worker = secrets.token_hex(16)
        lock = self._store.hold(worker)  # first the lock, so that no sweeper finds the row without it
        label = f"{socket.gethostname()}:{os.getpid()}"
        try:
            self._store.execute(
                "INSERT INTO durable_agents_worker (worker_id, label, beat) VALUES (?, ?, 1)", (worker, label)
            )
        except BaseException:
            lock.release()
            raise
        return worker, lock

    def beat(self) -> bool:
        """Show that this worker lives; False when others have declared it dead."""
        self._lock.refresh()
        now = time.monotonic()
        sql = "UPDATE durable_agents_worker SET beat = beat + 1 WHERE worker_id = ?"
        if self._store.beat(sql, (self.id,)) != 1:
            return False
        self.heard = now
        return True

    def holds(self, worker: str, run_id: str, owner: str) -> bool:
        """Show that this worker lives, if it is this one and owns the run: then nobody takes that within the grace."""
        now = time.monotonic()
        sql = (
            "UPDATE durable_agents_worker SET beat = beat + 1 WHERE worker_id = ? AND EXISTS"
            " (SELECT 1 FROM workflow_status WHERE workflow_uuid = ? AND owner_xid = ?)"
        )
        if self._store.beat(sql, (worker, run_id, owner)) != 1:
            return False
        self.heard = max(self.heard, now)
        return True

    def reborn(self) -> None:
        """Come back under a new id after being declared dead."""
        self._lock.release()
        self.id, self._lock = self._enrol()
        self._seen.clear()

    def sweep(self) -> int:
        """Declare dead who is dead, and re-queue their runs; how many runs were re-queued."""
        now, live = time.monotonic(), self._liveness
        # When this process was late itself, others may have been too: of a long time without a look little counts. Not
        # nothing: on a machine that is always late, the dead must be found as well.
        passed = min(now - self._last_sweep, max(live.heartbeat, live.grace / 2))
        self._last_sweep = now
        rows = self._store.query(
            "SELECT worker_id, label, beat FROM durable_agents_worker WHERE worker_id <> ?", (self.id,)
        )
        for worker, label, beat in rows:
            last, quiet = self._seen.get(worker, (None, 0.0))
            quiet = quiet + passed if last == beat else 0.0
            self._seen[worker] = (beat, quiet)
            if quiet > live.lease or (quiet > live.grace and self._has_let_go(worker)):
                self._declare_dead(worker, label, beat, quiet)
        return runs.release_dead(self._store)

    def _has_let_go(self, worker: str) -> bool:
        """Whether a worker's lock is free because its process is gone.

        A server that restarts frees all locks. Then ours was lost as well, which is looked at last, and the others
        have a lease to take theirs again.
        """
        if not self._store.lock_is_free(worker):
            return False
        self._lock.refresh()
        return time.monotonic() - self._lock.broken > self._liveness.lease

    def _declare_dead(self, worker: str, label: str, beat: int, quiet: float) -> None:
        sql = "DELETE FROM durable_agents_worker WHERE worker_id = ? AND beat = ?"
        if self._store.execute(sql, (worker, beat)):
            logger.warning("worker %s is dead, silent for %.1f s; its runs are queued again", label, quiet)
            self._store.forget_lock(worker)
        self._seen.pop(worker, None)

    def leave(self) -> None:
        """Sign off: nobody has to wait for a grace."""
        try:
            self._store.execute("DELETE FROM durable_agents_worker WHERE worker_id = ?", (self.id,))
            runs.release_dead(self._store)
        finally:
            self._lock.release()

    def abandon(self) -> None:
        self._lock.abandon()
