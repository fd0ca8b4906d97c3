"""What a durable step and a durable superstep cost, beside the floor, a plain DBOS step and the native savers.

    python benchmarks/step_cost.py             everything, on SQLite and PostgreSQL; a few minutes
    python benchmarks/step_cost.py --quick     fewer rounds

All variants run in one process, interleaved round by round, since a shared machine is never quiet; the best round
counts. Wall and CPU are per step, CPU of the calling thread. Bytes are growth of the tables (SQLite: pages of the file;
PostgreSQL: tables with their indexes) and of the write-ahead log, per superstep after the first.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import steps
import supersteps
from fresh import databases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=["steps", "supersteps"])
    chosen = parser.parse_args()
    rounds = 3 if chosen.quick else 9
    with databases() as urls:
        for name, url in urls.items():
            if chosen.only != "supersteps":
                steps.report(name, url, rounds)
            if chosen.only != "steps":
                supersteps.report(name, url, rounds)


if __name__ == "__main__":
    main()
