"""The machine as the container grants it: cores, memory, and how hard both are pressed.

What counts is not what is built in but what may be used: the tightest quota and memory limit of the
control groups this process is in, at any level, version 1 or 2, and the cores it is allowed to run
on. Every file may be missing or unreadable; then the next best source is asked, psutil last. The
root is a parameter, so that tests can show it machines that are not there.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_NO_LIMIT = 1 << 60
"""Version 1 writes "no limit" as a number a little below 2**63."""
_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
# The columns of /proc/stat in which a core was not idle. Steal counts: somebody else had it.
_BUSY = (1, 2, 3, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class Grant:
    """How much there is for us and everybody beside us in the same container."""

    cores: float
    memory: int
    built_in: int
    """Cores of the whole machine."""
    quota: float | None = None
    """Cores by the control group's quota, where there is one."""
    allowed: int = 1
    """Cores we may be put on, quota or not."""

    def words(self) -> str:
        """For a log line: "2 of 64 cores (quota)"."""
        if self.quota is not None and self.quota <= self.cores:
            return f"{self.cores:g} of {self.built_in} cores (quota)"
        if self.cores < self.built_in:
            return f"{self.cores:g} of {self.built_in} cores (affinity)"
        return f"{self.cores:g} cores"


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment; two of them tell what happened between."""

    at: float
    busy: float
    """CPU seconds that the cores we may run on were not idle, since boot."""
    inside: float | None
    """CPU seconds of everything under our quota; None without one."""
    available: int
    """Bytes that can be had before something is killed."""
    memory_stalled: float = 0.0
    """Seconds in which something waited for memory."""
    cpu_stalled: float = 0.0
    periods: int = 0
    throttled: int = 0
    """Of the quota's periods, those in which it was used up."""
    oom_kills: int = 0
    runnable: int | None = None
    """Threads that have a core or wait for one, on the whole machine."""


