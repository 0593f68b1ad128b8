"""A machine in numbers: attempts and neighbours that share its cores fairly, for the governor to run.

What the kernel would do is known well enough to be computed: whoever wants a core gets a fair part,
and what he does not get he waits for. Those that sleep wake when they like: how many want a core at a
time is normally distributed, so that some wait while a moment later cores are idle. And who has waited
sleeps no less for it: the same work takes longer. Time passes in samples of half a second.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
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
        asked = {name: want * self._noisy() for name, want in self.wants.items()}
        got, used = self._shared(asked, shares)
        loads = {}
        for name, want in asked.items():
            cpu, wait = _spent(want, got)
            loads[name] = Load(shares, shares * cpu, shares * wait)
        if self.polite:
            theirs = min(self.neighbour, max(0.0, self.cores - used))
        else:
            theirs = self.neighbour * got
        return Sample(
            at=self.now,
            span=span,
            cores=self.cores,
            busy=min(self.cores, used + theirs * self._noisy()),
            loads=loads if running else {},
            memory=self.memory,
            available=max(0, self.memory - self.used - int(running * self.each)),
            per_slot=self.each,
            memory_pressure=self.pressure,
            throttled=self.throttled,
            rivals=math.ceil(self.neighbour) + self.random.choice((0, 0, 1)),
        )

    def _shared(self, asked: Mapping[str, float], shares: float) -> tuple[float, float]:
        """Which part of the time that somebody wants a core he has it; and the cores that we use."""
        got, used = 1.0, 0.0
        for _ in range(60):
            spent = [_spent(want, got) for want in asked.values()]
            used = shares * sum(cpu for cpu, _ in spent)
            mean = shares * sum(cpu + wait for cpu, wait in spent)
            variance = shares * sum((cpu + wait) * max(0.0, 1.0 - cpu - wait) for cpu, wait in spent)
            if not self.polite:
                mean += self.neighbour
            if mean <= 0:
                return 1.0, 0.0
            got += 0.3 * (_served(mean, variance, self.cores) / mean - got)
        return got, min(used, self.cores)

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


def _spent(want: float, got: float) -> tuple[float, float]:
    """CPU time and waiting in each second, of who has a core for that part of the time he wants one."""
    if want >= 1.0:  # it never sleeps
        return want * got, want * (1 - got)
    lasts = want / got + (1.0 - want)
    return want / lasts, (want / got - want) / lasts


def _served(mean: float, variance: float, cores: float) -> float:
    """How many have a core, on average, of a number that is distributed so."""
    if variance < 1e-9:
        return min(mean, cores)
    sigma = math.sqrt(variance)
    a = (cores - mean) / sigma
    below = 0.5 * (1.0 + math.erf(a / math.sqrt(2)))
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    return cores - ((cores - mean) * below + sigma * density)
