"""What one child and everything below it takes: CPU, waiting for a core, resident memory.

Cheap enough to be asked many times a second, and total: any process may end between two of the
files that are read of it, and then it counts for nothing. A child adopts the orphans among its
descendants, so walking down from it misses nobody.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import psutil

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_PROC = sys.platform.startswith("linux")


@dataclass(frozen=True, slots=True)
class Tree:
    """A process and its living descendants, at one moment."""

    processes: int
    cpu: float
    """Seconds, of the living and of those they have reaped."""
    wait: float
    """Seconds in which a living thread could have run and had no core."""
    resident: int
    anonymous: int
    """Of the resident bytes, those that no file stands behind."""
    largest: int = 0
    """The anonymous bytes of the largest process: no page is in them twice."""
    runnable: int = 0
    """Threads that had a core at that moment, or waited for one."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The same tree's memory without counting a page twice; slow to get."""

    processes: int
    proportional: int
    """Each page divided by those who have it."""
    private: int


NOTHING = Tree(0, 0.0, 0.0, 0, 0)


def measure(pid: int) -> Tree:
    """The whole tree; NOTHING if its root is gone."""
    if not _PROC:
        return _measure_elsewhere(pid)
    processes, cpu, wait, resident, anonymous, largest, runnable = 0, 0.0, 0.0, 0, 0, 0, 0
    waiting, seen = [pid], {pid}
    while waiting:
        one = waiting.pop()
        waited, active, below = _threads(one)
        used = _cpu(one)
        if used is None:
            continue
        pages, backed = _statm(one)
        processes += 1
        cpu += used
        wait += waited
        runnable += active
        resident += pages
        anonymous += pages - backed
        largest = max(largest, pages - backed)
        # A number may be used again while we walk; nobody is visited twice.
        waiting += [child for child in below if child not in seen]
        seen.update(below)
    return Tree(processes, cpu, wait, resident * _PAGE, anonymous * _PAGE, largest * _PAGE, runnable)


def shares(pid: int) -> Shares:
    """What the tree has of its own, and its part of what it shares with others."""
    if not _PROC:
        tree = _measure_elsewhere(pid)
        return Shares(tree.processes, tree.resident, tree.resident)
    processes = proportional = private = 0
    for one in _walk(pid):
        text = _read(f"/proc/{one}/smaps_rollup")
        if text is None:
            continue
        processes += 1
        for line in text.splitlines():
            name, _, rest = line.partition(b":")
            if name == b"Pss":
                proportional += int(rest.split()[0]) * 1024
            elif name in (b"Private_Clean", b"Private_Dirty"):
                private += int(rest.split()[0]) * 1024
    return Shares(processes, proportional, private)


def _walk(pid: int) -> list[int]:
    found, seen = [pid], {pid}
    for one in found:
        below = [child for child in _threads(one)[2] if child not in seen]
        seen.update(below)
        found += below
    return found


def _threads(pid: int) -> tuple[float, int, list[int]]:
    """How long the threads of a process waited for a core, how many want one now, and its children."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0, 0, []
    wait, runnable, children = 0, 0, []
    for thread in threads:
        # Of each thread: the files one level up speak of the first one alone.
        schedule = _read(f"/proc/{pid}/task/{thread}/schedstat")
        if schedule:
            wait += int(schedule.split()[1])
        fields = _stat(f"/proc/{pid}/task/{thread}/stat")
        runnable += bool(fields) and fields[0] == b"R"
        children += [int(word) for word in (_read(f"/proc/{pid}/task/{thread}/children") or b"").split()]
    return wait / 1e9, runnable, children


def _cpu(pid: int) -> float | None:
    fields = _stat(f"/proc/{pid}/stat")
    return sum(int(field) for field in fields[11:15]) / _TICK if fields else None


def _stat(path: str) -> list[bytes]:
    """The fields behind the name, which stands in parentheses and may hold anything, spaces too."""
    text = _read(path) or b")"
    return text[text.rindex(b")") + 2 :].split()


def _statm(pid: int) -> tuple[int, int]:
    """Resident pages, and those of them with a file behind."""
    words = (_read(f"/proc/{pid}/statm") or b"0 0 0").split()
    return int(words[1]), int(words[2])


def _read(path: str) -> bytes | None:
    # Plain calls: a file object costs more than reading these.
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(descriptor, 1 << 14)
    except OSError:
        return None  # it ended between the two calls
    finally:
        os.close(descriptor)


def _measure_elsewhere(pid: int) -> Tree:
    processes, cpu, resident, largest = 0, 0.0, 0, 0
    try:
        root = psutil.Process(pid)
        everybody = [root, *root.children(recursive=True)]
    except psutil.Error:
        return NOTHING
    for process in everybody:
        try:
            with process.oneshot():
                times = process.cpu_times()
                one = process.memory_info().rss
            resident += one
            largest = max(largest, one)
            cpu += times.user + times.system
            processes += 1
        except psutil.Error:
            continue  # ended meanwhile
    return Tree(processes, cpu, 0.0, resident, resident, largest)
