"""Whether an attempt has passed its memory or its CPU time, and when to look again: pure decisions.

The interval follows the room that is left: a tree that may grow by 100 MiB in 50 ms is looked at
before it can have grown past its limit by more than a seventh. Far below the limit that is seldom,
close to it a hundred times a second; an attempt without limits is never looked at.

The cheap figure counts a page once for every process that has it. A tree of one process cannot be
wronged by that, nor can one whose largest process alone is over; any other is confirmed page by
page before a verdict, and what was counted twice is remembered until the tree changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taskhive.meter import Shares, Tree

MIB = 1 << 20
FASTEST_GROWTH = 2000 * MIB
"""Bytes per second that are reckoned with: 100 MiB in 50 ms."""
OVERSHOOT = 0.12
"""What a limit may be passed by, with something to spare: 15 % is promised."""
REACTION = 0.030
"""Seconds between a look and the end of the process: the loop is busy, the stack is written."""
SHORTEST = 0.005
LONGEST = 0.5
CONFIRM_AGAIN = 0.25


@dataclass(frozen=True, slots=True)
class Budget:
    """What one attempt may take."""

    memory: int | None = None
    cpu: float | None = None

    def __bool__(self) -> bool:
        return self.memory is not None or self.cpu is not None


@dataclass(frozen=True, slots=True)
class Watch:
    """What is known of one attempt's tree."""

    base: Tree
    """Its child just before: what came from the zygote, or earlier attempts, is not charged."""
    peak: int = 0
    charged: int = 0
    cpu: float = 0.0
    credit: int = 0
    """Bytes that the cheap figure counts twice, as the last confirmation found."""
    confirmed_for: int = 0
    """Processes in the tree when it was confirmed."""
    confirmed_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Nothing is passed; look again after so many seconds."""

    after: float


@dataclass(frozen=True, slots=True)
class Confirm:
    """It seems to be over; count page by page before it is judged."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A limit is passed: "memory" or "cpu", with the figures in words."""

    verdict: str
    message: str


Judgement = LookAgain | Confirm | Passed


def judge(budget: Budget, watch: Watch, tree: Tree, now: float, cores: float) -> tuple[Watch, Judgement]:
    """Take in a cheap measure."""
    if not tree.processes:
        return watch, LookAgain(LONGEST)  # it has ended; its end is on the way
    cpu = max(watch.cpu, tree.cpu - watch.base.cpu)
    credit = watch.credit if tree.processes == watch.confirmed_for else 0
    charged = max(0, tree.resident - watch.base.resident - credit)
    known = charged if tree.processes == 1 else max(0, tree.largest - watch.base.anonymous)
    watch = replace(watch, cpu=cpu, charged=charged, peak=max(watch.peak, min(charged, known)))
    if budget.cpu is not None and cpu >= budget.cpu:
        return watch, Passed("cpu", f"used {cpu:.1f} s of CPU time, over its {budget.cpu:g} s")
    if budget.memory is not None and charged > budget.memory:
        alone = tree.processes == 1 and tree.anonymous - watch.base.anonymous > budget.memory
        if alone or (tree.processes > 1 and known > budget.memory):
            return _over_memory(replace(watch, peak=max(watch.peak, known)), budget.memory, known)
        if now - watch.confirmed_at >= CONFIRM_AGAIN:
            return watch, Confirm()
        return watch, LookAgain(max(SHORTEST, watch.confirmed_at + CONFIRM_AGAIN - now))
    return watch, LookAgain(_after(budget, watch, cores))


def confirm(
    budget: Budget, watch: Watch, tree: Tree, shares: Shares, now: float, sharers: int, cores: float
) -> tuple[Watch, Judgement]:
    """Take in the slow measure of the same tree; `sharers` others have the zygote's pages too."""
    assert budget.memory is not None
    if not shares.processes:
        return watch, LookAgain(LONGEST)
    if shares.processes == 1:
        real = shares.private
    else:
        # What is shared within the tree is its own; the zygote's part of it is not.
        part = shares.processes / (shares.processes + max(1, sharers))
        real = max(shares.private, shares.proportional - round(watch.base.resident * part))
    counted = max(0, tree.resident - watch.base.resident)
    watch = replace(
        watch,
        charged=real,
        peak=max(watch.peak, real),
        credit=max(0, counted - real),
        confirmed_for=tree.processes,
        confirmed_at=now,
    )
    if real > budget.memory:
        return _over_memory(watch, budget.memory, real)
    return watch, LookAgain(_after(budget, watch, cores))


def first_look(budget: Budget, cores: float) -> float:
    """Seconds after the start of an attempt."""
    return _after(budget, Watch(Tree(1, 0.0, 0.0, 0, 0)), cores)


def _after(budget: Budget, watch: Watch, cores: float) -> float:
    after = LONGEST
    if budget.memory is not None:
        room = budget.memory * (1 + OVERSHOOT) - watch.charged
        after = min(after, room / FASTEST_GROWTH - REACTION)
    if budget.cpu is not None:
        # No tree uses more than all cores; a tick of the counter is a hundredth of a second.
        after = min(after, (budget.cpu - watch.cpu) / max(1.0, cores) + 0.01)
    return max(SHORTEST, after)


def _over_memory(watch: Watch, limit: int, charged: int) -> tuple[Watch, Passed]:
    return watch, Passed("memory", f"took {charged / MIB:.0f} MiB, over its {limit / MIB:.0f} MiB")
