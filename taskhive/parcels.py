"""What a call brings to a queue or takes from it: jobs, the ends of leases, leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from taskhive import records
from taskhive.jobs import LimitHits
from taskhive.retries import Counts

MAX_ITEMS = 1000
MAX_BYTES = 4 * 1024 * 1024
MAX_SETTLES = 256
MAX_RENEWALS = 1024
"""How much one call may carry: what a server does in one go keeps all others waiting."""
MAX_LEASES = 64
"""Half of what a server would give: while these run, the next are leased and those before settled."""
AS_SET = -2
"""A time to live that is left to the queue's settings."""


class Item(NamedTuple):
    """One job to be dispatched, encoded."""

    id: str
    payload: bytes
    spec: bytes


class Answer(NamedTuple):
    """What became of one dispatched job."""

    generation: int
    created: bool


# What there is one of for every job is not frozen, though nothing changes it: freezing doubles the price
# of making one.


@dataclass(slots=True)
class Settle:
    """The end of one lease: `done`, `again`, `fail`, `release` or `cancelled`."""

    id: str
    token: str
    outcome: str
    kind: str = ""
    delay_ms: int = 0
    ttl_ms: int = AS_SET
    body: bytes = b""
    note: bytes = b""
    """What the attempt has cost, as JSON; kept with the ended record."""


@dataclass(slots=True)
class Renewal:
    """A lease to be kept."""

    id: str
    token: str
    started: bool = True
    progress: bytes = b""
    """How far it is, as JSON; empty when there is no news."""


@dataclass(slots=True)
class Leased:
    """A job that is ours for a while; the payload is not opened yet."""

    id: str
    token: str
    payload: bytes
    created_ms: int
    fields: dict[bytes, Any]

    @property
    def counts(self) -> Counts:
        """How often it was put back, by cause."""
        return records.counts(self.fields)

    @property
    def limit_hits(self) -> LimitHits:
        """How often each limit was hit: the next attempt gets the next budget of that one only."""
        return records.limit_hits(self.fields)

    @property
    def attempts(self) -> int:
        """How many attempts were counted before this one."""
        value = self.fields.get(b"a", 0)
        return value if isinstance(value, int) else 0


@dataclass(slots=True)
class Exchanged:
    """The answers of one exchange."""

    settled: list[str]
    renewed: list[int]
    leases: list[Leased]
    due_in: float | None
    """Seconds until something is due in this queue, or None."""
    paused: bool
