"""What must be the same in a run that was cut off and recovered, and in one that was not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from durable_agents._core.record import ANSWER, CLOSE, WAIT

from .boundaries import BEFORE_ANSWER, BEFORE_RETRY, Death, Point, stable
from .traces import Traces
from .world import Effect


@dataclass(frozen=True, slots=True)
class Reference:
    """A scenario uncrashed: what its process saw, the effects it had, and where it could have been killed."""

    seen: dict[str, Any]
    effects: Sequence[Effect]
    points: Sequence[Point]


def against_native(reference: Reference, native: dict[str, Any], effects: Sequence[Effect]) -> list[str]:
    """Differences between the uncrashed durable run and the native one."""
    found = []
    for number, turn in native["turns"].items():
        returned = reference.seen["turns"][number].get("returned", turn["returned"])
        found += _differ(f"turn {number} returns something else than natively", turn["returned"], returned)
    found += _differ("the state is another than natively", native["state"], reference.seen["state"])
    want, got = _count(effects), _count(reference.effects)
    # Fewer of one name are no loss: where an answer natively runs a step again, its record may be served.
    if got - want or want.keys() != got.keys():
        found.append(f"other effects than natively: too many {dict(got - want)}, missing {dict(want - got)}")
    if reference.seen["ordered"] and want == got:
        order = [[effect.name for effect in found] for found in (effects, reference.effects)]
        found += _differ("the order of effects is another than natively", *order)
    return found


def replayed(seen: dict[str, Any], replayed: dict[str, Any]) -> list[str]:
    """Differences between what the runs came to, and what is made of their records when nothing is executed."""
    found = []
    for run, outcome in replayed["outcomes"].items():
        found += _differ(f"run {run!r} is replayed to something else", seen["runs"][run]["outcome"], outcome)
    return found


def after_end(reference: Reference, seen: dict[str, Any], traces: Traces) -> list[str]:
    """What is wrong with runs whose process came to an end, given what the process saw that went on with them."""
    return [
        *_effects(reference, seen["at_kill"], traces),
        *_turns(reference.seen["turns"], seen["turns"]),
        *_runs(reference.seen, seen["runs"]),
        *_differ("the state differs", reference.seen["state"], seen["state"]),
    ]


def untouched(traces: Traces) -> list[str]:
    """A worker that lives keeps its runs."""
    return [f"run {run!r} was taken over while its worker lived" for run in traces.taken_alive]


def begun(traces: Traces) -> list[str]:
    """What a thawed process began in runs that are not its own. It cannot help but end the steps it was frozen in."""
    return [
        f"effect {effect.name!r} of a step that the thawed process began: {effect.path or 'outside of a step'}"
        for effect in traces.strays
        if not (effect.began and traces.was_its_own(effect))
    ]


def thawed(reference: Reference, point: Point, thawed: dict[str, Any], at_rest: bool) -> list[str]:
    """What is wrong with what a thawed process was returned.

    It is its turn's result, or a later one of its run that has come about meanwhile. A stream cannot begin again.

    Args:
        at_rest: whether all turns were over when it was thawed. Else it may be returned what nobody was returned
            uncrashed: the pause after an answer that is no verb's.
    """
    found = []
    for number, turn in thawed["turns"].items():
        later = [
            other.get("returned")
            for n, other in reference.seen["turns"].items()
            if int(n) >= int(number) and other["run"]["id"] == turn["run"]["id"]
        ]
        is_known = reference.seen["attaches"][int(number)] and (at_rest or None not in later)
        returned = turn.get("returned")
        if returned is None or not is_known or returned in later:
            continue
        too_late = _too_late(reference, int(number), turn["run"]["id"], point)
        if reference.seen["settles"] and not at_rest:  # nobody has said yet what became of the tool
            too_late.append("RunWaiting")
        if not returned.startswith(tuple(f"raises {error}:" for error in too_late)):
            what = f"turn {number}: the thawed process was returned something else"
            found += _differ(what, later, returned)
    return found


def _too_late(reference: Reference, number: int, run: str, point: Point) -> list[str]:
    """The errors that rightly tell a verb that it comes too late."""
    cancelled = ["RunCancelled"] if reference.seen["runs"][run]["status"] == "cancelled" else []
    # To whichever question is open: by now that may be another one, or none.
    is_unnamed = point.kind == BEFORE_ANSWER and not reference.seen["names_question"][number]
    over = ["RunOver"] if point.kind == BEFORE_RETRY else []
    return [*cancelled, *over, *(["AlreadyAnswered", "NotWaiting"] if is_unnamed else [])]


def overwritten(seen: dict[str, Any], traces: Traces) -> list[str]:
    """Records that the thawed process wrote into a run that another one had claimed."""
    return [
        f"run {run['id']!r}: the thawed process wrote the record {record['path']!r}"
        for run in seen["runs"].values()
        for record in run["records"]
        if record["worker"] not in ("", seen["worker"])
        and traces.owner(run["id"], record["at"]) not in (None, traces.first)
    ]


def agree(seen: dict[str, Any], thawed: dict[str, Any]) -> list[str]:
    """What the thawed process reads otherwise than the one that went on."""
    found = _differ("the thawed process sees another state", seen["state"], thawed["state"])
    for run in seen["runs"]:
        found += _differ(
            f"the thawed process sees another run {run!r}", seen["runs"][run], thawed["runs"].get(run)
        )
    return found


def _effects(reference: Reference, at_kill: dict[str, Any], traces: Traces) -> list[str]:
    strays = traces.strays
    effects = [effect for effect in traces.effects if effect not in strays]
    want, got = _count(reference.effects), _count(effects)
    may_repeat = Counter(
        effect.name for effect in traces.before if _may_repeat(effect, at_kill, traces.death)
    )
    # What may never happen again is not done again when the thawed process has done it.
    done = got | Counter(effect.name for effect in strays if effect.name in reference.seen["once"])
    found = [f"effect {name!r} is missing" for name in want - done]
    for name, times in (got - want).items():
        if times > may_repeat[name] or name in reference.seen["once"]:
            found.append(
                f"effect {name!r} happened {got[name]} times, uncrashed {want[name]}: {may_repeat[name]} might have "
                f"repeated, the steps of the others were recorded at the kill or were not being killed"
            )
    keys, usual_keys = _keys(traces.effects), _keys(reference.effects)
    found += [
        f"effect {name!r} had {keys[name]} idempotency keys, uncrashed {usual_keys[name]}"
        for name in sorted(want & got)
        if keys[name] != usual_keys[name]
    ]
    return found


def _may_repeat(effect: Effect, at_kill: dict[str, Any], death: Death | None) -> bool:
    """Whether the step of this effect was cut off: nobody could know that the effect had happened."""
    records = _standing(at_kill.get(effect.run, []))
    if not effect.path or any(record["kind"] == CLOSE or record["path"] == effect.path for record in records):
        return False
    if sum(record["kind"] == WAIT for record in records) != effect.pauses:
        return False  # a pause was recorded since: its segment is over
    return not (death and death.strict) or effect.place.encloses(death.place)


def _standing(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that hold: a retry takes some back."""
    found: list[dict[str, Any]] = []
    for record in records:
        found = [*(held for held in found if held["path"] not in record["taken_back"]), record]
    return found


