"""The rules of the house that no test run would show: who imports what, and what of DBOS is touched."""

import ast
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest

import durable_agents
from durable_agents._core.store import open_store, schema
from durable_agents.errors import ConfigurationError

SOURCES = Path(durable_agents.__file__).parent
CORE, STORE = SOURCES / "_core", SOURCES / "_core" / "store"
OUTSIDE = ("cli",)
"""Packages that are no integrations."""

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FRAMEWORKS = {
    "langgraph",
    "langchain",
    "langchain_core",
    "deepagents",
    "crewai",
    "google",
    "strands",
    "agents",
}


def modules() -> list[Path]:
    return sorted(SOURCES.rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCES))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every import, relative ones made absolute; the name is "" for `import module`."""
    package = ("durable_agents", *path.relative_to(SOURCES).parts[:-1])
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def parsed(path: Path) -> ast.Module:
    """CPython 3.11 counts its recursion in one place for all threads, and traceback texts are parsed in others."""
    try:
        return ast.parse(path.read_text())
    except SystemError:
        return ast.parse(path.read_text())


def imported(path: Path) -> set[str]:
    """Every module a file may import: `from a import b` may mean `a.b`."""
    return {name for module, name in imports(path)} | {
        full for module, name in imports(path) for full in (module, f"{module}.{name}" if name else module)
    }


def test_there_is_something_to_look_at() -> None:
    assert len(modules()) > 20
    assert "durable_agents._core.store.base" in imported(STORE / "sqlite.py")


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_nothing_in_a_database_can_become_code(path: Path) -> None:
    tops = {module.split(".")[0] for module, _ in imports(path)}
    assert not tops & FORBIDDEN_MODULES
    called = {
        node.func.id
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & FORBIDDEN_CALLS
    assert "importlib.import_module" not in imported(path)
    assert not [name for _, name in imports(path) if "ickle" in name]


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_only_the_store_knows_dbos(path: Path) -> None:
    knows = any(module.split(".")[0] == "dbos" for module, _ in imports(path))
    assert not knows or path.is_relative_to(STORE)


@pytest.mark.parametrize("path", [p for p in modules() if p.is_relative_to(CORE)], ids=shown)
def test_the_core_knows_no_framework_and_no_integration(path: Path) -> None:
    for module, name in imports(path):
        assert module.split(".")[0] not in FRAMEWORKS
        if module.split(".")[0] == "durable_agents":
            full = f"{module}.{name}"
            assert full.startswith("durable_agents._core"), f"{full} is outside the core"


def integrations() -> set[str]:
    packages = {p.parent.name for p in SOURCES.glob("*/__init__.py")}
    return {name for name in packages if not name.startswith("_") and name not in OUTSIDE}


@pytest.mark.parametrize("name", sorted(integrations()))
def test_no_integration_imports_another(name: str) -> None:
    others = integrations() - {name}
    for path in (SOURCES / name).rglob("*.py"):
        for full in imported(path):
            parts = full.split(".")
            assert not (parts[0] == "durable_agents" and len(parts) > 1 and parts[1] in others), (
                f"{path}: {full}"
            )
            assert parts[0] != "dbos"


@pytest.mark.parametrize("name", sorted(integrations()))
def test_an_integration_knows_the_core_by_its_seam(name: str) -> None:
    """What `_core/__init__.py` names, and the errors; what is behind may change."""
    for path in (SOURCES / name).rglob("*.py"):
        found = {module for module, _ in imports(path) if module.startswith("durable_agents._core")}
        assert found <= {"durable_agents._core", "durable_agents._core.errors"}, f"{path}: {found}"


@pytest.mark.parametrize("name", sorted(integrations()))
def test_integrations_are_laid_out_alike(name: str) -> None:
    """The same file name for the same job, and none that is too long to read."""
    files = {path.stem: len(path.read_text().splitlines()) for path in (SOURCES / name).glob("*.py")}
    assert {"__init__", "_calls", "_durable", "_private", "_values"} <= files.keys()
    assert max(files.values()) < 450


def test_no_module_imports_a_framework_without_being_asked_for_it() -> None:
    """`import durable_agents` works where no framework is installed."""
    for path in modules():
        if path.relative_to(SOURCES).parts[0] in integrations():
            continue
        at_import = parsed(path).body
        tops = {
            (alias.name if isinstance(node, ast.Import) else str(node.module)).split(".")[0]
            for node in at_import
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not tops & FRAMEWORKS, path


# -- DBOS's private names


def touched() -> set[str]:
    """The private names that the code uses: what it imports, and what it calls of that."""
    found = set()
    for path in modules():
        tree = parsed(path)
        bound: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not any(a.name.split(".")[0] == "dbos" for a in node.names), (
                    f"{path}: say what of dbos"
                )
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "dbos":
                private = "._" in str(node.module)
                bound |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names if private}
                assert private or not [a.name for a in node.names if a.name.startswith("_")]
        for node in ast.walk(tree):  # `database = SystemDatabase.create(…)` is one too
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made = (
                    node.value.func.value if isinstance(node.value.func, ast.Attribute) else node.value.func
                )
                if isinstance(made, ast.Name) and made.id in bound and isinstance(node.targets[0], ast.Name):
                    bound[node.targets[0].id] = bound[made.id]
        used = set()
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in bound
            ):
                used.add(f"{bound[node.value.id]}.{node.attr}")
        found |= used | {name for name in bound.values() if not any(u.startswith(name + ".") for u in used)}
    return found


def test_the_private_names_of_dbos_that_are_listed_are_the_only_ones_touched() -> None:
    assert set(schema.PRIVATE) == touched()
    assert schema.PRIVATE


def installed(name: str) -> Callable[..., Any] | None:
    """What a private name stands for in the installed DBOS."""
    from dbos import _sys_db

    assert name.startswith("dbos._sys_db.")
    found: Any = _sys_db
    for part in name.split(".")[2:]:
        found = getattr(found, part, None)
    return cast("Callable[..., Any] | None", found)


def differences() -> list[str]:
    """The private names whose parameters are not those of the list."""
    return [
        name
        for name, known in schema.PRIVATE.items()
        if (found := installed(name)) is None or schema.parameters(found) != known
    ]


def test_the_private_names_of_dbos_are_what_they_were_when_they_were_read() -> None:
    assert differences() == []


@pytest.mark.parametrize(
    "seeded",
    [
        None,
        lambda system_database_url: None,
        lambda new, *, system_database_url, engine_kwargs, engine, schema, serializer, executor_id: None,
    ],
    ids=["gone", "takes less", "needs more"],
)
def test_a_private_name_of_dbos_that_has_changed_is_noticed(
    seeded: Callable[..., Any] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the test above, and at a launch that has to migrate, before anything is written."""
    from dbos._sys_db import SystemDatabase

    if seeded is None:
        monkeypatch.delattr(SystemDatabase, "create")
    else:
        monkeypatch.setattr(SystemDatabase, "create", staticmethod(seeded))
    assert differences() == ["dbos._sys_db.SystemDatabase.create"]
    with pytest.raises(ConfigurationError, match=rf"SystemDatabase\.create of dbos {version('dbos')}"):
        open_store(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    with closing(sqlite3.connect(tmp_path / "runs.sqlite")) as connection:
        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []


def test_a_private_name_of_dbos_that_takes_more_is_noticed_here_and_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dbos._sys_db import SystemDatabase

    class Newer(SystemDatabase):
        def destroy(self, more: bool = False) -> None: ...

    assert not schema.is_as_known("dbos._sys_db.SystemDatabase.destroy", None)
    monkeypatch.setattr(SystemDatabase, "destroy", Newer.destroy)
    assert differences() == ["dbos._sys_db.SystemDatabase.destroy"]
    open_store(f"sqlite:///{tmp_path / 'runs.sqlite'}").close()


def test_every_statement_on_dbos_tables_stands_in_the_store() -> None:
    tables = "workflow_status|operation_outputs|workflow_input|workflow_output|durable_agents_worker|dbos_migrations"
    statement = re.compile(rf"\b(FROM|INTO|UPDATE|JOIN|TABLE)\b[^;]*\b({tables})\b")
    exempt = {CORE / "worker.py"}  # its table is ours
    for path in modules():
        if path.is_relative_to(STORE) or path in exempt:
            continue
        texts = [n.value for n in ast.walk(parsed(path)) if isinstance(n, ast.Constant)]
        assert not [t for t in texts if isinstance(t, str) and statement.search(t)], path
