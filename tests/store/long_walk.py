"""A walk at length, with the checks of the one in every test run.

python -m tests.store.long_walk --steps 1000000 [--seed N] [--server valkey|redis]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers import programs, running
from tests.store.walk_report import Report
from tests.store.walker import Walker
from tests.store.walker_compare import Violation
from tests.store.walker_crew import Crew
from tests.store.walker_wire import Scripts, Wire

SHORT, LONG = 100, 1500


def walk(wire: Wire, texts: Scripts, prefix: str, seed: int, report: Report) -> None:
    """One walk from an empty queue to an empty queue; its length follows from its seed too.

    Most are short, since a fresh queue has more ways to go; a few are long, since some things
    take their time: a cap on attempts, a memory that has turned all the way round.
    """
    rng = random.Random(seed)
    length = LONG if rng.randrange(50) == 0 else SHORT
    walker = Walker(wire, texts, prefix)
    crew = Crew(walker, rng)
    try:
        while walker.figures["steps"] < length:
            crew.step()
        crew.drain()
    except AssertionError as error:
        raise Violation(f"the walk of seed {seed}, {error}") from error
    finally:
        walker.clean_up()
    report.add(walker, drained=True)


def long_walk(
    wire: Wire, steps: int, seed: int, say: Callable[[Report], None] = lambda _: None
) -> Report:
    """As many walks as it takes; each has the seed after that of the last one."""
    report, texts = Report(), Scripts()
    while report.steps < steps:
        walk(wire, texts, f"w{seed}", seed, report)
        seed += 1
        say(report)
    return report


def _show(steps: int) -> Callable[[Report], None]:
    began = time.monotonic()
    shown = began

    def show(report: Report) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < (0.5 if sys.stderr.isatty() else 30):
            return
        shown = now
        speed = report.steps / (now - began)
        line = (
            f"{report.steps:,} of {steps:,} steps, {report.walks} walks, {speed:,.0f} steps/s, "
            f"{max(steps - report.steps, 0) / speed:,.0f} s left"
        )
        print(line, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)

    return show


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.store.long_walk", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first walk")
    parser.add_argument("--server", choices=sorted(programs()), default="valkey")
    asked = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(programs()[asked.server], Path(directory)) as server,
        Wire(server.socket) as wire,
    ):
        try:
            report = long_walk(wire, asked.steps, asked.seed, _show(asked.steps))
        except Violation as violation:
            print(f"\n{violation}\nviolations: 1")
            return 1
    print(f"\n{report}")
    for shortfall in report.shortfalls():
        print(f"too seldom: {shortfall}")
    return 1 if report.shortfalls() else 0


if __name__ == "__main__":
    sys.exit(main())
