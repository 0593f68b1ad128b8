"""The few calls of the operating system that Python has no name for."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import setproctitle

LINUX = sys.platform.startswith("linux")
MAXRSS_UNIT = 1024 if LINUX else 1
# Real-time signals where there are any: the others are the user's.
STACK_SIGNAL = int(signal.SIGRTMIN + 3 if LINUX else signal.SIGUSR1)
SOFT_SIGNAL = int(signal.SIGRTMIN + 4 if LINUX else signal.SIGUSR2)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent thread ends, whatever ends it."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if LINUX and os.getppid() != parent:  # it had ended before we asked
        os._exit(1)


def become_subreaper(on: bool = True) -> None:
    """Adopt the orphans among our descendants, so that none escapes by a double fork."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def no_new_privileges() -> None:
    """From here on nothing this process executes has more rights than it has."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def raise_oom_score(by: int) -> None:
    """Offer this process to the kernel before its parent when memory runs out."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(by))
    except OSError:
        pass  # not Linux, or not allowed: then the kernel chooses as it likes


def set_title(title: str) -> None:
    """Show what this process is doing, in the listings of ps and top."""
    setproctitle.setproctitle(title)


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:
        if not LINUX or not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            return _children_by_table(pid)  # this kernel does not say
        # Otherwise it is gone, and so are they, or they are somebody else's by now.
    return found


def _children_by_table(pid: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def boottime() -> float:
    """Seconds that go on while the machine sleeps."""
    import time

    return time.clock_gettime(time.CLOCK_BOOTTIME) if LINUX else time.monotonic()


def cores() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
