"""What we expect of DBOS's tables, and the tables that are ours.

Private names of DBOS that this library touches, all read from 3.4.0; everything else is its documented table layout:

    dbos._sys_db.SystemDatabase.create / .run_migrations / .destroy   create and migrate the tables on our own engine
                                                                      (the public DBOS.migrate takes no engine, and
                                                                      without ours SQLite < 3.42 cannot be migrated)

DBOS itself is not launched: its pollers, threads and event loop are not needed, and an application's own DBOS stays
untouched. Its command line and viewers work on the tables.
"""

from importlib.metadata import version

import sqlalchemy as sa

from ..errors import ConfigurationError

OWN_SCHEMA = "durable_agents"

OWN_TABLES = (
    "CREATE TABLE IF NOT EXISTS durable_agents_worker ("
    "worker_id TEXT PRIMARY KEY, label TEXT NOT NULL, beat BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS durable_agents_event (run_id TEXT NOT NULL, cursor BIGINT NOT NULL, path TEXT NOT NULL,"
    " body TEXT NOT NULL, PRIMARY KEY (run_id, cursor)){without_rowid}",
)

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


MIGRATION = 125
"""DBOS's number of the newest migration these columns need."""


def migrate_dbos(engine: sa.Engine) -> None:
    """Create or migrate DBOS's tables, then check that they are the ones this library was written for.

    DBOS is imported only when there is something to migrate: that takes most of a second.
    """
    found = version("dbos")
    if not found.startswith("3.4."):
        raise ConfigurationError(
            f"dbos {found} is installed; this version of durable-runners needs dbos>=3.4,<3.5"
        )
    schema = None if engine.dialect.name == "sqlite" else "dbos"
    if _migration(engine, schema) < MIGRATION:
        _run_migrations(engine)
    inspector = sa.inspect(engine)
    for table, columns in EXPECTED.items():
        missing = set(columns) - {column["name"] for column in inspector.get_columns(table, schema=schema)}
        if missing:
            raise ConfigurationError(
                f"DBOS's table {table} lacks {sorted(missing)}: it is not the layout of dbos 3.4"
            )


def _migration(engine: sa.Engine, schema: str | None) -> int:
    """The number of the newest migration that has been applied; 0 for an empty database."""
    if not sa.inspect(engine).has_table("dbos_migrations", schema=schema):
        return 0
    table = "dbos_migrations" if schema is None else f"{schema}.dbos_migrations"
    with engine.connect() as connection:
        return int(connection.execute(sa.text(f"SELECT max(version) FROM {table}")).scalar() or 0)


def _run_migrations(engine: sa.Engine) -> None:
    from dbos import DBOSPortableJSONSerializer
    from dbos._sys_db import SystemDatabase

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
