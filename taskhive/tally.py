"""What the attempts of one handler took lately in this worker: the figures that decisions need.

The last hundred or so, so that a handler that changed its ways is soon known anew; adding one costs
nothing to speak of, and the sorting waits until somebody asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

KEPT = 128
STALE = 16
"""Attempts that may pass before the figures are made anew."""


@dataclass(slots=True)
class Tally:
    """Times and sizes of recent attempts."""

    mean: float | None = None
    worst: float = 0.0
    """The longest one, less the longer it is ago."""
    _walls: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _peaks: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    _new: int = STALE
    _p95: float | None = None
    _peak: int = 0

    def add(self, wall: float, peak: int) -> None:
        """One attempt took so long and so much."""
        self.mean = wall if self.mean is None else 0.9 * self.mean + 0.1 * wall
        self.worst = max(wall, 0.98 * self.worst)
        self._walls.append(wall)
        self._peaks.append(peak)
        self._new += 1

    @property
    def count(self) -> int:
        """Attempts from which the rest is known."""
        return len(self._walls)

    @property
    def p95(self) -> float | None:
        """Seconds within which 95 of 100 end; None while none is known."""
        self._refresh()
        return self._p95

    @property
    def peak(self) -> int:
        """Bytes that 95 of 100 stay below; 0 while none is known."""
        self._refresh()
        return self._peak

    def _refresh(self) -> None:
        if not self._walls or (self._new < STALE and len(self._walls) > STALE):
            return
        self._new = 0
        # Of a few the slowest is left out: the first one in a child has still to warm up.
        walls, peaks = sorted(self._walls), sorted(self._peaks)
        self._p95 = walls[int(0.95 * (len(walls) - 1))]
        self._peak = peaks[-1] if len(peaks) < 20 else peaks[int(0.95 * len(peaks))]
