"""The handlers that are measured: `python -m taskhive benchmarks/jobs.py`."""

from __future__ import annotations

import collections
import importlib
import itertools
import os
import time
from pathlib import Path

from taskhive import Hive

hive = Hive()
for heavy in os.environ.get("BENCH_IMPORTS", "").split():
    importlib.import_module(heavy)
# What a worker with a heavy library has in memory before its first fork.
PRELOADED = os.urandom(1 << 20) * int(os.environ.get("BENCH_PRELOAD_MIB", "0"))


@hive.handler(result_ttl=0)
def noop() -> None:
    """Nothing at all."""


@hive.handler(result_ttl=0)
def spin(seconds: float) -> int:
    """Pure Python for a few milliseconds."""
    return work(seconds)


@hive.handler
def stamp() -> float:
    """When the first line of a handler runs."""
    return time.monotonic()


@hive.handler(isolation="fresh")
def fresh() -> float:
    """The same in a process of its own."""
    return time.monotonic()


# One at a time: a successor in a free slot, or in the one for quick jobs, would wait for no kill.
@hive.handler(timeout=2, max_timeouts=0, max_concurrency=1)
def c_loop(note: str, victim: int = 0) -> tuple[float, bool]:
    """C code that never lets go of the GIL; or its successor: when it began, with the victim reaped."""
    if victim:
        return time.monotonic(), not Path(f"/proc/{victim}").exists()
    Path(f"{note}.new").write_text(f"{time.monotonic()!r} {os.getpid()}")
    Path(f"{note}.new").rename(note)
    collections.deque(itertools.repeat(None), maxlen=0)
    raise AssertionError("it has no end")


def work(seconds: float) -> int:
    """Count, in plain Python, for so many seconds of CPU time.

    Not so often: the same loop takes up to 15 % longer in one process than in the next, by where its
    memory happens to lie, and the difference would be taken for that of the queue.
    """
    total = 0
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for n in range(200):
            total += n & 7
    return total
