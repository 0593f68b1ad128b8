"""Jobs of four kinds for `benchmarks.concurrency`; run by a worker of its own."""

from __future__ import annotations

import time

from taskhive import Hive

hive = Hive()


def burn(seconds: float) -> None:
    """Use so much CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@hive.handler
def crunch(seconds: float) -> None:
    burn(seconds)


@hive.handler
def fetch(seconds: float) -> None:
    """Nine tenths of it is waiting."""
    burn(seconds / 10)
    time.sleep(seconds * 0.9)


@hive.handler
def parse(seconds: float) -> None:
    """Half of it is waiting."""
    burn(seconds / 2)
    time.sleep(seconds / 2)


@hive.handler(memory="1GiB", max_timeouts=0)
def grow(mib: int, per_second: float) -> int:
    """Take memory at an even pace, as far as the machine keeps up."""
    kept: list[bytes] = []
    began = time.monotonic()
    while len(kept) < mib:
        kept.append(b"x" * (1 << 20))
        ahead = len(kept) / per_second - (time.monotonic() - began)
        if ahead > 0.002:
            time.sleep(ahead)
    return len(kept)


@hive.handler(max_crashes=0, max_timeouts=0)
def hold(order: tuple[int, float]) -> None:
    """So many MiB, for so many seconds."""
    mib, seconds = order
    kept = [b"x" * (1 << 20) for _ in range(mib)]
    time.sleep(seconds)
    del kept


@hive.handler
def quick(dispatched: float) -> float:
    """How long it waited."""
    waited = time.time() - dispatched
    burn(0.010)
    return waited


@hive.handler(timeout=None)
def slow(seconds: float) -> None:
    burn(seconds)
