"""What the children do: live through a scenario, die or freeze in it, go on after that, or run the agent natively.

Each leaves a JSON file with what it saw, which the harness compares.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import durable_agents
from durable_agents._core import engine
from durable_agents._core.worker import Liveness

from . import hooks, tables
from .api import Build
from .boundaries import Boundaries, Point
from .databases import Database
from .marks import GONE, OVER, READY, RECOVERED, THAWED, await_mark, is_marked, mark
from .play import Play
from .traces import note_claim
from .world import World

# A death is noticed in a fifth of a second, in which other attempts have the CPU; the lease is for a machine under
# load, where nobody dies.
LIVENESS = Liveness(heartbeat=0.08, grace=0.12, poll=0.06, lease=20.0)
# Not before its own sweep has found a dead worker's run does this one look into the queue.
_STANDING_BY = replace(LIVENESS, poll=3600.0)
_SHORT_LEASE_SECONDS = 0.15
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Scene:
    """What all processes of an attempt share: a scenario, a folder for files, a database."""

    build: Build
    folder: Path
    database: Database
    url: str


def live(scene: Scene) -> None:
    """Go through the whole scenario in a fresh database, and count its boundaries."""
    imported = set(sys.modules)
    scene.database.clear(scene.url)
    boundaries = Boundaries(scene.folder / "death")
    play = _first(scene, boundaries)
    turns = play.turns(0)
    points = [asdict(point) for point in boundaries.passed]
    known = {
        "points": points,
        "may_fail": play.may_fail,
        "once": play.once,
        "replays": play.replays,
        "ordered": play.ordered,
        "attaches": play.attaches,
        "settles": play.settles,
        "names_question": play.names_question,
    }
    lived = {"turns": turns, **known, **play.left()}
    _save(scene, "lived", {**lived, "imported": sorted(set(sys.modules) - imported)})


def die(scene: Scene, point: Point, strict: bool, is_alone: bool = True) -> None:
    """Go through the scenario to the kill."""
    if is_alone:
        scene.database.clear(scene.url)
    boundaries = Boundaries(scene.folder / "death", point, strict)
    _first(scene, boundaries).turns(0)
    boundaries.await_end()


def freeze(scene: Scene, point: Point, strict: bool) -> None:
    """Go through the scenario to the freeze; once thawed, live on: to the end of this turn, then as a worker only.

    The process ends when the other one has come to rest, since it may have claimed a run in between.
    """
    writing = hooks.serialise_transactions()
    driven = hooks.count_drives()
    hooks.note_claims(partial(note_claim, scene.folder))
    boundaries = Boundaries(scene.folder / "death", point, strict, partial(_freeze, scene.folder, writing))
    play = _first(scene, boundaries)
    turns = play.turns(0, lambda: is_marked(scene.folder, THAWED))
    boundaries.await_end()
    if not boundaries.is_over:
        return
    await_mark(scene.folder, RECOVERED)
    while driven:  # what nobody waits for must end too, such as a queued run
        time.sleep(_LOOK_SECONDS)
    seen = {"turns": turns, **play.left()}
    durable_agents.shutdown()
    _save(scene, "thawed", seen)


def _freeze(folder: Path, writing: Any) -> None:
    with writing:
        os.kill(os.getpid(), signal.SIGSTOP)
        await_mark(folder, THAWED)  # the threads of a process do not stop at the same instant


def recover(scene: Scene) -> None:
    """Launch after a kill, and go on."""
    _save(scene, RECOVERED, _second(scene, LIVENESS).go_on())


def stand_by(scene: Scene, frozen: bool = False, hesitates: float = 0.0) -> None:
    """Be alive as a worker while another process goes through the scenario; when that is gone, go on.

    Args:
        frozen: whether it will only be frozen. Then its lease has to run out, which it is made to do soon; and what it
            does once it is thawed is looked at.
        hesitates: seconds between the claim of its run and the first thing that is done about it.
    """
    scene.database.clear(scene.url)
    hooks.note_claims(partial(note_claim, scene.folder))
    if hesitates:
        hooks.hesitate(lambda: 0.0 if is_marked(scene.folder, THAWED) else hesitates)
    play = _second(scene, _STANDING_BY)
    mark(scene.folder, READY)
    await_mark(scene.folder, GONE)
    # From now on a worker like any other. A short lease from the beginning would call the slow dead.
    running = engine.current()
    live = replace(LIVENESS, lease=_SHORT_LEASE_SECONDS) if frozen else LIVENESS
    running.liveness = running.worker._liveness = live
    running.wake()
    seen = play.go_on()
    before = tables.contents(running.store)
    _save(scene, RECOVERED, seen)
    if frozen:
        await_mark(scene.folder, OVER)
        _save(scene, "moved", tables.difference(before, tables.contents(running.store)))


def replay(scene: Scene) -> None:
    """Make each result out of its run's records; nothing may be executed."""
    play = _second(scene, _STANDING_BY)
    _save(scene, "replayed", play.replayed())


def native(scene: Scene) -> None:
    """Give the unwrapped agent the same turns."""
    _settle_in(scene)
    scenario = scene.build(World(scene.folder))
    if scenario.native is None:
        _save(scene, "native", {"turns": {}})
        return
    play = Play(scenario, World(scene.folder), native=True)
    _save(scene, "native", {"turns": play.turns(0), "state": play.state()})


def _first(scene: Scene, boundaries: Boundaries) -> Play:
    hooks.install(boundaries)
    return _launched(scene, LIVENESS, World(scene.folder, boundaries))


def _second(scene: Scene, liveness: Liveness) -> Play:
    return _launched(scene, liveness, World(scene.folder, recovers=True))


def _launched(scene: Scene, liveness: Liveness, world: World) -> Play:
    hooks.skip_migration()
    _settle_in(scene)
    play = Play(scene.build(world), world)
    durable_agents.launch(scene.url, **asdict(liveness))
    return play


def _settle_in(scene: Scene) -> None:
    """What a framework keeps for its user is this process's own: frozen with a lock on it, it holds up nobody."""
    os.environ["XDG_DATA_HOME"] = str(scene.folder / f"home-{os.getpid()}")


def _save(scene: Scene, name: str, data: Any) -> None:
    """Write the file, whole or not at all."""
    unfinished = scene.folder / f"{name}.unfinished"
    unfinished.write_text(json.dumps(data))
    unfinished.rename(scene.folder / name)
