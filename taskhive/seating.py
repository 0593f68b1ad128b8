"""Which child an attempt goes to: a choice among slots, without touching them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from taskhive.slot import Attempt, Slot, State

MOST_TOGETHER = 128
"""Attempts that share one child at the most."""
_HAIR = 1e-9
"""Weights are fractions, and their sums are a little off."""


def admits(attempt: Attempt, load: float, target: int, quick: Collection[str]) -> bool:
    """Whether there may be one more attempt, this one; a heavier one runs when nothing else does."""
    weight = attempt.options.weight
    limit = target + (attempt.queue in quick and weight <= 1)
    return load + weight <= limit + _HAIR or load <= 0


def pooled(slots: Iterable[Slot], attempt: Attempt, batch: int, admitted: bool) -> Slot | None:
    """An idle slot; of a very short job also the busy one with the fewest like it."""
    best, least = None, batch
    for slot in slots:
        if slot.retire or slot.shared_by is not None:
            continue
        if slot.state is State.IDLE:
            if admitted:
                return slot
            continue
        if batch > 1 and slot.state is State.BUSY and slot.runs[0].queue == attempt.queue:
            waiting = len(slot.runs)
            if waiting < least:
                best, least = slot, waiting
    return best


def shared(slots: Iterable[Slot], queue: str) -> Slot | None:
    """The child that attempts of this queue share; an idle one, if there is none with room."""
    idle = None
    for slot in slots:
        if slot.retire or slot.state not in (State.IDLE, State.BUSY):
            continue
        if slot.shared_by == queue and len(slot.runs) < MOST_TOGETHER:
            return slot
        if slot.shared_by is None and slot.state is State.IDLE:
            idle = slot
    return idle


def unused(slots: Iterable[Slot]) -> tuple[Slot | None, Slot | None]:
    """A child that has run nothing yet; else one to be replaced by such, if none is on its way."""
    idle = [
        slot for slot in slots if slot.state is State.IDLE and not slot.retire and slot.shared_by is None
    ]
    fresh = next((slot for slot in idle if not slot.done), None)
    if fresh is not None:
        return fresh, None
    is_coming = any(slot.state is State.STARTING for slot in slots)
    return None, idle[0] if idle and not is_coming else None
