"""`conformance.toml` of an integration, and the source distribution it speaks of.

Its keys, all of them optional but the first:

    distribution = "langgraph"       the one whose source distribution holds the tests
    no_tests = "…"                   said, and checked, where it holds none: then nothing else is needed
    hide = ["langgraph"]             folders of it that would be imported in place of the installed package
    links = {"src/x" = "x"}          where its tests look for the files of that package, the installed one
    install = ["syrupy==5.0.0"]      what the tests need beside the integration's extra and the group `test`
    tests = ["tests"]                what pytest is told to run
    arguments = ["-n", "2"]          and how
    environment = {NAME = "value"}
    leave_out = {"tests/x.py" = "…"} files, folders and tests that are not run, each with the reason
    [[unsteady]]                     tests that differ in some runs and not in others: `cause`, `tests`
    [[forbids]]                      tests that forbid some runs, which stay native: `cause`, `tests`

A `conformance_conftest.py` beside it becomes the `conftest.py` of the source distribution's top folder.

What follows `MARK` is what was seen last. `--write` makes it again, and keeps the causes.
"""

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
INTEGRATIONS = ROOT / "integrations"
UNPACKED = ROOT / ".nox" / "conformance"
MARK = "# -- As seen last. Made by `python3 noxfile.py -s conformance -- --write`; the causes are ours.\n"
UNKNOWN = "not looked into yet"


@dataclass(frozen=True)
class Suite:
    """The tests of one framework, and what is known of them.

    Args:
        differs: the tests whose outcome is not the native one, each with the cause.
        unsteady: those that may differ.
        forbids: those that forbid some runs.
        figures: how many passed, failed and were skipped, "plain" and "durable"; and "runs".
    """

    framework: str
    distribution: str
    no_tests: str = ""
    hide: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    install: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    leave_out: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    differs: Mapping[str, str] = field(default_factory=dict)
    unsteady: Mapping[str, str] = field(default_factory=dict)
    forbids: Mapping[str, str] = field(default_factory=dict)

    def forbids_here(self) -> bool:
        """Whether the test that runs in this process forbids some runs."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        return test in self.forbids

    @classmethod
    def of(cls, framework: str) -> "Suite":
        """The suite as its `conformance.toml` says."""
        read = tomllib.loads(_file(framework).read_text())
        causes = {name: _causes(read.pop(name, ())) for name in ("differs", "unsteady", "forbids")}
        figures = read.pop("figures", {})
        told: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in read.items()
        }
        return cls(framework, **told, figures=figures, **causes)

    @property
    def router(self) -> Path:
        return INTEGRATIONS / self.framework / "conformance.py"

    @property
    def version(self) -> str:
        """The one that is installed, which is the one that the constraints pin."""
        return importlib.metadata.version(self.distribution)

    def write(self, figures: Mapping[str, Any], differs: Mapping[str, str]) -> None:
        """Note what was seen, in place of what had been seen before."""
        file = _file(self.framework)
        kept = file.read_text().partition(MARK)[0].rstrip("\n")
        lines = [kept, "", MARK.rstrip("\n"), "", "[figures]"]
        lines += [f"{name} = {_inline(value)}" for name, value in figures.items()]
        for cause in sorted(set(differs.values())):
            lines += ["", "[[differs]]", f"cause = {_text(cause)}", "tests = ["]
            lines += [f"    {_text(test)}," for test in sorted(differs) if differs[test] == cause]
            lines.append("]")
        file.write_text("\n".join(lines) + "\n")

    def unpacked(self) -> Path:
        """The source distribution of the installed version, downloaded once, without what would shadow the package."""
        home = UNPACKED / f"{self.distribution}-{self.version}"
        if not home.exists():
            making = home.with_name(f"{home.name}.part")
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            _unpack(_download(self.distribution, self.version, making), making)
            making.rename(home)
        (source,) = (path for path in home.iterdir() if path.is_dir())
        for name in self.hide:
            shadow = source / name
            hidden = shadow.with_name(f"{shadow.name}.hidden")
            if shadow.exists() and not hidden.exists():
                shadow.rename(hidden)
        for place, package in self.links.items():
            _link(source / place, package)
        if (conftest := self.router.with_name("conformance_conftest.py")).exists():
            shutil.copy(conftest, source / "conftest.py")
        return source


def _file(framework: str) -> Path:
    return INTEGRATIONS / framework / "conformance.toml"


def _causes(groups: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {test: group["cause"] for group in groups for test in group["tests"]}


def _link(place: Path, package: str) -> None:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(Path(found.origin).parent)


def _download(distribution: str, version: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    wanted = ["--no-binary", distribution, f"{distribution}=={version}"]
    subprocess.run([*pip, *wanted, "--dest", folder], check=True)
    (archive,) = folder.iterdir()
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_inline(item)}" for name, item in value.items()) + "}"
    return str(int(value))


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a JSON string is a basic string of TOML
