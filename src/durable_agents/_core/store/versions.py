"""Our own tables: made and changed step by step, with a version per component that says how many steps were taken.

A step and its version are one transaction. Workers of the version before may run on while a newer one migrates, so a
step adds to the tables, and takes nothing away that those use.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from .base import Store, Transaction

Migrations = Sequence[Sequence[str]]
"""Per step its SQL statements, with the placeholders of `Store.types`. A step that was released never changes.

The first one makes its tables IF NOT EXISTS: databases from before there were versions have them.
"""

TABLE = "durable_agents_migrations"

CORE: Migrations = (
    (
        "CREATE TABLE IF NOT EXISTS durable_agents_worker ("
        "worker_id TEXT PRIMARY KEY, label TEXT NOT NULL, beat BIGINT NOT NULL)",
    ),
    (
        "CREATE TABLE durable_agents_event (run_id TEXT NOT NULL, cursor BIGINT NOT NULL, path TEXT NOT NULL,"
        " body TEXT NOT NULL, PRIMARY KEY (run_id, cursor)){without_rowid}",
        "CREATE UNIQUE INDEX durable_agents_event_path ON durable_agents_event (run_id, path)",
    ),
    (  # DBOS has no index that finds the run that waits on a thread, and every new run of the thread looks for it
        "CREATE INDEX IF NOT EXISTS durable_agents_waiting ON workflow_status (queue_partition_key)"
        " WHERE status = 'DELAYED'",
    ),
)


def check(store: "Store | Transaction", component: str, migrations: Migrations) -> int:
    """The version of a component's tables; 0 without any.

    Raises:
        ConfigurationError: it is newer than what this code knows.
    """
    found = store.query(f"SELECT version FROM {TABLE} WHERE component = ?", (component,))
    version = int(found[0][0]) if found else 0
    if version > len(migrations):
        raise ConfigurationError(
            f"the tables of {component!r} in this database have version {version}, and the durable-runners installed "
            f"here knows them up to version {len(migrations)}: upgrade durable-runners here, or use another database"
        )
    return version


def migrate(store: "Store", component: str, migrations: Migrations) -> None:
    """Take the steps that are missing. Of several processes at once one takes each, and the others find it taken."""

    def step(tx: "Transaction") -> bool:
        tx.execute(
            f"CREATE TABLE IF NOT EXISTS {TABLE} (component TEXT PRIMARY KEY, version BIGINT NOT NULL)"
        )
        version = check(tx, component, migrations)
        if version == len(migrations):
            return False
        for sql in migrations[version]:
            tx.execute(sql.format(**store.types))
        tx.execute(
            f"INSERT INTO {TABLE} (component, version) VALUES (?, ?)"
            " ON CONFLICT (component) DO UPDATE SET version = excluded.version",
            (component, version + 1),
        )
        return True

    with store.migrating():
        while store.transact(step):
            pass
