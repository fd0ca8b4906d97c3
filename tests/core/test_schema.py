"""The tables at launch: made once, brought forward step by step, and refused when they are not what this code knows."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import durable_agents
import postgres
from durable_agents import errors, runs
from durable_agents._core import engine, step
from durable_agents._core.store import Store, open_store, schema, versions
from plain import Plain

Agent = Callable[..., Plain]
_numbers = itertools.count(1)

FIRST = "CREATE TABLE durable_agents_worker (worker_id TEXT PRIMARY KEY, label TEXT NOT NULL, beat BIGINT NOT NULL)"
"""Our only table before there were versions."""
NOTES = (
    ("CREATE TABLE IF NOT EXISTS notes (id TEXT PRIMARY KEY, text {blob})",),
    (
        "ALTER TABLE notes ADD COLUMN author TEXT",
        "INSERT INTO notes (id, author) VALUES ('second', 'nobody')",
    ),
    ("CREATE INDEX notes_author ON notes (author)",),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def new_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[bool], str]]:
    """Makes databases of the test's own, with our tables or without any."""
    names: list[str] = []

    def make(with_tables: bool) -> str:
        names.append(f"schema_{next(_numbers)}")
        if dialect == "sqlite":
            path = tmp_path / f"{names[-1]}.sqlite"
            if with_tables:
                shutil.copy(request.getfixturevalue("sqlite_template"), path)
            return f"sqlite:///{path}"
        template = request.getfixturevalue("postgres_template") if with_tables else None
        server: postgres.Server = request.getfixturevalue("postgres_server")
        return server.create_database(names[-1], template=template)

    yield make
    durable_agents.shutdown()
    engine.RUNNERS.clear()
    if dialect == "postgresql":
        for name in names:
            request.getfixturevalue("postgres_server").drop_database(name)


@pytest.fixture
def database_url(new_url: Callable[[bool], str]) -> str:
    """A database of the test's own that has our tables: it may be broken."""
    return new_url(True)


def change(url: str, *statements: str) -> None:
    with closing(open_store(url)) as store:
        for statement in statements:
            store.execute(statement)


def found(store: Store) -> dict[str, int]:
    return dict(store.query(f"SELECT component, version FROM {versions.TABLE}"))  # type: ignore[arg-type]


def content(store: Store) -> dict[str, Any]:
    """All tables, and the rows of the small ones."""
    columns = store.columns()
    small = [
        table for table in ("dbos_migrations", versions.TABLE, "durable_agents_worker") if table in columns
    ]
    return {"": columns, **{table: sorted(store.query(f"SELECT * FROM {table}")) for table in small}}


def forbidden(*_: object) -> None:
    raise AssertionError("this launch must not write")


# -- our own tables


