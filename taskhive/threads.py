"""How many threads the numeric libraries of a child may use: as many as its attempt has cores.

While the zygote imports they have one, since no fork survives a pool of them; and N children with N
threads each would only stand in each other's way. An attempt of weight 4 has four cores, so it gets
four threads. Needs `threadpoolctl`; without it every attempt keeps the one it has.
"""

from __future__ import annotations

import os
from typing import Any


class Threads:
    """Sets the number when it changes; nothing is done for handlers of one core."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most if most is not None else _cores()
        self._now = 1
        self._is_there = True

    def grant(self, weight: float) -> int:
        """Give the next attempt its share; how many threads that is."""
        wanted = max(1, min(self._most, int(weight)))
        if wanted != self._now and self._is_there:
            self._set(wanted)
        return self._now

    def _set(self, wanted: int) -> None:
        try:
            import threadpoolctl
        except ImportError:
            self._is_there = False
            return
        # Found anew each time: a handler may import numpy inside. It costs a few milliseconds, and
        # only where attempts of different weights take turns in one child.
        controller: Any = threadpoolctl.ThreadpoolController()
        controller.limit(limits=wanted)
        self._now = wanted


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
