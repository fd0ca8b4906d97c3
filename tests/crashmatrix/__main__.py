"""The command: `python -m crashmatrix`."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from . import databases, matrix
from .api import REGISTRY
from .attempts import Room
from .families import FAMILIES, Family
from .report import Report


def main() -> int:
    """Run what the arguments say; 0 when everything held."""
    arguments = _arguments()
    families = _families(arguments)
    if arguments.list:
        return max(_apart(lambda family=family: _list(family)) for family in families)
    command = " ".join([Path(sys.executable).name, "-m", "crashmatrix", *_same_modules(arguments)])
    with tempfile.TemporaryDirectory(prefix="crashmatrix-", dir=arguments.folder, delete=not arguments.keep) as name:
        folder = Path(name)
        with databases.running(arguments.db or databases.NAMES, folder, arguments.jobs) as running:
            codes = []
            for share, family in zip(_shares(arguments.fixed, len(families)), families, strict=True):
                choice = matrix.Choice(
                    scenarios=arguments.scenario,
                    modes=arguments.mode or matrix.MODES,
                    point=arguments.point,
                    fixed=share,
                    jobs=arguments.jobs,
                )
                room = Room(folder / family.name, arguments.timeout, arguments.keep)
                codes.append(_apart(lambda f=family, c=choice, r=room: _family(f, c, running, r, command)))
        return _total(folder, families, codes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="crashmatrix", description="Kill agents at every boundary of their runs.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--all", action="store_true", help="every point of every scenario")
    what.add_argument("--fixed", type=int, metavar="N", help="a fixed sample of N points, spread over everything")
    what.add_argument("--scenario", action="append", default=[], metavar="NAME", help="only this one; a pattern like 'async_*'")
    what.add_argument("--list", action="store_true", help="print the scenarios")
    parser.add_argument("--framework", action="append", metavar="NAME", help="only its scenarios: " + _names())
    parser.add_argument("--module", action="append", type=Path, metavar="FILE", help="scenarios of this file instead")
    parser.add_argument("--db", action="append", choices=databases.NAMES, help="default: both")
    parser.add_argument("--mode", action="append", choices=matrix.MODES, help="default: both")
    parser.add_argument("--point", type=int, metavar="K", help="only the point of this number")
    parser.add_argument("--jobs", type=int, default=4, metavar="N", help="points at a time (default 4)")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="seconds per process (default 30)")
    parser.add_argument("--folder", metavar="DIR", help="where databases lie while it runs (default: temporary)")
    parser.add_argument("--keep", action="store_true", help="keep the files of failed points")
    return parser.parse_args()


def _names() -> str:
    return ", ".join(family.name for family in FAMILIES)
