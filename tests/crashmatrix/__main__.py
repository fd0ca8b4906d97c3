"""The command: `python -m crashmatrix`."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from . import databases, matrix
from .api import REGISTRY
from .attempts import Room
from .families import FAMILIES, Family
from .report import Report
from .ways import WAYS


def main() -> int:
    """Run what the arguments say; 0 when everything held."""
    arguments = _arguments()
    families = _families(arguments)
    if arguments.list:
        return max(_apart(partial(_list, family)) for family in families)
    folder = Path(tempfile.mkdtemp(prefix="crashmatrix-", dir=arguments.folder))
    try:
        with databases.running(arguments.db or databases.NAMES, folder, arguments.jobs) as running:
            return _run(arguments, families, running, folder)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder)


def _run(
    arguments: argparse.Namespace,
    families: Sequence[Family],
    running: Sequence[databases.Database],
    folder: Path,
) -> int:
    codes = []
    for number, family in enumerate(families):
        choice = matrix.Choice(
            scenarios=arguments.scenario,
            ways=arguments.how or tuple(WAYS),
            modes=arguments.mode or matrix.MODES,
            point=arguments.point,
            fixed=None if arguments.fixed is None else _share(arguments.fixed, len(families), number),
            jobs=arguments.jobs,
        )
        room = Room(folder / family.name, arguments.timeout, arguments.keep)
        codes.append(_apart(partial(_family, family, choice, running, room)))
    return _total(folder, families, codes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="crashmatrix", description="Kill or freeze agents at every boundary of their runs."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every point of every scenario")
    what.add_argument(
        "--fixed", type=int, metavar="N", help="a fixed sample of N points, spread over everything"
    )
    what.add_argument(
        "--scenario",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one; a pattern like 'async_*'",
    )
    what.add_argument("--list", action="store_true", help="print the scenarios")
    parser.add_argument(
        "--framework", action="append", metavar="NAME", help="only its scenarios: " + _names()
    )
    parser.add_argument(
        "--module", action="append", type=Path, metavar="FILE", help="scenarios of this file instead"
    )
    parser.add_argument("--db", action="append", choices=databases.NAMES, help="default: both")
    parser.add_argument("--how", action="append", choices=WAYS, help="default: all three")
    parser.add_argument("--mode", action="append", choices=matrix.MODES, help="default: both")
    parser.add_argument("--point", type=int, metavar="K", help="only the point of this number")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="points at a time (default 4)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds per process (default 30)"
    )
    parser.add_argument(
        "--folder", metavar="DIR", help="where databases lie while it runs (default: temporary)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the files of failed points")
    return parser.parse_args()


def _names() -> str:
    return ", ".join(family.name for family in FAMILIES)


def _families(arguments: argparse.Namespace) -> list[Family]:
    if arguments.module:
        return [Family(file.stem, file) for file in arguments.module]
    wanted = arguments.framework or [family.name for family in FAMILIES if family.is_there]
    if unknown := set(wanted) - {family.name for family in FAMILIES}:
        raise SystemExit(f"crashmatrix: no framework named {unknown.pop()}; there are {_names()}")
    return [family for family in FAMILIES if family.name in wanted]


def _share(size: int, parts: int, number: int) -> int:
    return size // parts + (number < size % parts)


def _apart(work: Callable[[], int]) -> int:
    """Run in a process of its own: frameworks do not meet, and this process stays small."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _list(family: Family) -> int:
    family.load()
    for name in REGISTRY.found:
        print(f"{family.name:14} {name}")
    return 0


def _family(family: Family, choice: matrix.Choice, running: Sequence[databases.Database], room: Room) -> int:
    family.load()
    room.folder.mkdir()
    print(f"\n== {family.name}", flush=True)
    where = f"--module {family.file}" if family not in FAMILIES else f"--framework {family.name}"
    summary = matrix.run(choice, running, room, Report(f"python -m crashmatrix {where}"))
    (room.folder / "summary").write_text(json.dumps(asdict(summary)))
    return 1 if summary.failures else 0


def _total(folder: Path, families: Sequence[Family], codes: Sequence[int]) -> int:
    """Print the sum; 0 when there were points and none of them failed."""
    files = [folder / family.name / "summary" for family in families]
    found = [matrix.Summary(**json.loads(file.read_text())) for file in files if file.exists()]
    points, failures = sum(summary.points for summary in found), sum(summary.failures for summary in found)
    broken = [family.name for family, file in zip(families, files, strict=True) if not file.exists()]
    print(
        f"\n{points} kill points in all, {failures} failures"
        + (f"; broke off: {', '.join(broken)}" if broken else "")
    )
    if not points:
        print("nothing was killed, so nothing was shown")
    return max(*codes, 0 if points else 1, 0)


if __name__ == "__main__":
    raise SystemExit(main())
