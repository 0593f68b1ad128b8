"""What a walk did and what it met, in figures, and whether that was enough to prove anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.store.walker import Walker

OPERATIONS = (
    "dispatch",
    "exchange",
    "sweep",
    "cancel",
    "remove",
    "revive",
    "purge",
    "configure",
    "stats",
)
FAULTS = ("lost replies", "resent", "flushes", "reloaded", "jumps")
ANSWERS = ("settles offered", "OK", "DUP", "STALE")

SHARES = {
    "STALE": ("settles offered", 10),
    "lost replies": ("requests", 5),
    "jumps": ("steps", 1),
}
"""What must make up at least so many percent of what."""

PER_10_000: dict[str, float] = {
    "DUP": 200,
    "OK": 500,
    "reloaded": 100,
    "flushes": 20,
    "resent": 300,
    "answer B": 40,
    "answer D": 100,
    "answer J": 40,
    "answer M": 15,
    "answer N": 400,
    "answer U": 200,
    "answered as before": 5,
    "cancelled by mark": 2,
    "cancelled while blocked": 0.5,
    "cancelled while waiting": 15,
    "expired while blocked": 3,
    "expired while waiting": 50,
    "extended after a gap": 80,
    "failure job": 12,
    "failure job lapsed": 0.5,
    "failure job withdrawn": 0.5,
    "late by hand": 8,
    "lost delivery": 80,
    "merged": 25,
    "promoted": 100,
    "purged": 3,
    "queue full": 0.5,
    "removed while waiting": 3,
    "replayed": 15,
    "revived": 0.5,
    "stale renewal": 100,
    "stalled": 30,
    "stalled too often": 0.5,
    "swept": 100,
    "swept cancelled": 1,
    "trimmed": 10,
    "unblocked": 10,
}
"""What must have been met at least so often in 10,000 steps, or the walk has proved nothing about it.

Half an occurrence is one that only a longer walk can be held to."""


class Report:
    """The figures of many walks together."""

    def __init__(self) -> None:
        self.figures: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.walks = 0
        self.drained = 0
        self.violations = 0

    @property
    def steps(self) -> int:
        return self.figures["steps"]

    def add(self, walker: Walker, *, drained: bool) -> None:
        """Take one walk down; one that was not drained to empty is a violation."""
        self.figures += walker.figures
        self.effects += walker.effects
        self.walks += 1
        self.drained += drained
        self.violations += not drained

    def shortfalls(self) -> list[str]:
        """Every floor that was not met."""
        seen = self.figures + self.effects
        short = [
            f"{seen[name]} {name} are under {percent} % of {seen[whole]} {whole}"
            for name, (whole, percent) in SHARES.items()
            if seen[name] * 100 < seen[whole] * percent
        ]
        for name, floor in PER_10_000.items():
            if seen[name] < (wanted := int(floor * self.steps / 10_000)):
                short.append(f"{name}: {seen[name]}, which is under {wanted}")
        return short

    def __str__(self) -> str:
        def line(title: str, counts: Mapping[str, int], names: tuple[str, ...]) -> str:
            return f"{title}: " + ", ".join(f"{name} {counts[name]:,}" for name in names)

        shares = ", ".join(
            f"{name} {100 * self.figures[name] / max(self.figures[whole], 1):.1f} % of {whole}"
            for name, (whole, _) in SHARES.items()
        )
        return "\n".join(
            [
                f"{self.steps:,} steps in {self.walks} walks, {self.drained} drained to empty",
                line("operations", self.figures, OPERATIONS),
                line("faults", self.figures, FAULTS),
                line("settles", self.figures, ANSWERS),
                f"shares: {shares}",
                line("effects", self.effects, tuple(sorted(self.effects))),
                f"violations: {self.violations}",
            ]
        )