class Machine:
    """Reads what is granted, and what is going on."""

    def __init__(self, root: str | Path = "/", cpus: frozenset[int] | None = None) -> None:
        self._root = str(root)
        self._cpus = cpus if cpus is not None else _affinity()
        groups = _memberships(self._text("proc/self/cgroup") or "")
        mounts = list(_mounts(self._text("proc/self/mountinfo") or ""))
        self._cpu = self._levels(groups, mounts, "cpu")
        self._usage = self._levels(groups, mounts, "cpuacct") or self._cpu
        self._memory = self._levels(groups, mounts, "memory")

    # What is granted

    def grant(self) -> Grant:
        """The tightest of everything that says how much may be used."""
        quota, _ = self._quota()
        cores = float(len(self._cpus))
        if quota is not None:
            cores = min(cores, quota)
        limits = [limit for limit, _, _ in self._memory_levels()]
        return Grant(
            cores=max(cores, 0.01),
            memory=min([self._built_in_memory(), *limits]),
            built_in=self._built_in(),
            quota=quota,
            allowed=len(self._cpus),
        )

    def _built_in(self) -> int:
        lines = (self._text("proc/stat") or "").splitlines()
        return sum(line[:3] == "cpu" and line[3:4].isdigit() for line in lines) or len(self._cpus)

    def _built_in_memory(self) -> int:
        return _meminfo(self._text("proc/meminfo"), "MemTotal") or psutil.virtual_memory().total

    def _quota(self) -> tuple[float | None, str | None]:
        """The tightest quota in cores, and the level that has it."""
        best: float | None = None
        where = None
        for level in self._cpu:
            words = (self._text(f"{level}/cpu.max") or "").split()
            if not words:
                words = [
                    self._text(f"{level}/cpu.cfs_quota_us") or "",
                    self._text(f"{level}/cpu.cfs_period_us") or "",
                ]
            quota, period = (_number(word) for word in [*words, "", ""][:2])
            if quota and period and quota > 0 and (best is None or quota / period < best):
                best, where = quota / period, level
        return best, where

    def _memory_levels(self) -> Iterator[tuple[int, int, int]]:
        """Limit, use, and what of the use is only cache, of each level that has a limit."""
        for level in self._memory:
            limit = _number(self._text(f"{level}/memory.max"))
            used, cache = "memory.current", "inactive_file"
            if limit is None:
                limit = _number(self._text(f"{level}/memory.limit_in_bytes"))
                used, cache = "memory.usage_in_bytes", "total_inactive_file"
            if limit is not None and 0 < limit < _NO_LIMIT:
                usage = _number(self._text(f"{level}/{used}")) or 0
                stat = _table(self._text(f"{level}/memory.stat"))
                yield limit, usage, stat.get(cache, 0)

    # What is going on

    def read(self) -> Reading:
        """The counters as they stand now."""
        _, level = self._quota()
        stat = self._text("proc/stat") or ""
        cpu_stat = _table(self._text(f"{level}/cpu.stat")) if level is not None else {}
        return Reading(
            at=time.monotonic(),
            busy=self._busy(stat),
            inside=self._inside(level, cpu_stat),
            available=self._available(),
            memory_stalled=self._stalled("memory", self._memory),
            cpu_stalled=self._stalled("cpu", self._cpu),
            periods=cpu_stat.get("nr_periods", 0),
            throttled=cpu_stat.get("nr_throttled", 0),
            oom_kills=self.oom_kills(),
            runnable=_table(stat).get("procs_running"),
        )

    def _busy(self, stat: str) -> float:
        total = 0.0
        for line in stat.splitlines():
            words = line.split()
            if words and words[0][:3] == "cpu" and words[0][3:].isdigit():
                if int(words[0][3:]) in self._cpus:
                    total += sum(int(words[i]) for i in _BUSY if i < len(words)) / _TICK
            elif total:
                break
        if total:
            return total
        times = psutil.cpu_times()
        return float(times.user + times.system)

    def _inside(self, level: str | None, cpu_stat: dict[str, int]) -> float | None:
        if level is None:
            return None
        if "usage_usec" in cpu_stat:
            return cpu_stat["usage_usec"] / 1e6
        # Version 1 may have mounted the accounting elsewhere, with the same levels below it.
        for accounting in self._usage:
            if os.path.basename(accounting) == os.path.basename(level):
                used = _number(self._text(f"{accounting}/cpuacct.usage"))
                return None if used is None else used / 1e9
        return None

    def _available(self) -> int:
        here = _meminfo(self._text("proc/meminfo"), "MemAvailable")
        if not here:
            here = psutil.virtual_memory().available
        return max(
            0, min([here, *(limit - used + cache for limit, used, cache in self._memory_levels())])
        )

    def _stalled(self, what: str, levels: list[str]) -> float:
        """Seconds in which at least one process waited: our group's own, else the machine's."""
        own = self._text(f"{levels[0]}/{what}.pressure") if levels else None
        for line in (own or self._text(f"proc/pressure/{what}") or "").splitlines():
            if line.startswith("some "):
                total = _number(line.rpartition("total=")[2])
                return (total or 0) / 1e6
        return 0.0

    def oom_kills(self) -> int:
        """How often the kernel killed one of our group for want of memory."""
        if self._memory:
            for name in ("memory.events", "memory.oom_control"):
                counted = _table(self._text(f"{self._memory[0]}/{name}")).get("oom_kill")
                if counted is not None:
                    return counted
        # The root group of version 2 has no such file; this one counts the whole machine.
        return _table(self._text("proc/vmstat")).get("oom_kill", 0)

    # Files

    def _levels(
        self, groups: dict[str, str], mounts: list[tuple[str, str, frozenset[str]]], controller: str
    ) -> list[str]:
        """The directories of our group and of all above it, as far up as we can see."""
        for key in (controller, ""):
            if key not in groups:
                continue
            for top, point, serves in mounts:
                if key not in serves:
                    continue
                # Without a namespace of its own a container sees its group under the host's path,
                # and mounted at the top is the very directory that this path names.
                inside = groups[key]
                if top != "/" and (inside == top or inside.startswith(top + "/")):
                    inside = inside[len(top) :]
                parts = [part for part in inside.split("/") if part not in ("", "..")]
                point = point.strip("/")
                found = ["/".join([point, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
                found = [level for level in found if os.path.isdir(os.path.join(self._root, level))]
                if found and any(self._serves(level, controller) for level in found):
                    return found
        return []

    def _serves(self, level: str, controller: str) -> bool:
        """Version 2 is mounted beside version 1 on some machines, with no controller in it."""
        try:
            return any(
                name.startswith(f"{controller}.") for name in os.listdir(os.path.join(self._root, level))
            )
        except OSError:
            return False

    def _text(self, path: str) -> str | None:
        try:
            with open(os.path.join(self._root, path), "rb", buffering=0) as file:
                return file.read().decode(errors="replace").strip()
        except OSError:
            return None  # not this kernel, not this version, not for us: the next source is asked


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(psutil.cpu_count() or 1))


def _memberships(text: str) -> dict[str, str]:
    """Our group by controller; that of version 2 under the empty name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _mounts(text: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """What is mounted of which hierarchy, where, and whom it serves."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            yield fields[3], fields[4], frozenset([""])
        elif kind[0] == "cgroup":
            yield fields[3], fields[4], frozenset(kind[-1].split(","))


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _table(text: str | None) -> dict[str, int]:
    """Lines of a name and a number."""
    rows = (line.split() for line in (text or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _meminfo(text: str | None, name: str) -> int:
    for line in (text or "").splitlines():
        if line.startswith(f"{name}:"):
            return (_number(line.split()[1]) or 0) * 1024
    return 0


def whole(cores: float) -> int:
    """As many children as are worth starting before anything was measured."""
    return max(1, math.ceil(cores - 0.05))