def _count(effects: Sequence[Effect]) -> Counter[str]:
    return Counter(effect.name for effect in effects)


def _keys(effects: Sequence[Effect]) -> Counter[str]:
    return Counter(name for name, _ in {(effect.name, effect.key) for effect in effects})


def _turns(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    found = []
    for number, turn in got.items():
        for what, value in turn.items():
            found += _differ(f"turn {number}: {what} differs", want[number][what], value)
    return found


def _runs(reference: dict[str, Any], got: dict[str, Any]) -> list[str]:
    want = reference["runs"]
    # Of a tool that may not run again somebody is asked only when it was cut off.
    asides = (WAIT, ANSWER) if reference["once"] else ()
    found = _differ("other runs", sorted(want), sorted(got))
    for run in want.keys() & got.keys():
        for what in ("status", "outcome", "usage"):
            found += _differ(f"run {run!r}: {what} differs", want[run][what], got[run][what])
        steps, usual_steps = _steps(got[run]["records"], asides), _steps(want[run]["records"], asides)
        if steps != usual_steps:
            more, less = sorted((steps - usual_steps).elements()), sorted((usual_steps - steps).elements())
            found.append(f"run {run!r}: other steps: too many {more}, missing {less}")
    return found


def _steps(records: Sequence[dict[str, Any]], asides: Sequence[str]) -> Counter[tuple[str, str, str]]:
    return Counter(
        (stable(record["path"]), record["kind"], record["status"])
        for record in records
        if record["kind"] not in asides
    )


def _differ(what: str, want: Any, got: Any) -> list[str]:
    return [] if want == got else [f"{what}:\n      uncrashed {want}\n      now       {got}"]
