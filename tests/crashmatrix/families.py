"""Where scenarios are found: one module or package per framework, loaded only where the framework is installed."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_NEEDED_BY_ALL = (
    "dbos._sys_db",
    "psycopg",
    "durable_agents._core.store.sqlite",
    "durable_agents._core.store.postgres",
)


@dataclass(frozen=True, slots=True)
class Family:
    """Scenarios that share a framework.

    Args:
        name: the framework's.
        file: the module with the scenarios, or the folder of a package.
        needs: the package that must be installed.
    """

    name: str
    file: Path
    needs: str | None = None

    @property
    def is_there(self) -> bool:
        return self.file.exists() and (self.needs is None or _is_installed(self.needs))

    def load(self) -> None:
        """Import its scenarios, and what every child would import again."""
        for needed in _NEEDED_BY_ALL:
            importlib.import_module(needed)
        name = f"crashmatrix_scenarios_{self.name}"
        file, inside = (
            (self.file / "__init__.py", [str(self.file)]) if self.file.is_dir() else (self.file, None)
        )
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.file} is no Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package above it
        return False


def _of(name: str, needs: str) -> Family:
    folder = REPOSITORY / "integrations" / name
    package, module = folder / "scenarios", folder / "scenarios.py"
    return Family(name, package if package.is_dir() else module, needs)


FAMILIES = (
    Family("core", Path(__file__).with_name("core_scenarios.py")),
    _of("langgraph", "langgraph"),
    _of("crewai", "crewai"),
    _of("adk", "google.adk"),
    _of("strands", "strands"),
    _of("openai_agents", "agents"),
)
