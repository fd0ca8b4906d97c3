"""Running a suite's tests once, plain or through the runner, and what came of it."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .ledger import Counts, read
from .plugin import OUTCOMES, RESULTS, ROUTER
from .suite import ROOT, Suite

_FOUND_NOTHING = 5  # pytest's exit code
_RAN = (0, 1, _FOUND_NOTHING)
_QUIET = ("-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "conformance.plugin")


@dataclass(frozen=True, slots=True)
class Outcome:
    """passed, failed or skipped (so are expected failures), or missing: the process died in it; and why it failed."""

    result: str = "missing"
    message: str = ""


@dataclass(slots=True)
class Try:
    """All tests, run once.

    Args:
        counts: what went through the runner, by test.
    """

    outcomes: dict[str, Outcome]
    counts: dict[str, Counts]

    def of(self, test: str) -> Outcome:
        return self.outcomes.get(test, Outcome())

    @property
    def figures(self) -> dict[str, int]:
        found = Counter(outcome.result for outcome in self.outcomes.values())
        return {result: found[result] for result in ("passed", "failed", "skipped")}


def run(suite: Suite, source: Path, *, durable: bool, more: Sequence[str], only: Sequence[str] = ()) -> Try:
    """Run the tests.

    Args:
        source: the unpacked source distribution.
        durable: through the runner.
        more: further arguments for pytest.
        only: these tests alone.

    Raises:
        SystemExit: pytest could not run them.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-results-") as folder:
        results = Path(folder)
        chosen = results / "tests.txt"
        chosen.write_text("\n".join(only or suite.tests))  # command lines have a limit
        command = [sys.executable, "-m", "pytest", *_QUIET, *suite.arguments, *_left_out(suite), *more]
        environment = _environment(suite, results, durable)
        code = subprocess.run([*command, f"@{chosen}"], cwd=source, env=environment).returncode
        if code not in _RAN:
            raise SystemExit(f"pytest could not run the tests of {suite.distribution}: exit code {code}")
        told = (json.loads(line) for line in (results / OUTCOMES).read_text().splitlines())
        outcomes = {each["test"]: Outcome(each["outcome"], each["message"]) for each in told}
        return Try(outcomes, read(results.glob("counts-*.jsonl")))


def _left_out(suite: Suite) -> Iterator[str]:
    for what in suite.leave_out:
        yield f"--deselect={what}" if "::" in what else f"--ignore={what}"


def _environment(suite: Suite, results: Path, durable: bool) -> Mapping[str, str]:
    environment = {**os.environ, **suite.environment, RESULTS: str(results)}
    # Absolute: pytest runs in another folder, which may have a `tests` of its own.
    given = [str(Path(each).resolve()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT / "tests"), *given]))
    if durable:
        environment[ROUTER] = str(suite.router)
    return environment
