"""How many jobs a queue may ask for now, from what the worker holds: the facts for `intake`."""

from __future__ import annotations

from dataclasses import dataclass

from taskhive.clock import Clock
from taskhive.intake import QUICK, Bid, may_be_quick, share
from taskhive.line import Line
from taskhive.parcels import MAX_LEASES, MAX_RENEWALS
from taskhive.pool import Pool


@dataclass(slots=True)
class Dealer:
    """Looks at all queues whenever one of them wants something: no number is kept that could drift."""

    lines: dict[str, Line]
    pool: Pool
    clock: Clock
    memory: int | None = None
    """Bytes that all attempts together may take."""

    def want(self, line: Line) -> int:
        """Jobs that this queue may ask for."""
        pool = self.pool
        if pool.is_reserved:
            return 0
        load = pool.load + sum(self._asked(one) for one in self.lines.values() if one.asking)
        bids = [self._bid(one) for one in self.lines.values() if one.hungry and one.is_served]
        shares = share(
            bids,
            target=pool.target,
            busy=load,
            now=self.clock.monotonic(),
            above_used=load > pool.target or not pool.has_long,
        )
        return shares.get(line.queue, 0)

    def quick(self) -> frozenset[str]:
        """Queues whose attempts may use the slot above the target."""
        return frozenset(queue for queue, line in self.lines.items() if _is_quick(line))

    def _asked(self, line: Line) -> float:
        """Slots that the answer on its way will take."""
        batch = self.pool.batch.get(line.queue, 1)
        return -(-line.asking // batch) * line.options.weight

    def _bid(self, line: Line) -> Bid:
        held = len(line.held) + line.asking
        options, tally = line.options, line.tally
        return Bid(
            queue=line.queue,
            priority=options.priority,
            # Every lease is renewed in one call, so no more are held than one call can name.
            most=min(MAX_LEASES, MAX_RENEWALS - held, self._fit(line)),
            batch=self.pool.batch.get(line.queue, 1),
            beside=self.pool.beside(line.queue),
            weight=options.weight,
            held=held,
            max_concurrency=options.max_concurrency,
            mean=tally.mean or 0.0,
            p95=tally.p95,
            known=tally.count,
            last_served=line.last_served,
        )

    def _fit(self, line: Line) -> int:
        """How many more attempts fit into the worker's memory, by what they took before."""
        if self.memory is None:
            return MAX_LEASES
        counts = {queue: len(one.held) + one.asking for queue, one in self.lines.items()}
        if not any(counts.values()):
            return 1  # alone rather than never
        used = sum(self.lines[queue].tally.peak * count for queue, count in counts.items())
        # One that was never seen may take a slot's part.
        peak = line.tally.peak or self.memory // max(1, self.pool.target)
        return max(0, (self.memory - used) // max(1, peak))


def _is_quick(line: Line) -> bool:
    tally = line.tally
    known = tally.p95 is not None and tally.p95 < QUICK
    # One on trial was let in by the intake, one at a time.
    return (known or may_be_quick(tally.p95, tally.count)) and line.options.weight <= 1
