"""What becomes of a failed attempt: again after a while, or given up. Pure decisions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """Why an attempt failed."""

    ERROR = "error"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CPU = "cpu"
    CRASH = "crash"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Counts:
    """How often a job was put back, by cause."""

    retries: int = 0
    timeouts: int = 0
    stalls: int = 0
    crashes: int = 0

    def of(self, kind: FailureKind) -> int:
        """The counter that a failure of this kind is held against."""
        match kind:
            case FailureKind.ERROR | FailureKind.PERMANENT:
                return self.retries
            case FailureKind.TIMEOUT | FailureKind.MEMORY | FailureKind.CPU:
                return self.timeouts
            case FailureKind.CRASH:
                return self.crashes
            case FailureKind.STALL:
                return self.stalls


@dataclass(frozen=True, slots=True)
class Limits:
    """How often a job may be put back, by cause, and how long it then waits."""

    max_retries: int = 10
    max_timeouts: int = 3
    max_stalls: int = 3
    max_crashes: int = 1
    min_backoff: float = 2.0
    max_backoff: float = 300.0
    jitter: str = "full"

    def of(self, kind: FailureKind) -> int:
        """How often a job may be put back for a failure of this kind."""
        match kind:
            case FailureKind.ERROR:
                return self.max_retries
            case FailureKind.PERMANENT:
                return 0
            case FailureKind.TIMEOUT | FailureKind.MEMORY | FailureKind.CPU:
                return self.max_timeouts
            case FailureKind.CRASH:
                return self.max_crashes
            case FailureKind.STALL:
                return self.max_stalls


@dataclass(frozen=True, slots=True)
class Again:
    """Put the job back; it may run after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job has failed for good."""


Decision = Again | GiveUp


def backoff(count: int, limits: Limits, rng: random.Random) -> float:
    """Seconds before put-back number `count` + 1: exponential, spread over the whole interval.

    With full jitter many jobs that failed together do not come back together.
    """
    ceiling = min(limits.max_backoff, limits.min_backoff * 2.0 ** min(count, 60))
    return ceiling if limits.jitter == "none" else rng.uniform(0.0, ceiling)


def decide(kind: FailureKind, counts: Counts, limits: Limits, rng: random.Random) -> Decision:
    """Again or given up: `max_X` is how often a job is put back for X."""
    if counts.of(kind) >= limits.of(kind):
        return GiveUp()
    return Again(backoff(counts.of(kind), limits, rng))
