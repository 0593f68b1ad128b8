"""Turns counters into samples: what our attempts and everybody else did since the last look.

The cost is one walk over the trees of the busy children and a handful of files, twice a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from taskhive.governor import Load, Sample
from taskhive.machine import Grant, Reading
from taskhive.meter import NOTHING, Tree

FULL = 0.97
GRANT_EVERY = 10
"""Looks after which it is asked again what is granted: that changes seldom."""
KEPT_KILLS = 5.0
"""Seconds within which a kill by the kernel is matched with an exit."""


class Source(Protocol):
    """The machine, or one made up by a test."""

    def grant(self) -> Grant:
        """What may be used."""
        ...

    def read(self) -> Reading:
        """The counters now."""
        ...

    def oom_kills(self) -> int:
        """How often the kernel killed for want of memory."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """A child at the moment of a look."""

    number: int
    pid: int
    handler: str
    """Whose attempts it runs, or ran last."""
    weight: float
    worked: float
    """Seconds it was busy, since it was made; of attempts that share it, the sum of theirs."""
    running: int = 1
    """Attempts it has now, if they share it."""


@dataclass(slots=True)
class _Sums:
    slots: float = 0.0
    attempts: float = 0.0
    cpu: float = 0.0
    wait: float = 0.0


@dataclass(slots=True)
class _Known:
    tree: Tree
    worked: float


_NEW = _Known(NOTHING, 0.0)


@dataclass(slots=True)
class Gauge:
    """Remembers the last look, so that the next one can tell what happened since."""

    source: Source
    measure: Callable[[int], Tree]
    grant: Grant = field(init=False)
    _last: Reading = field(init=False)
    _known: dict[int, _Known] = field(default_factory=dict)
    _departed: dict[str, _Sums] = field(default_factory=dict)
    _kills: list[tuple[float, int]] = field(default_factory=list)
    _full: bool = False
    _looks: int = 0
    resident: dict[int, int] = field(default_factory=dict)
    """Resident bytes for each attempt of a busy child, with all below it, at the last look."""

    def __post_init__(self) -> None:
        self.grant = self.source.grant()
        self._last = self.source.read()
        self._kills.append((self._last.at, self._last.oom_kills))

    def look(self, children: Iterable[Seen], base: int = 0) -> Sample:
        """A sample from the last look until now; `base` bytes of each child are the zygote's."""
        self._looks += 1
        if self._looks % GRANT_EVERY == 0:
            self.grant = self.source.grant()
        before, now = self._last, self.source.read()
        self._last = now
        span = now.at - before.at
        sums, self._departed = self._departed, {}
        known, self._known, self.resident = self._known, {}, {}
        # We ourselves have a core at this moment.
        rivals = None if now.runnable is None else now.runnable - 1
        for child in children:
            tree = self.measure(child.pid)
            if not tree.processes:
                continue
            if rivals is not None:
                rivals -= tree.runnable
            # One that is new began with nothing: all it has done, it did since the last look.
            was = known.get(child.number, _NEW)
            self._known[child.number] = _Known(tree, child.worked)
            if child.worked > was.worked:
                _add(sums, child, was, tree)
                self.resident[child.number] = max(0, tree.resident - base) // max(1, child.running)
        self._note(now.at, now.oom_kills)
        sample = self._sample(before, now, span, sums)
        return sample if rivals is None else replace(sample, rivals=max(0, rivals))

    def left(self, child: Seen, cpu: float) -> None:
        """A child is reaped: what it did since the last look would else be taken for others'."""
        was = self._known.pop(child.number, _NEW)
        worked = child.worked - was.worked
        used = max(0.0, cpu - was.tree.cpu)
        one = self._departed.setdefault(child.handler, _Sums())
        one.slots += worked * child.weight
        one.attempts += worked
        one.cpu += used
        # How long it waited died with it. On a full machine all of its time was one or the other.
        one.wait += max(0.0, worked - used) if self._full else 0.0

    def killed_by_kernel(self, now: float) -> bool:
        """Whether the kernel has killed for want of memory within the last moments."""
        count = self.source.oom_kills()
        self._note(now, count)
        return count > self._kills[0][1]

    def forgive(self) -> None:
        """One such kill was told to whom it befell."""
        self._kills = [(at, count + 1) for at, count in self._kills]

    def _note(self, now: float, count: int) -> None:
        self._kills.append((now, count))
        # The oldest kept is the last one before the window: what it counted is long over.
        while len(self._kills) > 1 and self._kills[1][0] < now - KEPT_KILLS:
            self._kills.pop(0)

    def _sample(self, before: Reading, now: Reading, span: float, sums: dict[str, _Sums]) -> Sample:
        if span <= 0:
            return Sample(at=now.at, span=span, cores=self.grant.cores, busy=0.0)
        loads = {
            handler: Load(one.slots / span, one.cpu / span, one.wait / span, one.attempts / span)
            for handler, one in sums.items()
        }
        cores, busy = self.grant.cores, max(0.0, now.busy - before.busy) / span
        if now.inside is not None and before.inside is not None and self.grant.quota is not None:
            inside = max(0.0, now.inside - before.inside) / span
            # As if the quota were all there is, unless the machine outside has even less left.
            busy = max(inside, busy - (self.grant.allowed - cores))
        self._full = busy >= FULL * cores
        periods = now.periods - before.periods
        sizes = list(self.resident.values())
        return Sample(
            at=now.at,
            span=span,
            cores=cores,
            busy=busy,
            loads=loads,
            memory=self.grant.memory,
            available=now.available,
            per_slot=sum(sizes) // len(sizes) if sizes else 0,
            memory_pressure=max(0.0, now.memory_stalled - before.memory_stalled) / span,
            throttled=(now.throttled - before.throttled) / periods if periods > 0 else 0.0,
        )


def _add(sums: dict[str, _Sums], child: Seen, was: _Known, tree: Tree) -> None:
    one = sums.setdefault(child.handler, _Sums())
    one.slots += (child.worked - was.worked) * child.weight
    one.attempts += child.worked - was.worked
    one.cpu += max(0.0, tree.cpu - was.tree.cpu)
    one.wait += max(0.0, tree.wait - was.tree.wait)
