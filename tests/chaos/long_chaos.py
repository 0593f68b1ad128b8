"""Chaos at length.

python -m tests.chaos.long_chaos --seconds 1800 [--seed N] [--workers 4]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from taskhive.embedded import binary
from tests.chaos.chaos import FAULTS, Chaos
from tests.chaos.history import History, figures, violations
from tests.servers import running

PER_20_SECONDS = {
    "attempts": 60,
    "attempts cut short": 3,
    "put back": 3,
    "swept": 1,
    "succeeded": 40,
    "failed": 2,
}
"""What must have been met, or the run has proved nothing; faults: each kind once."""


def chaos(folder: Path, seconds: float, seed: int, workers: int = 3) -> tuple[Chaos, History, str]:
    """One run on a server of its own, whose every write is on disk before it is acknowledged."""
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(binary().path, Path(directory), 0, *durable) as server,
    ):
        run = Chaos(server, folder, "chaos", seed, workers)
        try:
            history = run.run(seconds)
        finally:
            run.clean_up()
    return run, history, report(run, history)


def seen(run: Chaos, history: History) -> dict[str, int]:
    return {**figures(history), "swept": run.swept, "stale": run.stale, "merged": run.merged}


def report(run: Chaos, history: History) -> str:
    faults = ", ".join(f"{name} {count}" for name, count in sorted(run.faults.items()))
    effects = ", ".join(f"{name} {count}" for name, count in seen(run, history).items())
    return f"faults: {faults}\neffects: {effects}\nviolations: {len(violations(history))}"


def shortfalls(run: Chaos, history: History, seconds: float) -> list[str]:
    """Every floor that was not met."""
    met = seen(run, history)
    short = [
        f"{name}: {met.get(name, 0)} are under {int(floor * seconds / 20)}"
        for name, floor in PER_20_SECONDS.items()
        if met.get(name, 0) < int(floor * seconds / 20)
    ]
    return short + [f"no {fault}" for fault in dict.fromkeys(FAULTS) if not run.faults[fault]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.long_chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        run, history, told = chaos(Path(folder), asked.seconds, asked.seed, asked.workers)
    print(told)
    broken = violations(history)
    void = shortfalls(run, history, asked.seconds)
    print("\n".join([*broken, *(f"void: {one}" for one in void)]))
    return 1 if broken or void else 0


if __name__ == "__main__":
    sys.exit(main())
