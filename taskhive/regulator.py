"""The worker's hold on its governor: looks every half second, keeps the target and its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from taskhive import governor
from taskhive.gauge import Gauge, Seen
from taskhive.governor import Bounds, Sample, State
from taskhive.logs import Log

INTERVAL = 0.5
MOST = 1024


@dataclass(slots=True)
class Regulator:
    """Follows the machine; or, with `fixed`, only watches it."""

    gauge: Gauge
    bounds: Bounds
    log: Log
    fixed: int | None = None
    observe: Callable[[Sample, State], None] = lambda sample, state: None
    state: State = field(init=False)
    sample: Sample | None = None
    """The last one, for whoever wants to see it."""

    def __post_init__(self) -> None:
        cores = self.gauge.grant.cores
        self.state = governor.begin(self.bounds, cores)
        if self.fixed is not None:
            self.state = State(self.fixed, f"{self.fixed}: asked for")

    @property
    def target(self) -> int:
        """Slots that may be busy."""
        return self.state.target

    @property
    def reason(self) -> str:
        """Why so many, in words."""
        return self.state.reason

    def look(self, children: Iterable[Seen], base: int = 0) -> bool:
        """Take a sample; whether the target has changed."""
        self.sample = sample = self.gauge.look(children, base)
        before = self.state
        if self.fixed is None:
            self.state = governor.decide(self.bounds, before, sample)
        self.observe(sample, self.state)
        if self.state.target == before.target:
            return False
        self.log.event(
            "worker.target", target=self.state.target, was=before.target, why=self.state.reason
        )
        return True


def default_most(cores: float) -> int:
    """How far the target may rise if nobody says: enough for attempts that sleep 90 % of the time."""
    return min(MOST, max(64, 32 * math.ceil(cores)))
