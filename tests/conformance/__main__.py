"""The command: `python -m conformance FRAMEWORK [--write] [arguments for pytest]`."""

import argparse
import re
import sys
from pathlib import Path

from .report import Comparison
from .suite import INTEGRATIONS, Suite
from .tries import run

_TEST = re.compile(r"^\s*(async )?def test_", re.MULTILINE)


def main() -> int:
    """Run the tests both ways and say what differs; 0 when that is what is listed, and runs were durable at all."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__)
    parser.add_argument(
        "framework", choices=sorted(file.parent.name for file in INTEGRATIONS.glob("*/*.toml"))
    )
    parser.add_argument("--write", action="store_true", help="note what is seen in conformance.toml")
    arguments, more = parser.parse_known_args()
    if arguments.write and more:
        parser.error("--write is for all tests: arguments for pytest would leave some out")
    suite = Suite.of(arguments.framework)
    source = suite.unpacked()
    if suite.no_tests:
        return _without(suite, source)
    compared = _compare(suite, source, more)
    print(*compared.lines(), sep="\n")
    if arguments.write:
        steady = {test: cause for test, cause in compared.differs.items() if test not in suite.unsteady}
        suite.write(compared.figures, steady)
    return _verdict(compared, written=arguments.write)


def _without(suite: Suite, source: Path) -> int:
    """A distribution that is said to hold no tests."""
    found = [file for file in sorted(source.rglob("test_*.py")) if _TEST.search(file.read_text())]
    print(f"{suite.distribution} {suite.version}: {suite.no_tests}")
    if found:
        print(f"but it holds {len(found)} test files now, such as {found[0].relative_to(source)}")
    return 1 if found else 0


def _compare(suite: Suite, source: Path, more: list[str]) -> Comparison:
    """Both runs; what comes out otherwise than listed is tried a second time."""
    plain = run(suite, source, durable=False, more=more)
    compared = Comparison(suite, plain, run(suite, source, durable=True, more=more))
    if surprises := [*compared.new, *compared.over]:
        print(f"{len(surprises)} tests came out otherwise than listed: once more, these alone", flush=True)
        plain, durable = (run(suite, source, durable=how, more=more, only=surprises) for how in (False, True))
        compared = compared.again(plain, durable)
    return compared


def _verdict(compared: Comparison, *, written: bool) -> int:
    if not compared.counts.runs:
        print("no run went through the runner: nothing was tested")
        return 1
    return 0 if written else int(bool(compared.new or compared.over))


if __name__ == "__main__":
    sys.exit(main())
