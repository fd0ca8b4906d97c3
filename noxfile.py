"""Every check of this repository, in one environment per framework.

python3 noxfile.py                all checks; needs nothing but Python 3.11 or newer
python3 noxfile.py -s demo        the crash demo
python3 noxfile.py -s core        one session
python3 noxfile.py -l             the list of them
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CONSTRAINTS = ROOT / "constraints"


def private_nox() -> Path:
    """The Python of an environment with the pinned nox, made when it is missing or out of date."""
    home = ROOT / ".nox" / "nox"
    python = home / "bin" / "python"
    pinned, installed = CONSTRAINTS / "nox.txt", home / "nox.txt"
    if not (python.exists() and installed.exists() and installed.read_text() == pinned.read_text()):
        print("Installing nox into .nox/nox", flush=True)
        venv.create(home, clear=True, symlinks=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", pinned], check=True)
        shutil.copy(pinned, installed)
    return python


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036 - nothing has checked it yet
        sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    os.environ["NOXFILE_STARTED"] = str(time.time())
    python = private_nox()
    os.execv(python, [str(python), "-m", "nox", "-f", __file__, *sys.argv[1:]])

import nox  # noqa: E402 - found only once the lines above have run

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.sessions = ["core", "tests"]

STARTED = float(os.environ.get("NOXFILE_STARTED", time.time()))
PROJECT = nox.project.load_toml("pyproject.toml")
FRAMEWORKS = ["langgraph", "openai_agents", "adk", "strands", "crewai"]
CRASH_POINTS = 200  # the fixed part of the crash matrix, for the core and for each framework


def install(
    session: nox.Session, environment: str, *extras: str, groups: list[str], more: Sequence[str] = ()
) -> None:
    """Install the project with extras, dependency groups and more, as `constraints/<environment>.txt` pins them.

    An environment that was made from the same files before is left as it is.
    """
    constraints = CONSTRAINTS / f"{environment}.txt"
    project = f".[{','.join(extras)}]" if extras else "."
    requirements = ["-e", project, *nox.project.dependency_groups(PROJECT, *groups), *more]
    made_from = [str(ROOT), *requirements, (ROOT / "pyproject.toml").read_text(), constraints.read_text()]
    digest = hashlib.sha256("\0".join(made_from).encode()).hexdigest()
    stamp = Path(session.virtualenv.location) / "made-from"
    if stamp.exists() and stamp.read_text() == digest:
        session.log(f"the environment is up to date with {constraints.relative_to(ROOT)}")
        return
    # The build backend is installed apart from the rest and is pinned through a variable of its own.
    pins = {"UV_BUILD_CONSTRAINT": str(constraints), "PIP_BUILD_CONSTRAINT": str(constraints)}
    session.install(*requirements, "-c", str(constraints), env=pins)
    stamp.write_text(digest)


def install_framework(session: nox.Session, framework: str, *groups: str, more: Sequence[str] = ()) -> None:
    """Install one framework, what its samples and tests import, and more."""
    extra = framework.replace("_", "-")
    install(session, framework, extra, groups=[f"{extra}-test", *groups], more=more)


def crash_points(session: nox.Session, family: str) -> None:
    """Every scenario uncrashed, natively and replayed; then kill and freeze it at some of its points."""
    chosen = ["--framework", family, "--fixed", str(CRASH_POINTS)]
    session.run("python", "-m", "crashmatrix", *chosen, env={"PYTHONPATH": "tests"})


@nox.session
def core(session: nox.Session) -> None:
    """Style, the core alone (no framework is installed, so none can be imported), and the crash harness itself."""
    install(session, "core", groups=["test", "types"])
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy", "-m", "durable_agents", "-p", "durable_agents._core")
    session.run("pytest", "tests", *session.posargs)
    if not session.posargs:
        crash_points(session, "core")


@nox.session
@nox.parametrize("framework", FRAMEWORKS, ids=FRAMEWORKS)
def tests(session: nox.Session, framework: str) -> None:
    """One framework: strict types, its own tests, quickstart and README, then a fixed part of the crash matrix."""
    install_framework(session, framework, "test", "types")
    session.run("mypy", "-p", f"durable_agents.{framework}")
    session.run("pytest", f"integrations/{framework}", *session.posargs)
    if not session.posargs:
        crash_points(session, framework)


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """Kill a run half way and watch it finish elsewhere."""
    install_framework(session, "langgraph")
    ready = time.time()
    session.run("python", "demo/demo.py", *session.posargs)
    session.log(f"environment: {ready - STARTED:.1f} s, demo: {time.time() - ready:.1f} s")


@nox.session(default=False)
@nox.parametrize("family", ["core", *FRAMEWORKS], ids=["core", *FRAMEWORKS])
def crash(session: nox.Session, family: str) -> None:
    """The whole crash matrix: every boundary of every scenario; a kill and a restart, a takeover, a freeze."""
    if family == "core":
        install(session, "core", groups=["test"])
    else:
        install_framework(session, family, "test")
    chosen = ["--framework", family, "--all"]
    session.run("python", "-m", "crashmatrix", *chosen, *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(default=False)
@nox.parametrize("framework", FRAMEWORKS, ids=FRAMEWORKS)
def conformance(session: nox.Session, framework: str) -> None:
    """The framework's own tests, from its source distribution: as they are, then through the runner; what differs."""
    suite = nox.project.load_toml(f"integrations/{framework}/conformance.toml")
    install_framework(session, framework, "test", more=["pip==26.3", *suite.get("install", ())])
    session.run("python", "-m", "conformance", framework, *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session(default=False)
@nox.parametrize("framework", FRAMEWORKS, ids=FRAMEWORKS)
def bench(session: nox.Session, framework: str) -> None:
    """What a call costs: alone, kept natively, with DBOS's integration where there is one, durably; a bare commit."""
    install_framework(session, framework, "test", f"{framework.replace('_', '-')}-bench")
    if framework == "langgraph":
        session.run("python", "benchmarks/step_cost.py", *session.posargs)
    session.run("python", "benchmarks/call_cost.py", framework, *session.posargs)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Make `constraints/` again. `-- --upgrade` moves every pin to the newest version."""
    session.install("uv", "-c", str(CONSTRAINTS / "nox.txt"))
    compile_constraints(session, "nox", "--group", "nox")
    everywhere = ["pyproject.toml", "--group", "build", "--group", "test", "--group", "types"]
    compile_constraints(session, "core", *everywhere)
    for framework in FRAMEWORKS:
        extra = framework.replace("_", "-")
        groups = ["--group", f"{extra}-test", "--group", f"{extra}-bench"]
        compile_constraints(session, framework, *everywhere, "--extra", extra, *groups)


def compile_constraints(session: nox.Session, environment: str, *sources: str) -> None:
    """Resolve for every system and every Python from 3.11 on. Pins that still fit stay."""
    target = CONSTRAINTS / f"{environment}.txt"
    form = ["--universal", "--python-version=3.11", "--no-header", "--no-annotate", "--no-emit-index-url"]
    output = ["--quiet", "--output-file", str(target)]
    session.run("uv", "pip", "compile", *sources, *form, *output, *session.posargs)
    target.write_text("# Made by: python3 noxfile.py -s lock\n" + target.read_text())
