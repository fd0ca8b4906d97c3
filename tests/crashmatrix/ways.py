"""What can befall a process at a boundary, and who goes on with its runs.

*restart*: it is killed, then another one starts.

*takeover*: it is killed while another one, the bystander, is alive as a worker on the same database. The bystander
finds out by itself, and must not have touched a run before.

*freeze*: it is frozen, the bystander takes over, and the frozen one is thawed: as soon as its run is taken over (hard),
or when everything has come to rest (strict). It must live on without moving a record or a row, or beginning a step.
"""

from collections.abc import Callable

from . import check, child
from .attempts import Kill, Outcome, Room, ended, indented, leave, read, scene_of
from .forks import Attempt, Child, End, Look, fork
from .marks import GONE, OVER, READY, RECOVERED, THAWED, is_marked, mark
from .traces import Traces, claims

# Enough for a thawed process to try its next write before the new owner writes anything.
_HESITATION_SECONDS = 0.1


def restart(room: Room, kill: Kill, place: int) -> Attempt[Outcome]:
    """Kill a process at the point, recover in another, and compare."""
    trial = _Trial(room, kill, place)
    first = trial.fork(lambda: child.die(trial.scene, kill.point, kill.is_strict), "output")
    if trial.was_killed((yield first.look)):
        second = trial.fork(lambda: child.recover(trial.scene), "recovery")
        trial.compare((yield second.look), Traces.load(trial.folder, first.pid))
    return trial.end()


def takeover(room: Room, kill: Kill, place: int) -> Attempt[Outcome]:
    """Kill a process at the point while another one is at work, and compare what comes of that."""
    trial = _Trial(room, kill, place)
    bystander = trial.fork(lambda: child.stand_by(trial.scene), "recovery")
    yield trial.marked(READY, bystander)
    first = trial.fork(lambda: child.die(trial.scene, kill.point, kill.is_strict, is_alone=False), "output")
    if trial.was_killed((yield first.look)):
        mark(trial.folder, GONE)
        trial.compare((yield bystander.look), Traces.load(trial.folder, first.pid))
    trial.problems += check.untouched(Traces.load(trial.folder, first.pid))
    return trial.end(bystander)


def freeze(room: Room, kill: Kill, place: int) -> Attempt[Outcome]:
    """Freeze a process at the point until another one has taken over, and compare what comes of both."""
    trial = _Trial(room, kill, place)
    hesitates = 0.0 if kill.is_strict else _HESITATION_SECONDS
    bystander = trial.fork(lambda: child.stand_by(trial.scene, True, hesitates), "recovery")
    yield trial.marked(READY, bystander)
    first = trial.fork(lambda: child.freeze(trial.scene, kill.point, kill.is_strict), "output")
    yield lambda: first.look() or first.is_frozen or None
    if (early := first.look()) is not None:
        trial.problems.append(ended("the process was to be frozen and", early))
    else:
        mark(trial.folder, GONE)
        at_rest = trial.marked(RECOVERED, bystander)
        yield at_rest if kill.is_strict else lambda: at_rest() or trial.is_taken_over(first)
        mark(trial.folder, THAWED)
        first.thaw()
        end = yield lambda: trial.thawed_end(first, bystander)
        mark(trial.folder, OVER)
        second = yield bystander.look
        traces = Traces.load(trial.folder, first.pid)
        trial.compare(second, traces)
        trial.compare_thawed(end, traces)
    trial.problems += check.untouched(Traces.load(trial.folder, first.pid))
    return trial.end(bystander, first)


WAYS: dict[str, Callable[[Room, Kill, int], Attempt[Outcome]]] = {
    "restart": restart,
    "takeover": takeover,
    "freeze": freeze,
}


class _Trial:
    """An attempt under way, and what is found wrong with it."""

    def __init__(self, room: Room, kill: Kill, place: int) -> None:
        self._room, self._kill = room, kill
        self.scene = scene_of(room, kill.subject, f"{kill.way}-{kill.mode}-{kill.number}", place)
        self.folder = self.scene.folder
        self._outcome = Outcome(kill.subject, kill=kill)
        self.problems = self._outcome.problems

    def fork(self, work: Callable[[], None], output: str) -> Child:
        return fork(work, self.folder / output, self._room.timeout)

    def marked(self, name: str, child: Child) -> Look:
        """Waits until there is this mark, or the child that should make it has ended."""
        return lambda: is_marked(self.folder, name) or child.look()

    def is_taken_over(self, first: Child) -> bool | None:
        """Whether another process has claimed a run."""
        return any(claim.pid != first.pid for claim in claims(self.folder)) or None

    def thawed_end(self, thawed: Child, bystander: Child) -> End | None:
        """How the thawed process ended; when it waits in vain for the other one to come to rest, it is ended."""
        if bystander.look() is not None and not is_marked(self.folder, RECOVERED):
            thawed.end()
        return thawed.look()

    def was_killed(self, first: End) -> bool:
        self._outcome.cpu += first.cpu
        if not first.was_killed:
            self.problems.append(ended("the process was to be killed and", first))
        return first.was_killed

    def compare(self, second: End, traces: Traces) -> None:
        """What the process saw that went on, with the uncrashed run."""
        self._outcome.cpu += second.cpu
        if traces.death is not None and traces.death.place.path:
            self._outcome.was_late = self._kill.is_strict and not traces.death.strict
        if second.code != 0:
            self.problems.append(ended("the process that was to recover the run", second))
            return
        self.problems += check.after_end(self._kill.reference, read(self.folder / RECOVERED), traces)
        if self.problems and second.output:
            self.problems.append(f"the recovering process printed:\n{indented(second.output)}")

    def compare_thawed(self, first: End, traces: Traces) -> None:
        """What the thawed process did and saw, with what the other one had made of its runs."""
        self._outcome.cpu += first.cpu
        self.problems += check.begun(traces)
        if first.code != 0:
            self.problems.append(ended("the thawed process", first))
            return
        if (self.folder / "moved").exists():
            seen, thawed = read(self.folder / RECOVERED), read(self.folder / "thawed")
            at_rest = self._kill.is_strict
            self.problems += check.thawed(self._kill.reference, self._kill.point, thawed, at_rest)
            self.problems += check.overwritten(seen, traces)
            self.problems += check.agree(seen, thawed)
            moved = read(self.folder / "moved")
            self.problems += [f"the thawed process moved a row: {row}" for row in moved]
        if self.problems and first.output:
            self.problems.append(f"the thawed process printed:\n{indented(first.output)}")

    def end(self, *children: Child) -> Outcome:
        """End what still runs, and clean up."""
        for running in children:
            running.end()
        leave(self._room, self.scene, self._outcome)
        return self._outcome
