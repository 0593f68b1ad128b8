"""The simulation at length, with the checks of the one in every test run.

python -m tests.worker.long_simulation --seeds 10000 [--seed N]
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.worker.simulation import simulate
from tests.worker.simulation_ledger import Violation
from tests.worker.simulation_report import Report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.worker.long_simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    asked = parser.parse_args(argv)
    report, violations = Report(), 0
    began = shown = time.monotonic()
    for seed in range(asked.seed, asked.seed + asked.seeds):
        try:
            report.add(simulate(seed))
        except Violation as violation:
            violations += 1
            print(f"\n{violation}")
        now = time.monotonic()
        if now - shown > (0.5 if sys.stderr.isatty() else 30):
            shown = now
            done = seed + 1 - asked.seed
            left = (now - began) / done * (asked.seeds - done)
            line = f"{done:,} of {asked.seeds:,} seeds, {violations} violations, {left:,.0f} s left"
            print(line, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    print(f"\n{report}" if not violations else f"\nviolations: {violations}")
    for shortfall in report.shortfalls():
        print(f"too seldom: {shortfall}")
    return 1 if violations or report.shortfalls() else 0


if __name__ == "__main__":
    sys.exit(main())
