"""The conformance harness finds what differs, on a framework of one function."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import __main__ as command
from conformance import suite as suites
from conformance.report import Comparison
from conformance.suite import MARK, UNKNOWN, Suite

TESTS = """
import toy

def test_same():
    assert toy.add(1, 2) == 3

def test_breaks():
    assert toy.add(20, 30) == 50

def test_refused():
    assert toy.add("a", "b") == "ab"

def test_never_worked():
    assert toy.add(1, 1) == 3
"""
ROUTER = """
import toy
from durable_agents.errors import NotSupported

def install(ledger):
    native = toy.add

    def add(one, other):
        if isinstance(one, str):
            ledger.refused(NotSupported(f"{one!r} is a text"))
            return native(one, other)
        if COUNTS:
            ledger.ran()
        return native(one, other) - (one == 20)

    toy.add = add
"""
SUITE = f"""
distribution = "pytest"
tests = ["test_toy.py"]
arguments = ["-p", "no:asyncio"]

{MARK}
[[differs]]
cause = "it was so once"
tests = ["test_toy.py::test_same"]
"""
Compare = Callable[[], Comparison]


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compares what the toy's tests say, after its suite was read again."""
    monkeypatch.setattr(suites, "INTEGRATIONS", tmp_path)
    home, source = tmp_path / "toy", tmp_path / "source"
    home.mkdir()
    source.mkdir()
    (home / "conformance.toml").write_text(SUITE)
    (home / "conformance.py").write_text(ROUTER.replace("COUNTS", "True"))
    (source / "toy.py").write_text("def add(one, other):\n    return one + other\n")
    (source / "test_toy.py").write_text(TESTS)
    (source / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return lambda: command._compare(Suite.of("toy"), source, [])


def test_what_differs_is_found_and_can_be_listed(compare: Compare) -> None:
    compared = compare()
    assert (compared.new, compared.over) == (["test_toy.py::test_breaks"], ["test_toy.py::test_same"])
    assert compared.figures == {
        "plain": {"passed": 3, "failed": 1, "skipped": 0},
        "durable": {"passed": 2, "failed": 2, "skipped": 0},
        "runs": 3,
        "refused": 1,
        "replayed": 0,
        "replayed_right": 0,
    }
    assert compared.counts.refused == {"'…' is a text": 1}
    assert command._verdict(compared, written=False) == 1

    compared.suite.write(compared.figures, compared.differs)
    listed = Suite.of("toy")
    assert listed.differs == {"test_toy.py::test_breaks": UNKNOWN}
    assert listed.figures == compared.figures
    again = Comparison(listed, compared.plain, compared.durable)
    assert (again.new, again.over) == ([], [])
    assert command._verdict(again, written=False) == 0


def test_a_suite_in_which_nothing_was_durable_has_shown_nothing(compare: Compare, tmp_path: Path) -> None:
    (tmp_path / "toy" / "conformance.py").write_text(ROUTER.replace("COUNTS", "False"))
    compared = compare()
    assert compared.counts.runs == 0
    assert command._verdict(compared, written=True) == 1
