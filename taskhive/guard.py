"""Watches the trees of busy children against the budgets of what they run.

The measuring is given, so that a simulation can do without processes; the judging is `limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from taskhive import limits, meter
from taskhive.limits import Budget, Judgement, Watch
from taskhive.meter import NOTHING, Shares, Tree


@dataclass(slots=True)
class Guard:
    """What is known of each child, by the number of its slot."""

    measure: Callable[[int], Tree]
    cores: float
    shares: Callable[[int], Shares] = meter.shares
    """Counts page by page, and takes its time: for a thread."""
    _bases: dict[int, Tree] = field(default_factory=dict)
    _watches: dict[int, tuple[Budget, Watch]] = field(default_factory=dict)

    def ready(self, number: int, pid: int) -> None:
        """A child is about to take its first attempt: what it has now came from the zygote."""
        self._bases[number] = self.measure(pid)

    def began(self, number: int, pid: int, budget: Budget) -> float | None:
        """An attempt begins: seconds until the first look at it, None if none is needed."""
        self._watches.pop(number, None)
        if not budget:
            return None
        base = self._bases.get(number, NOTHING)
        if budget.cpu is not None:
            # Memory is counted from the fork, CPU time from here.
            base = replace(base, cpu=self.measure(pid).cpu)
        self._watches[number] = (budget, Watch(base))
        return limits.first_look(budget, self.cores)

    def look(self, number: int, pid: int, now: float) -> Judgement | None:
        """Measure and judge; None if nothing is watched there."""
        found = self._watches.get(number)
        if found is None:
            return None
        budget, watch = found
        watch, said = limits.judge(budget, watch, self.measure(pid), now, self.cores)
        self._watches[number] = (budget, watch)
        return said

    def confirmed(
        self, number: int, pid: int, shares: Shares, now: float, sharers: int
    ) -> Judgement | None:
        """Take in a count page by page, which took its time; None if the attempt has ended."""
        found = self._watches.get(number)
        if found is None:
            return None
        budget, watch = found
        if budget.memory is None:
            return None
        tree = self.measure(pid)
        watch, said = limits.confirm(budget, watch, tree, shares, now, sharers, self.cores)
        self._watches[number] = (budget, watch)
        return said

    def peak(self, number: int) -> int:
        """The most that was seen of the attempt that runs there, above the zygote's part."""
        found = self._watches.get(number)
        return found[1].peak if found is not None else 0

    def cpu(self, number: int) -> float:
        """CPU seconds of the attempt that runs there, as far as they were seen."""
        found = self._watches.get(number)
        return found[1].cpu if found is not None else 0.0

    def base(self, number: int) -> int:
        """Resident bytes that a child had from the zygote."""
        return self._bases.get(number, NOTHING).resident

    def growth(self, number: int, pid: int) -> int:
        """Resident bytes that a child has gathered since it was made."""
        return max(0, self.measure(pid).resident - self.base(number))

    def over(self, number: int) -> None:
        """The attempt has ended."""
        self._watches.pop(number, None)

    def gone(self, number: int) -> None:
        """The child has ended."""
        self._watches.pop(number, None)
        self._bases.pop(number, None)
