"""The life of a run's row, and the records that belong to it: every statement against DBOS's tables.

A run is one row of `workflow_status`. How its columns are used here:

    workflow_uuid         the run id
    name                  `<framework>.<name>` of the runner
    status                ENQUEUED queued (or running, between two workers) · PENDING running · DELAYED waiting ·
                          SUCCESS · ERROR · CANCELLED
    queue_name            always `durable_agents`, never registered with DBOS: no DBOS poller claims the row
    queue_partition_key   the thread
    deduplication_id      the thread while the run is active; DBOS's unique index on it and the queue admits one
    executor_id           the worker that drives the run; on a queued row, the worker whose caller waits to drive it
    owner_xid             a new token per claim; every write of a worker is conditional on it
    application_version   ours, and the digest of the agent's fingerprint: workers take runs of the code they have
    recovery_attempts     how often the run was claimed (the record's epoch)
    attributes            {"cancel": true} once somebody asked the owner to stop; {"blocked": why} while workers leave
                          a queued run alone
    delay_until_epoch_ms  queued: no claim before; 0 in the claim after a rest. Waiting: for ever

`operation_outputs` holds the records, `function_id` being `seq` and `function_name` the path. The payload of the close
record is the run's result; `workflow_output` only says where that is.
"""

from .appends import append, records
from .claims import (
    LONGEST_REST,
    NewRun,
    claim,
    owned_by,
    release,
    release_dead,
    start,
    unclaim,
    unreserve,
)
from .ends import finish, locked, new_token, park, reopen, request_cancel
from .rows import STATES, Row, asked, came_after, find, get, owner, thread_key, waiting_on
from .versions import block, set_version, stranded, unblock

__all__ = [
    "LONGEST_REST",
    "STATES",
    "NewRun",
    "Row",
    "append",
    "asked",
    "block",
    "came_after",
    "claim",
    "find",
    "finish",
    "get",
    "locked",
    "new_token",
    "owned_by",
    "owner",
    "park",
    "records",
    "release",
    "release_dead",
    "reopen",
    "request_cancel",
    "set_version",
    "start",
    "stranded",
    "thread_key",
    "unblock",
    "unclaim",
    "unreserve",
    "waiting_on",
]
