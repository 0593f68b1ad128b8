"""A machine in numbers: attempts and neighbours that share its cores fairly, for the governor to run.

What the kernel would do is known well enough to be computed: whoever wants a core gets a fair part,
and what he does not get he waits for. Time passes in samples of half a second.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

from taskhive.governor import Bounds, Load, Sample, State, begin, decide

SPAN = 0.5


@dataclass
class Plant:
    cores: float
    bounds: Bounds = field(default_factory=Bounds)
    wants: dict[str, float] = field(default_factory=lambda: {"work": 1.0})
    """Cores an attempt wants if it gets all it asks for, by handler."""
    neighbour: float = 0.0
    polite: bool = False
    memory: int = 0
    used: int = 0
    each: int = 0
    pressure: float = 0.0
    throttled: float = 0.0
    noise: float = 0.0
    supply: float = float("inf")
    """How many attempts there are to run."""

    def __post_init__(self) -> None:
        self.state: State = begin(self.bounds, self.cores)
        self.now = 100.0
        self.history: list[tuple[float, int]] = [(self.now, self.state.target)]
        self.random = random.Random(7)

    def sample(self, span: float = SPAN) -> Sample:
        running = min(self.state.target, self.supply)
        shares = running / len(self.wants)
        asked = {name: shares * want * self._noisy() for name, want in self.wants.items()}
        ours = sum(asked.values())
        if self.polite:
            got = min(1.0, self.cores / ours) if ours else 1.0
            theirs = min(self.neighbour, max(0.0, self.cores - ours * got))
        else:
            total = ours + self.neighbour
            got = min(1.0, self.cores / total) if total else 1.0
            theirs = self.neighbour * got
        loads = {name: Load(shares, want * got, want * (1 - got)) for name, want in asked.items()}
        return Sample(
            at=self.now,
            span=span,
            cores=self.cores,
            busy=min(self.cores, ours * got + theirs * self._noisy()),
            loads=loads if running else {},
            memory=self.memory,
            available=max(0, self.memory - self.used - int(running * self.each)),
            per_slot=self.each,
            memory_pressure=self.pressure,
            throttled=self.throttled,
        )

    def _noisy(self) -> float:
        return 1.0 + self.random.uniform(-self.noise, self.noise)

    def run(self, seconds: float) -> int:
        """Let time pass; the target at the end."""
        for _ in range(round(seconds / SPAN)):
            self.now += SPAN
            before = self.state.target
            self.state = decide(self.bounds, self.state, self.sample())
            if self.state.target != before:
                self.history.append((self.now, self.state.target))
        return self.state.target

    def turns(self) -> int:
        """How often the target changed its direction."""
        targets = [target for _, target in self.history]
        ups = [b > a for a, b in itertools.pairwise(targets)]
        return sum(a != b for a, b in itertools.pairwise(ups))
