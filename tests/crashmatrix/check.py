"""What must be the same in a run that was killed and recovered, and in one that was not."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from durable_agents._core.record import CLOSE, WAIT

from .boundaries import Death, Point, stable
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
    return found


def after_kill(
    reference: Reference,
    seen: dict[str, Any],
    before: Sequence[Effect],
    after: Sequence[Effect],
    death: Death,
) -> list[str]:
    """What is wrong with a run that was killed.

    Args:
        seen: what the process saw that recovered it.
        before, after: the effects up to the kill, and all of them.
        death: how the first process died.
    """
    return [
        *_effects(reference, seen["at_kill"], before, after, death),
        *_turns(reference.seen["turns"], seen["turns"]),
        *_runs(reference.seen["runs"], seen["runs"]),
        *_differ("the state differs", reference.seen["state"], seen["state"]),
    ]


def _effects(
    reference: Reference,
    at_kill: dict[str, Any],
    before: Sequence[Effect],
    after: Sequence[Effect],
    death: Death,
) -> list[str]:
    want, got = _count(reference.effects), _count(after)
    may_repeat = Counter(effect.name for effect in before if _may_repeat(effect, at_kill, death))
    found = [f"effect {name!r} is missing" for name in want - got]
    for name, times in (got - want).items():
        if times > may_repeat[name]:
            found.append(
                f"effect {name!r} happened {got[name]} times, uncrashed {want[name]}: {may_repeat[name]} might have "
                f"repeated, the steps of the others were recorded at the kill or were not being killed"
            )
    keys, usual_keys = _keys(after), _keys(reference.effects)
    found += [
        f"effect {name!r} had {keys[name]} idempotency keys, uncrashed {usual_keys[name]}"
        for name in sorted(want & got)
        if keys[name] != usual_keys[name]
    ]
    return found


def _may_repeat(effect: Effect, at_kill: dict[str, Any], death: Death) -> bool:
    """Whether the step of this effect was cut off: nobody could know that the effect had happened."""
    records = at_kill.get(effect.run, [])
    if not effect.path or any(record["kind"] == CLOSE or record["path"] == effect.path for record in records):
        return False
    if sum(record["kind"] == WAIT for record in records) != effect.pauses:
        return False  # a pause was recorded since: its segment is over
    return effect.place.encloses(death.place) if death.strict else True


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


def _runs(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    found = _differ("other runs", sorted(want), sorted(got))
    for run in want.keys() & got.keys():
        for what in ("status", "outcome", "usage"):
            found += _differ(f"run {run!r}: {what} differs", want[run][what], got[run][what])
        steps, usual_steps = _steps(got[run]["records"]), _steps(want[run]["records"])
        if steps != usual_steps:
            more, less = sorted((steps - usual_steps).elements()), sorted((usual_steps - steps).elements())
            found.append(f"run {run!r}: other steps: too many {more}, missing {less}")
    return found


def _steps(records: Sequence[dict[str, Any]]) -> Counter[tuple[str, str, str]]:
    return Counter((stable(record["path"]), record["kind"], record["status"]) for record in records)


def _differ(what: str, want: Any, got: Any) -> list[str]:
    return [] if want == got else [f"{what}:\n      uncrashed {want}\n      now       {got}"]
