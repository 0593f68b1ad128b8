"""What goes on, for a person or a program: workers, queues, what handlers cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from taskhive.costs import HandlerCosts
from taskhive.crew import WorkerInfo
from taskhive.hive import Hive
from taskhive.jobs import QueueStats
from taskhive.logs import clean


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """Everything at about one moment."""

    workers: list[WorkerInfo]
    queues: list[QueueStats]
    handlers: list[HandlerCosts]


def look(hive: Hive) -> Status:
    """Ask the server."""
    queues = [hive.queue(name).stats() for name in hive.queues()]
    return Status(hive.workers(), queues, hive.handlers())


def portable(status: Status) -> dict[str, Any]:
    """As JSON."""
    return dataclasses.asdict(status)


def text(status: Status) -> str:
    """For a person."""
    parts = [_worker(one) for one in status.workers] or ["no worker is there\n"]
    if status.queues:
        rows = [
            [one.queue, *(str(getattr(one, field)) for field in _STATS), "paused" if one.paused else ""]
            for one in status.queues
        ]
        parts.append(_table(["queue", *_STATS, ""], rows))
    if status.handlers:
        parts.append(_table(_COSTS, [_cost(one) for one in status.handlers]))
    # Names of queues, jobs and hosts are other people's words.
    return "".join(f"{clean(line).rstrip()}\n" for line in "\n".join(parts).splitlines())


WIDTH = 80
_STATS = ("ready", "delayed", "blocked", "active", "dead", "succeeded", "failed")
_COSTS = ["handler", "attempts", "wall p50", "p95", "max", "CPU s", "memory p95", "max"]


def _worker(one: WorkerInfo) -> str:
    lines = [
        f"worker {one.name} pid {one.pid}: {one.load:g} of {one.capacity} slots busy, {one.machine}",
        f"  {one.reason}",
    ]
    for slot in one.slots:
        if slot.job is not None:
            behind = f", {slot.waiting} behind it" if slot.waiting else ""
            ran = f"{slot.queue}/{slot.job} for {slot.seconds or 0:.1f} s"
            lines.append(f"  slot {slot.slot} pid {slot.pid}: {ran}{behind}")
    return "\n".join(lines) + "\n"


def _cost(one: HandlerCosts) -> list[str]:
    return [
        one.queue,
        str(one.count),
        _seconds(one.wall_p50),
        _seconds(one.wall_p95),
        _seconds(one.wall_max),
        f"{one.cpu:.1f}",
        _size(one.memory_p95),
        _size(one.memory_max),
    ]


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.001:
        return "<1 ms"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _size(value: int | None) -> str:
    return "-" if value is None else f"{value / (1 << 20):.0f} MiB"


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, *rows]
    rest = [max(len(line[column]) for line in lines) for column in range(1, len(head))]
    room = max(len(head[0]), WIDTH - sum(width + 2 for width in rest))
    first = max(len(line[0]) for line in lines if len(line[0]) <= room)
    shown = []
    for name, *cells in lines:
        if len(name) > first:
            # A name is not cut: somebody may want to type it. It has a line of its own.
            shown.append(name)
            name = ""
        padded = [cell.rjust(width) for cell, width in zip(cells, rest, strict=True)]
        shown.append("  ".join([name.ljust(first), *padded]))
    return "\n".join(shown) + "\n"
