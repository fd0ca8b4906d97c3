"""DBOS's tables: how they come into being, and what we expect of them.

They are the only thing of DBOS that is used, with the private names in `PRIVATE` that make them. DBOS itself is not
launched: its pollers, threads and event loop are not needed, and an application's own DBOS stays untouched. Its command
line and viewers work on the tables.

A database whose tables a newer DBOS 3.4 has migrated is used like any other, as DBOS itself does: within 3.4 it adds
and renames nothing. What counts is that all is there that we expect, and that is checked at every launch.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ..errors import ConfigurationError
from . import versions

if TYPE_CHECKING:
    from .base import Store

PRIVATE: dict[str, tuple[str, ...]] = {
    "dbos._sys_db.SystemDatabase.create": (
        "system_database_url", "engine_kwargs", "engine", "schema", "serializer", "executor_id", "use_listen_notify=",
        "notification_listener_polling_interval_sec=", "notification_coalesce_sec=", "polling_concurrency=",
        "app_name=", "retry_connection_errors=", "observability_query_timeout_sec=", "idle_transaction_timeout_sec=",
        "sharding=",
    ),
    "dbos._sys_db.SystemDatabase.run_migrations": ("self",),
    "dbos._sys_db.SystemDatabase.destroy": ("self",),
}  # fmt: skip
"""Private name → its parameters in dbos 3.4.0, `=` after those with a default.

They make the tables on an engine of ours: the public `DBOS.migrate` takes none, and without ours SQLite before 3.42
cannot be migrated. Importing DBOS takes most of a second, so they are checked when they are about to be used; a launch
that has nothing to migrate looks at the installed version only.
"""

EXPECTED: dict[str, tuple[str, ...]] = {
    "workflow_status": (
        "workflow_uuid", "status", "name", "executor_id", "created_at", "updated_at", "application_version",
        "recovery_attempts", "queue_name", "started_at_epoch_ms", "deduplication_id", "priority", "queue_partition_key",
        "owner_xid", "creator_xid", "serialization", "delay_until_epoch_ms", "completed_at", "attributes",
        "application_name", "forked_from", "parent_workflow_id",
    ),
    "workflow_input": ("workflow_uuid", "inputs", "retention_timestamp"),
    "workflow_output": ("workflow_uuid", "output", "error", "retention_timestamp"),
    "operation_outputs": (
        "workflow_uuid", "function_id", "function_name", "output", "started_at_epoch_ms", "completed_at_epoch_ms",
        "serialization", "application_name", "retention_timestamp",
    ),
}  # fmt: skip
"""Table → columns that our statements name."""

KEYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "workflow_status": (("workflow_uuid",), ("queue_name", "deduplication_id")),
    "workflow_input": (("workflow_uuid",),),
    "workflow_output": (("workflow_uuid",),),
    "operation_outputs": (("workflow_uuid", "function_id"),),
}
"""Table → what must be unique in it: one run per id, one active run per thread, one record per place."""

MIGRATION = 125
"""DBOS's number of the newest migration that these need."""


def migrate(store: "Store") -> None:
    """Create or migrate DBOS's tables and the core's, and check them; a database that needs neither is only read.

    Raises:
        ConfigurationError: tables of another version, or a layout that this library was not written for.
    """
    _check_installed()
    columns = store.columns()
    if versions.TABLE in columns:  # one that is too new is left as it is
        versions.check(store, "core", versions.CORE)
    if _migration(store, columns) < MIGRATION:
        with store.migrating():
            if _migration(store, store.columns()) < MIGRATION:
                _run_migrations(store.engine())
        columns = store.columns()
    _check_layout(columns, store.unique_keys())
    if versions.TABLE not in columns or versions.check(store, "core", versions.CORE) < len(versions.CORE):
        versions.migrate(store, "core", versions.CORE)


def _check_installed() -> None:
    found = version("dbos")
    if not found.startswith("3.4."):
        raise ConfigurationError(
            f"dbos {found} is installed; this version of durable-runners needs dbos>=3.4,<3.5"
        )


def _migration(store: "Store", columns: Collection[str]) -> int:
    """The number of the newest migration of DBOS that has been applied; 0 for an empty database."""
    if "dbos_migrations" not in columns:
        return 0
    return int(store.query("SELECT max(version) FROM dbos_migrations")[0][0] or 0)


def _check_layout(
    columns: Mapping[str, Collection[str]], keys: Collection[tuple[str, tuple[str, ...]]]
) -> None:
    for table, expected in EXPECTED.items():
        lacks = [f"column {name}" for name in expected if name not in columns.get(table, ())]
        lacks += [f"unique key ({', '.join(key)})" for key in KEYS[table] if (table, key) not in keys]
        if lacks:
            raise ConfigurationError(
                f"DBOS's table {table} lacks {', '.join(lacks)}: it is not the layout of dbos 3.4, which this version "
                f"of durable-runners was written for; upgrade durable-runners, or use another database"
            )


def _run_migrations(engine: sa.Engine) -> None:
    from dbos import DBOSPortableJSONSerializer
    from dbos._sys_db import SystemDatabase

    for name in PRIVATE:
        if not is_as_known(name, getattr(SystemDatabase, name.rsplit(".", 1)[1], None)):
            raise ConfigurationError(
                f"{name} of dbos {version('dbos')} is not what it was in dbos 3.4.0: "
                f"upgrade durable-runners, or install dbos==3.4.0"
            )
    try:
        database = SystemDatabase.create(
            system_database_url="sqlite://"
            if engine.dialect.name == "sqlite"
            else "postgresql://custom:engine@given/below",
            engine_kwargs={},
            engine=engine,
            schema="dbos",
            serializer=DBOSPortableJSONSerializer(),
            executor_id=None,
        )
        try:
            database.run_migrations()
        finally:
            database.destroy()
    finally:
        engine.dispose()


def is_as_known(name: str, found: Callable[..., Any] | None) -> bool:
    """Whether a private name takes what its entry in `PRIVATE` says, and needs no more than that."""
    if found is None:
        return False
    known, now = PRIVATE[name], parameters(found)
    gone = {parameter.rstrip("=") for parameter in known} - {parameter.rstrip("=") for parameter in now}
    needed = {parameter for parameter in now if not parameter.endswith("=")} - set(known)
    return not gone and not needed


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """A function's parameters as `PRIVATE` has them."""
    found = inspect.signature(function).parameters.values()
    return tuple(p.name if p.default is p.empty else f"{p.name}=" for p in found)
