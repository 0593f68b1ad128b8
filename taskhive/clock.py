"""The two clocks of a worker, as a seam: a simulation has its own."""

from __future__ import annotations

import time
from typing import Protocol

from taskhive import linux


class Clock(Protocol):
    """Monotonic for waiting, boottime for leases, wall for what is stored."""

    def monotonic(self) -> float:
        """Seconds that never go back; the event loop's own time."""
        ...

    def boottime(self) -> float:
        """Seconds that go on while the machine sleeps: a lease does not sleep with us."""
        ...

    def wall(self) -> float:
        """POSIX seconds."""
        ...


class SystemClock:
    """The machine's own."""

    def monotonic(self) -> float:
        """As the event loop counts it."""
        return time.monotonic()

    def boottime(self) -> float:
        """As the kernel counts it."""
        return linux.boottime()

    def wall(self) -> float:
        """As everybody counts it."""
        return time.time()