def test_an_empty_database_gets_the_newest_version_and_a_second_launch_writes_nothing(
    new_url: Callable[[bool], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_url(False)
    with closing(open_store(url)) as store:
        assert found(store) == {"core": len(versions.CORE)}
        columns, keys = store.columns(), store.unique_keys()
    assert columns["durable_agents_event"] == {"run_id", "cursor", "path", "body"}
    assert {key for table, key in keys if table == "durable_agents_event"} == {
        ("run_id", "cursor"),
        ("run_id", "path"),
    }
    monkeypatch.setattr(versions, "migrate", forbidden)
    monkeypatch.setattr(schema, "_run_migrations", forbidden)
    open_store(url).close()


def test_a_database_from_before_there_were_versions_is_taken_over_without_loss(
    agent: Agent, database_url: str
) -> None:
    durable_agents.launch(database_url)
    runner = agent(lambda x: step("tool", "t", lambda: x))
    runner.run("kept", run_id="old")
    durable_agents.shutdown()
    change(
        database_url,
        f"DROP TABLE {versions.TABLE}",
        "DROP TABLE durable_agents_event",
        "DROP TABLE durable_agents_worker",
        FIRST,
        "INSERT INTO durable_agents_worker VALUES ('w', 'its label', 7)",
    )
    with closing(open_store(database_url)) as store:
        assert found(store) == {"core": len(versions.CORE)}
        assert store.query("SELECT * FROM durable_agents_worker") == [("w", "its label", 7)]
    durable_agents.launch(database_url)
    assert runs.get("old").result(1) == "kept"
    assert runner.run("new", run_id="new") == "new"


def test_the_tables_of_an_integration_from_before_there_were_versions_are_taken_over(
    database_url: str,
) -> None:
    with closing(open_store(database_url)) as store:
        store.execute(NOTES[0][0].format(**store.types))
        store.execute("INSERT INTO notes (id) VALUES ('first')")
        store.migrate_tables("notes", NOTES)
        assert found(store) == {"core": len(versions.CORE), "notes": 3}
        assert store.query("SELECT id, author FROM notes ORDER BY id") == [
            ("first", None),
            ("second", "nobody"),
        ]


def test_steps_are_taken_in_order_each_once(database_url: str) -> None:
    with closing(open_store(database_url)) as store:
        for known in range(1, len(NOTES) + 1):
            store.migrate_tables("notes", NOTES[:known])
            store.migrate_tables("notes", NOTES[:known])
            assert found(store)["notes"] == known
        assert store.query("SELECT id FROM notes") == [("second",)]


def test_a_step_that_fails_leaves_nothing_behind_and_is_taken_again(database_url: str) -> None:
    broken = (*NOTES[:2], ("INSERT INTO notes (id) VALUES ('third')", "INSERT INTO nowhere VALUES (1)"))
    with closing(open_store(database_url)) as store:
        with pytest.raises(Exception, match="nowhere"):
            store.migrate_tables("notes", broken)
        assert found(store)["notes"] == 2
        assert store.query("SELECT id FROM notes") == [("second",)]
        store.migrate_tables("notes", NOTES)
        assert found(store)["notes"] == 3


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = len(versions.CORE) + 1
    with closing(open_store(database_url)) as store:
        store.execute(f"UPDATE {versions.TABLE} SET version = {newer}")
        store.execute("UPDATE dbos_migrations SET version = 124")
        before = content(store)
        monkeypatch.setattr(schema, "_run_migrations", forbidden)
        with pytest.raises(errors.ConfigurationError) as caught:
            durable_agents.launch(database_url)
        assert content(store) == before
    for word in (
        "'core'",
        f"version {newer}",
        f"version {newer - 1}",
        "upgrade durable-runners",
        "another database",
    ):
        assert word in str(caught.value)
    assert engine.launched() is None


class Noting(Plain):
    """A runner with tables of its own."""

    def attach(self, store: Store) -> None:
        store.migrate_tables("notes", NOTES)


def test_an_integration_whose_tables_are_newer_is_refused(agent: Agent, database_url: str) -> None:
    with closing(open_store(database_url)) as store:
        store.migrate_tables("notes", NOTES)
        store.execute(f"UPDATE {versions.TABLE} SET version = 4 WHERE component = 'notes'")
        before = content(store)
        durable_agents.launch(database_url)
        for _ in range(2):  # its name is free again
            with pytest.raises(errors.ConfigurationError, match=r"'notes'.* version 4.* version 3: upgrade"):
                Noting(lambda _: None, "late")
        assert list(engine.RUNNERS) == []
        durable_agents.shutdown()
        engine.RUNNERS["plain.early"] = Noting.__new__(Noting)
        with pytest.raises(errors.ConfigurationError, match=r"'notes'.* version 4.* version 3: upgrade"):
            durable_agents.launch(database_url)
        assert engine.launched() is None
        assert content(store) == before


def test_many_that_start_at_once_take_each_step_once(database_url: str) -> None:
    stores = [open_store(database_url) for _ in range(8)]
    steps = (NOTES[0], *((f"INSERT INTO notes (id) VALUES ('{number}')",) for number in range(5)))
    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(lambda store: store.migrate_tables("notes", steps), stores))
    assert sorted(stores[0].query("SELECT id FROM notes")) == [(str(number),) for number in range(5)]
    for store in stores:
        store.close()


def test_many_that_start_at_once_on_an_empty_database_make_it_once(new_url: Callable[[bool], str]) -> None:
    url = new_url(False)

    def start(_: int) -> dict[str, int]:
        with closing(open_store(url)) as store:
            store.migrate_tables("notes", NOTES)
            return found(store)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(start, range(4))) == [{"core": len(versions.CORE), "notes": 3}] * 4


