"""What the two runs of a suite say about the runner."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .ledger import Counts
from .suite import UNKNOWN, Suite
from .tries import Try


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tests as they are and through the runner."""

    suite: Suite
    plain: Try
    durable: Try

    @property
    def differs(self) -> dict[str, str]:
        """The tests whose outcome is another through the runner, each with the cause as far as it is known."""
        causes = {**self.suite.differs, **self.suite.unsteady}
        return {test: causes.get(test, UNKNOWN) for test in self.seen if self._differs(test)}

    @property
    def seen(self) -> list[str]:
        return sorted({*self.plain.outcomes, *self.durable.outcomes})

    @property
    def new(self) -> list[str]:
        """Tests that differ and are not listed."""
        listed = {*self.suite.differs, *self.suite.unsteady}
        return [test for test in self.differs if test not in listed]

    @property
    def over(self) -> list[str]:
        """Tests that are listed and do not differ."""
        return [test for test in self.seen if test in self.suite.differs and not self._differs(test)]

    @property
    def counts(self) -> Counts:
        total = Counts()
        for counted in self.durable.counts.values():
            total += counted
        return total

    @property
    def figures(self) -> dict[str, int | dict[str, int]]:
        total = self.counts
        return {
            "plain": self.plain.figures,
            "durable": self.durable.figures,
            "runs": total.runs,
            "refused": total.refused.total(),
            "replayed": total.replayed,
            "replayed_right": total.replayed - len(total.faults),
        }

    def _differs(self, test: str) -> bool:
        return self.plain.of(test).result != self.durable.of(test).result

    def again(self, plain: Try, durable: Try) -> "Comparison":
        """Some tests were run a second time: that is what counts, since a busy machine makes some tests fail."""
        for before, now in ((self.plain, plain), (self.durable, durable)):
            before.outcomes.update(now.outcomes)
            before.counts = {k: v for k, v in before.counts.items() if k not in now.outcomes} | now.counts
        return self

    # -- in words

    def lines(self) -> Iterator[str]:
        yield f"{self.suite.distribution} {self.suite.version}"
        for how, tried in (("plain", self.plain), ("through the runner", self.durable)):
            figures = tried.figures
            yield f"  {how:<20}" + ", ".join(f"{number} {result}" for result, number in figures.items())
        yield from self._counted()
        differs = self.differs
        yield f"  tests that differ: {len(differs)}"
        for cause, tests in _by_cause(differs).items():
            yield f"    {len(tests)}: {cause}"
            for test in tests:
                yield f"      {self._shown(test)}"
        for about, tests in (("NEW: differs and is not listed", self.new), ("OVER: listed", self.over)):
            for test in tests:
                yield f"  {about}: {self._shown(test)}"

    def _counted(self) -> Iterator[str]:
        total, by_test = self.counts, self.durable.counts.values()
        through = sum(1 for counted in by_test if counted.runs)
        yield f"  outermost runs that went through the runner: {total.runs}, in {through} tests"
        if total.replayed:
            right = total.replayed - len(total.faults)
            yield (
                f"  replayed over their records: {total.replayed} runs, {right} right ({right / total.replayed:.1%}); "
                f"{total.served} steps served of {total.recorded} recorded"
            )
            for test, counted in self.durable.counts.items():
                for fault in counted.faults:
                    yield f"    {test}: {fault}"
        if total.refused:
            refusing = sum(1 for counted in by_test if counted.refused)
            yield f"  not supported yet, and run natively: {total.refused.total()}, in {refusing} tests"
            for reason, number in total.refused.most_common():
                yield f"    {number}: {reason}"

    def _shown(self, test: str) -> str:
        plain, durable = self.plain.of(test), self.durable.of(test)
        said = " ".join(filter(None, (plain.message, durable.message)))
        return f"{test}: {plain.result}, through the runner {durable.result}" + (f": {said}" if said else "")


def _by_cause(differs: Mapping[str, str]) -> Mapping[str, list[str]]:
    causes: dict[str, list[str]] = {}
    for test, cause in differs.items():
        causes.setdefault(cause, []).append(test)
    return dict(sorted(causes.items()))
