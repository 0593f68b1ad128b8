"""Which queue may ask for how many jobs now: a pure decision over all of them.

Higher priority first. Within a priority the free slots go to those that hold the fewest, one at a
time, so that queues share by demand: whoever wants less leaves the rest to the others, and of equals
the one served longest ago comes first. Nobody is forgotten: the decision is made anew from what is
known, never from what somebody was told before.

A queue of low priority does not wait for ever: one that had nothing for ten times its own running
time, and at least some seconds, gets one job before the others. So it has about a tenth of a slot.

A job heavier than the room that is left makes the queues behind it wait, or lighter ones would
take every slot as it becomes free. A job heavier than the machine runs when nothing else does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

STARVES_AFTER = 2.0
STARVES_AFTER_RUNS = 10
TRIALS = 20
QUICK = 0.100
"""Handlers that end so soon, 95 times in 100, may use one slot above the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What one queue would have."""

    queue: str
    priority: int = 100
    hungry: bool = True
    """There may be jobs to be had."""
    most: int = 128
    """Jobs that one request may bring."""
    batch: int = 1
    """Jobs that one slot takes at once."""
    beside: int = 0
    """Jobs that would still go into the slots it has: very short ones travel in company."""
    weight: float = 1.0
    held: int = 0
    """Jobs it has already, waiting or running or asked for."""
    max_concurrency: int | None = None
    mean: float = 0.0
    """Seconds an attempt takes."""
    p95: float | None = None
    known: int = 0
    """Attempts from which that is known."""
    last_served: float = 0.0
    """When it was last given something: the smaller, the sooner it is its turn."""

    @property
    def is_quick(self) -> bool:
        """Whether it may use the slot above the target."""
        return self.p95 is not None and self.p95 < QUICK

    @property
    def is_on_trial(self) -> bool:
        """Whether it may use it for one job at a time: how else should it be known to be quick?

        The first jobs of a handler are slower than the rest, and on a full machine much slower.
        """
        return self.held == 0 and may_be_quick(self.p95, self.known)


def may_be_quick(p95: float | None, known: int) -> bool:
    """Whether it is too early to say that a handler is not quick."""
    return p95 is None or (known < TRIALS and p95 < 10 * QUICK)


def share(
    bids: Iterable[Bid], *, target: float, busy: float, now: float, above_used: bool = False
) -> dict[str, int]:
    """Jobs to ask for, by queue; queues that get none are left out.

    `target` slots may be busy, `busy` of them are, in weights; `above_used` says whether the one
    above the target is among those, or not to be had.
    """
    waiting = [bid for bid in bids if bid.hungry and _left(bid, 0) > 0]
    granted: dict[str, int] = {}
    free = target - busy
    blocked = False
    for bid in sorted(waiting, key=lambda one: (one.last_served, -one.priority, one.queue)):
        if not _starves(bid, now):
            continue
        if not _fits(bid, free, busy, granted):
            # It waits for several slots to be free at once, so nobody else may take the first.
            blocked = True
            break
        granted[bid.queue] = min(bid.batch, _left(bid, 0))
        free -= bid.weight
    for priority in sorted({bid.priority for bid in waiting}, reverse=True):
        if blocked:
            break
        group = [bid for bid in waiting if bid.priority == priority]
        free, blocked = _deal(group, granted, free, busy)
    for bid in waiting:
        if bid.beside:
            more = min(bid.beside, _left(bid, granted.get(bid.queue, 0)))
            if more > 0:
                granted[bid.queue] = granted.get(bid.queue, 0) + more
    if not above_used:
        _one_above([bid for bid in waiting if bid.queue not in granted], granted, target)
    return granted


def _deal(group: list[Bid], granted: dict[str, int], free: float, busy: float) -> tuple[float, bool]:
    """Slot by slot to whoever holds the least; True if the next one does not fit, and the rest waits."""
    while True:
        open_ = [bid for bid in group if _left(bid, granted.get(bid.queue, 0)) > 0]
        if not open_:
            return free, False
        bid = min(open_, key=lambda one: _order(one, granted))
        if not _fits(bid, free, busy, granted):
            return free, True
        jobs = min(bid.batch, _left(bid, granted.get(bid.queue, 0)))
        granted[bid.queue] = granted.get(bid.queue, 0) + jobs
        free -= bid.weight


def _order(bid: Bid, granted: dict[str, int]) -> tuple[float, float, str]:
    slots = math.ceil((bid.held + granted.get(bid.queue, 0)) / bid.batch)
    return slots * bid.weight, bid.last_served, bid.queue


def _fits(bid: Bid, free: float, busy: float, granted: dict[str, int]) -> bool:
    # A hair below, since weights are fractions.
    return bid.weight <= free + 1e-9 or (busy <= 0 and not granted)


def _left(bid: Bid, granted: int) -> int:
    """Jobs that it may still be given."""
    left = bid.most - granted
    if bid.max_concurrency is not None:
        left = min(left, bid.max_concurrency - bid.held - granted)
    return left


def _starves(bid: Bid, now: float) -> bool:
    return now - bid.last_served >= max(STARVES_AFTER, STARVES_AFTER_RUNS * bid.mean)


def _one_above(bids: list[Bid], granted: dict[str, int], target: float) -> None:
    """Quick jobs move beside heavy ones by one slot more than there are."""
    may = [
        bid
        for bid in bids
        # Whoever wants one job at a time wants no trials beside it.
        if (bid.is_quick or (bid.is_on_trial and target > 1)) and bid.weight <= 1 and _left(bid, 0) > 0
    ]
    if may:
        bid = min(may, key=lambda one: (-one.priority, one.last_served, one.queue))
        granted[bid.queue] = min(bid.batch, _left(bid, 0)) if bid.is_quick else 1
