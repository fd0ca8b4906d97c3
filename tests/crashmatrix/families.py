"""Where scenarios are found: one module per framework, loaded only where the framework is installed."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Family:
    """Scenarios that share a framework.

    Args:
        name: the framework's.
        file: the module with the scenarios.
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
        for module in ("dbos._sys_db", "psycopg", "durable_agents._core.store.sqlite", "durable_agents._core.store.postgres"):
            importlib.import_module(module)
        name = f"crashmatrix_scenarios_{self.name}"
        spec = importlib.util.spec_from_file_location(name, self.file)
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


FAMILIES = (
    Family("core", Path(__file__).with_name("core_scenarios.py")),
    *(
        Family(name, REPOSITORY / "integrations" / name / "scenarios.py", needs)
        for name, needs in {
            "langgraph": "langgraph",
            "crewai": "crewai",
            "adk": "google.adk",
            "strands": "strands",
            "openai_agents": "agents",
        }.items()
    ),
)
