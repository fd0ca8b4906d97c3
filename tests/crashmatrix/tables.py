"""What stands in the tables of a database: a process that was thawed must not have moved a row of it."""

from durable_agents._core.store import Store

_LISTS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "postgresql": "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
    " WHERE schemaname IN ('dbos', 'durable_agents')",
}
_MOVING = ("durable_agents_worker", "migrations")


def contents(store: Store) -> dict[str, list[str]]:
    """Table → rows, of all tables but the workers', who come and go."""
    names = [name for (name,) in store.query(_LISTS[store.dialect]) if not name.endswith(_MOVING)]
    return {
        name: sorted(repr([_plain(value) for value in row]) for row in store.query(f"SELECT * FROM {name}"))
        for name in sorted(names)
    }


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value


def difference(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """The rows that came and went."""
    return [
        f"{table}: {what} {row:.400}"
        for table in sorted(before.keys() | after.keys())
        for what, some, others in (("gone", before, after), ("new", after, before))
        for row in sorted(set(some.get(table, ())) - set(others.get(table, ())))
    ]