# -- DBOS's tables


def without_primary_key(dialect: str) -> list[str]:
    if dialect == "postgresql":
        return ["ALTER TABLE operation_outputs DROP CONSTRAINT operation_outputs_pkey"]
    return [
        "CREATE TABLE copied AS SELECT * FROM operation_outputs",
        "DROP TABLE operation_outputs",
        "ALTER TABLE copied RENAME TO operation_outputs",
    ]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            ["ALTER TABLE workflow_status RENAME COLUMN owner_xid TO token"],
            "workflow_status lacks column owner_xid",
        ),
        (["DROP TABLE workflow_output"], "workflow_output lacks column workflow_uuid"),
        (
            ["DROP INDEX uq_workflow_status_dedup_id"],
            "workflow_status lacks unique key (queue_name, deduplication_id)",
        ),
        (
            [
                "DROP INDEX uq_workflow_status_dedup_id",
                "CREATE INDEX uq_workflow_status_dedup_id ON workflow_status (queue_name, deduplication_id)",
                "CREATE UNIQUE INDEX other ON workflow_status (deduplication_id, queue_name, application_name)",
            ],
            "workflow_status lacks unique key (queue_name, deduplication_id)",
        ),
        (without_primary_key, "operation_outputs lacks unique key (workflow_uuid, function_id)"),
    ],
    ids=["column", "table", "unique index", "other index", "primary key"],
)
def test_what_is_missing_in_the_tables_of_dbos_is_named(
    database_url: str, dialect: str, broken: list[str] | Callable[[str], list[str]], said: str
) -> None:
    change(database_url, *(broken(dialect) if callable(broken) else broken))
    with pytest.raises(errors.ConfigurationError) as caught:
        durable_agents.launch(database_url)
    assert said in str(caught.value)
    assert "upgrade durable-runners, or use another database" in str(caught.value)
    assert engine.launched() is None


def test_tables_that_a_newer_dbos_has_added_to_are_used(agent: Agent, database_url: str) -> None:
    change(
        database_url,
        "UPDATE dbos_migrations SET version = 131",
        "ALTER TABLE workflow_status ADD COLUMN from_the_future TEXT",
    )
    durable_agents.launch(database_url)
    assert agent(lambda _: step("tool", "t", lambda: 1)).run() == 1
    assert engine.current().store.query("SELECT version FROM dbos_migrations") == [(131,)]


def test_tables_of_an_older_dbos_are_migrated(database_url: str) -> None:
    last = "idx_application_versions_owner_timestamp"
    change(database_url, f"DROP INDEX {last}", "UPDATE dbos_migrations SET version = 124")
    with closing(open_store(database_url)) as store:
        assert store.query("SELECT version FROM dbos_migrations") == [(schema.MIGRATION,)]
        names = "sqlite_master WHERE name" if store.dialect == "sqlite" else "pg_indexes WHERE indexname"
        assert store.query(f"SELECT 1 FROM {names} = ?", (last,)) == [(1,)]


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_another_version_of_dbos_is_refused(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "version", lambda _: "3.5.0")
    with pytest.raises(errors.ConfigurationError, match=r"dbos 3\.5\.0 is installed.*dbos>=3\.4,<3\.5"):
        durable_agents.launch(database_url)
