"""Processes that lost their parent and fell to us: killed, and waited for."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection

from taskhive import linux


def kill_tree(pid: int) -> None:
    """Kill a process and all below it, also those that left its group.

    Each is stopped before its children are listed: what is stopped makes no more of them. The tree
    is below the child as long as that lives, since it adopts the orphans among its descendants.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGSTOP)
        waiting += [child for child in linux.children_of(one) if child not in found]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for one in reversed(found):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)


def clear(known: Collection[int]) -> int:
    """Kill and reap every child of this process that is not `known`; how many there were."""
    found = [pid for pid in linux.children_of(os.getpid()) if pid not in known]
    for pid in found:
        kill_tree(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return len(found)
