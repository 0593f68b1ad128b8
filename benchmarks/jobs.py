"""The handlers that are measured: `python -m taskhive benchmarks/jobs.py`."""

from __future__ import annotations

import collections
import itertools
import os
import time
from pathlib import Path

from taskhive import Hive

hive = Hive()
# What a worker with a heavy library has in memory before its first fork.
PRELOADED = os.urandom(1 << 20) * int(os.environ.get("BENCH_PRELOAD_MIB", "0"))


@hive.handler(result_ttl=0)
def noop() -> None:
    """Nothing at all."""


@hive.handler(result_ttl=0)
def spin(loops: int) -> int:
    """Pure Python for a few milliseconds."""
    return work(loops)


@hive.handler
def stamp() -> float:
    """When the first line of a handler runs."""
    return time.monotonic()


@hive.handler(isolation="fresh")
def fresh() -> float:
    """The same in a process of its own."""
    return time.monotonic()


@hive.handler(timeout=2, max_timeouts=0)
def c_loop(note: str) -> None:
    """C code that never lets go of the GIL."""
    Path(note).write_text(repr(time.monotonic()))
    collections.deque(itertools.repeat(None), maxlen=0)


def work(loops: int) -> int:
    """Count, in plain Python."""
    total = 0
    for n in range(loops):
        total += n & 7
    return total
