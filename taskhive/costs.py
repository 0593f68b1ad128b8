"""What the attempts of a handler cost: sums, maxima and histograms, gathered and read.

A histogram's buckets grow by a factor of 1.21, so that the middle of a bucket is within 10 % of
whatever fell into it. They are counted in the server by name, and every worker adds to the same ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskhive import records

GROWTH = 1.21
WALL_BUCKETS, MEMORY_BUCKETS = 80, 41
"""From 1 ms to about an hour, and from 16 MiB to about 32 GiB; what is beyond counts as at the edge."""
LEAST_WALL, LEAST_MEMORY = 0.001, 16 * 1024 * 1024
_MAXIMA = ("wall_max", "cpu_max", "memory_max")


def _bucket(value: float, least: float, buckets: int) -> int:
    if value <= least:
        return 0
    return min(buckets - 1, 1 + int(math.log(value / least) / math.log(GROWTH)))


def _micros(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000))


class Spent:
    """The costs of some attempts, gathered until they are told to the server."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._maxima: dict[str, int] = {}
        self._short = 0
        self._short_wall = self._short_cpu = self._longest = self._dearest = 0.0
        self._largest = 0

    def add(self, kind: str, wall: float, cpu: float, memory: int) -> None:
        """One attempt more: `done`, `cancelled` or the kind of its failure; seconds and bytes."""
        if kind == "done" and wall <= LEAST_WALL and memory <= LEAST_MEMORY:
            # Tens of thousands a second: no logarithm, no names.
            self._short += 1
            self._short_wall += wall
            self._short_cpu += cpu
            self._longest = max(self._longest, wall)
            self._dearest = max(self._dearest, cpu)
            self._largest = max(self._largest, memory)
            return
        self._sums["n"] += 1
        self._sums[f"k_{kind}"] += 1
        self._sums["wall"] += _micros(wall)
        self._sums["cpu"] += _micros(cpu)
        self._sums[f"w{_bucket(wall, LEAST_WALL, WALL_BUCKETS)}"] += 1
        self._sums[f"m{_bucket(memory, LEAST_MEMORY, MEMORY_BUCKETS)}"] += 1
        for name, value in zip(_MAXIMA, (_micros(wall), _micros(cpu), max(0, memory)), strict=True):
            self._maxima[name] = max(self._maxima.get(name, 0), value)

    def take(self) -> dict[str, int]:
        """What was gathered, by the names it has in the server; it begins anew."""
        if self._short:
            for name in ("n", "k_done", "w0", "m0"):
                self._sums[name] += self._short
            self._sums["wall"] += _micros(self._short_wall)
            self._sums["cpu"] += _micros(self._short_cpu)
            most = (_micros(self._longest), _micros(self._dearest), max(0, self._largest))
            for name, value in zip(_MAXIMA, most, strict=True):
                self._maxima[name] = max(self._maxima.get(name, 0), value)
            self._short = 0
            self._short_wall = self._short_cpu = self._longest = self._dearest = 0.0
            self._largest = 0
        taken = {**self._sums, **self._maxima}
        self._sums, self._maxima = Counter(), {}
        return taken

    def __bool__(self) -> bool:
        return bool(self._sums) or self._short > 0


@dataclass(frozen=True, slots=True)
class HandlerCosts:
    """What the attempts of a queue's handler have cost so far; seconds and bytes."""

    queue: str
    count: int = 0
    ended: Mapping[str, int] = field(default_factory=dict)
    """How many attempts ended how: `done`, `cancelled`, or the kind of their failure."""
    wall: float = 0.0
    cpu: float = 0.0
    wall_p50: float | None = None
    wall_p95: float | None = None
    wall_max: float = 0.0
    cpu_max: float = 0.0
    memory_p50: int | None = None
    memory_p95: int | None = None
    memory_max: int = 0


def read_costs(queue: str, flat: Any) -> HandlerCosts:
    """From the hash of a queue's costs, whoever wrote it."""
    found = {
        records.text(name): int(value)
        for name, value in records.table(flat).items()
        if isinstance(value, bytes) and value.isdigit() and len(value) < 20
    }
    wall_max = found["wall_max"] / 1e6 if "wall_max" in found else None
    memory_max = found.get("memory_max")
    walls = [found.get(f"w{n}", 0) for n in range(WALL_BUCKETS)]
    memories = [found.get(f"m{n}", 0) for n in range(MEMORY_BUCKETS)]
    wall_p50, wall_p95 = (_at(walls, share, LEAST_WALL, wall_max) for share in (0.5, 0.95))
    memory_p50, memory_p95 = (_at(memories, s, LEAST_MEMORY, memory_max) for s in (0.5, 0.95))
    return HandlerCosts(
        queue,
        found.get("n", 0),
        {name[2:]: value for name, value in sorted(found.items()) if name.startswith("k_")},
        found.get("wall", 0) / 1e6,
        found.get("cpu", 0) / 1e6,
        wall_p50,
        wall_p95,
        wall_max or 0.0,
        found.get("cpu_max", 0) / 1e6,
        None if memory_p50 is None else round(memory_p50),
        None if memory_p95 is None else round(memory_p95),
        memory_max or 0,
    )


def _at(buckets: list[int], share: float, least: float, most: float | None) -> float | None:
    """The value below which that share of all lies, in the middle of its bucket."""
    total = sum(buckets)
    if not total:
        return None
    seen, last = 0, 0
    for n, count in enumerate(buckets):
        seen += count
        last = n
        if seen >= share * total:
            break
    middle: float = least * GROWTH ** (last - 0.5) if last else least
    if most is None:
        return middle
    return most if last == len(buckets) - 1 else min(middle, most)
