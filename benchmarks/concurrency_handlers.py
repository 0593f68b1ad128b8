"""Jobs of four kinds for `benchmarks.concurrency`; run by a worker of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from taskhive import Hive

hive = Hive()
LEDGER = os.environ.get("TASKHIVE_BENCHMARK_LEDGER")
"""Where jobs write down when they began and ended, if somebody wants to know."""


@contextlib.contextmanager
def noted(queue: str, seconds: float) -> Iterator[None]:
    """Write a line when a job begins and one when it ends, each as a whole or not at all."""
    began = _note(f"began {queue} {seconds}")
    yield
    _note(f"ended {queue} {seconds} {began}")


def _note(words: str) -> float:
    now = time.monotonic()
    if LEDGER is not None:
        descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{words} {now}\n".encode())
        os.close(descriptor)
    return now


def burn(seconds: float) -> None:
    """Use so much CPU time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@hive.handler
def crunch(seconds: float) -> None:
    with noted("crunch", seconds):
        burn(seconds)


@hive.handler
def fetch(seconds: float) -> None:
    """Nine tenths of it is waiting."""
    with noted("fetch", seconds):
        burn(seconds / 10)
        time.sleep(seconds * 0.9)


@hive.handler
def parse(seconds: float) -> None:
    """Half of it is waiting."""
    with noted("parse", seconds):
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
