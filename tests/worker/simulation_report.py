"""What many simulated seeds did and met, in figures, and whether that was enough to prove anything."""

from __future__ import annotations

from collections import Counter

from tests.worker.simulation import Simulation

FAULTS: dict[str, float] = {
    "freeze": 60,
    "block": 30,
    "kill": 30,
    "stop": 30,
    "zygote": 30,
    "child": 60,
    "away": 30,
    "cancel": 30,
    "lost requests": 250,
    "lost replies": 300,
    "late requests": 150,
    "repeated requests": 150,
    "slow requests": 250,
    "lost bells": 600,
}
EFFECTS: dict[str, float] = {
    "attempts": 1000,
    "attempts finished": 800,
    "attempts raised": 90,
    "attempts crashed": 60,
    "attempts garbage": 25,
    "attempts closed": 12,
    "attempts killed": 2,
    "attempts ordered": 30,
    "attempts supervisor lost": 2,
    "attempts switch": 0.5,
    "attempts zygote lost": 2,
    "attempts together": 35,
    "attempts beside crashed": 2,
    "attempts held": 1,
    "dead man's switches": 25,
    "answers DUP": 70,
    "answers STALE": 4,
    "replayed": 60,
    "settled done": 800,
    "settled again error": 90,
    "settled again crash": 90,
    "settled again timeout": 10,
    "settled fail permanent": 20,
    "settled cancelled": 1,
    "settled release": 4,
    "swept": 80,
    "stalls": 14,
    "lost delivery": 30,
    "extended after a gap": 5,
    "merged": 15,
    "unblocked": 12,
    "stale renewal": 4,
}
"""What must have been met at least so often in 100 seeds, or they have proved nothing about it."""


class Report:
    """The figures of many seeds together."""

    def __init__(self) -> None:
        self.seeds = 0
        self.seconds = 0.0
        self.events = 0
        self.figures: Counter[str] = Counter()

    def add(self, simulation: Simulation) -> None:
        self.seeds += 1
        self.seconds += simulation.universe.now
        self.events += simulation.universe.events
        self.figures += simulation.figures + simulation.ledger.figures + simulation.server.effects

    def shortfalls(self) -> list[str]:
        """Every floor that was not met."""
        return [
            f"{name}: {self.figures[name]}, which is under {wanted}"
            for name, floor in {**FAULTS, **EFFECTS}.items()
            if self.figures[name] < (wanted := int(floor * self.seeds / 100))
        ]

    def __str__(self) -> str:
        def line(names: dict[str, float]) -> str:
            return ", ".join(f"{name} {self.figures[name]:,}" for name in names)

        return (
            f"{self.seeds:,} seeds, {self.seconds:,.0f} simulated seconds, {self.events:,} turns, "
            f"{self.figures['dispatched']:,} dispatches\n"
            f"faults: {line(FAULTS)}\neffects: {line(EFFECTS)}\nviolations: 0"
        )
