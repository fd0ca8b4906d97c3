"""The pytest plugin of both test runs: it tells each test's outcome, and leads the second run through the runner.

It knows what to do from the environment, which processes of pytest-xdist inherit.
"""

import importlib.util
import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from .ledger import Ledger

RESULTS, ROUTER = "CONFORMANCE_RESULTS", "CONFORMANCE_ROUTER"
"""The folder for what is told, and the integration's `conformance.py`; without that the tests run as they are."""
OUTCOMES = "outcomes.jsonl"
_WORST = ("passed", "skipped", "failed")
_NEVER = 1e6  # seconds between looks for queued runs: there are none
_MESSAGE_CHARACTERS = 300


def pytest_configure(config: pytest.Config) -> None:
    results = Path(os.environ[RESULTS])
    runs_tests = hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Outcomes(results / OUTCOMES))
    if runs_tests and (router := os.environ.get(ROUTER)):
        config.pluginmanager.register(_Routed(Path(router), results))


class _Outcomes:
    """Writes each test's outcome; in the process that hears of all of them."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("w")
        self._outcomes: dict[str, str] = {}
        self._messages: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        known = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = max(known, report.outcome, key=_WORST.index)
        if report.outcome == "failed":
            self._messages.setdefault(report.nodeid, _message(report))

    def pytest_sessionfinish(self) -> None:
        for test, outcome in self._outcomes.items():
            told = {"test": test, "outcome": outcome, "message": self._messages.get(test, "")}
            self._file.write(json.dumps(told) + "\n")
        self._file.close()


def _message(report: pytest.TestReport) -> str:
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext.strip().rsplit("\n", 1)[-1]
    return " ".join(text.split())[:_MESSAGE_CHARACTERS]


class _Routed:
    """The engine, on a SQLite file of this process's own, and the integration's routing."""

    def __init__(self, router: Path, results: Path) -> None:
        import durable_agents

        self._folder = tempfile.TemporaryDirectory(prefix="conformance-")
        durable_agents.launch(f"sqlite:///{self._folder.name}/durable_agents.sqlite", poll=_NEVER)
        self._file = (results / f"counts-{os.getpid()}.jsonl").open("a")
        self._ledger = Ledger(self._file)
        spec = importlib.util.spec_from_file_location(f"conformance_of_{router.parent.name}", router)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.install(self._ledger)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._ledger.replay()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self._ledger.turn(item.nodeid)

    def pytest_unconfigure(self) -> None:
        import durable_agents

        durable_agents.shutdown()
        self._file.close()
        self._folder.cleanup()
