"""What the simulated children really did, kept apart from all that anybody says about it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

OWN_ENDS = {"crashed", "killed", "garbage", "closed", "zygote lost"}
"""How a child ends that nobody on its side of the queue ordered: what may be called a crash."""


class Violation(AssertionError):
    """Something happened that must not."""


@dataclass
class Stay:
    """One attempt in a child: from the handler's first line to its last, or to the child's death."""

    queue: str
    id: str
    fence: int
    host: str
    strict: bool
    start: float
    timeout: float
    end: float | None = None
    fate: str = ""
    """finished, raised, permanent, or how its child died: `beside` something that one of several did,
    `held` by one of several."""


class Ledger:
    """Every attempt, and every end of a lease that the server accepted."""

    def __init__(self) -> None:
        self.stays: list[Stay] = []
        self.figures: Counter[str] = Counter()
        self._by_lease: dict[tuple[str, int], list[Stay]] = defaultdict(list)
        self._open: dict[tuple[str, str], list[Stay]] = defaultdict(list)
        self._settled: set[tuple[str, str]] = set()
        self.taken_in: set[tuple[str, int]] = set()
        """Leases whose attempt a child had read and not begun when it died, or was not alone on its way
        to it: it looks as if it had begun."""

    # What children do

    def began(self, stay: Stay) -> None:
        beside = self._open[stay.queue, stay.id]
        for other in beside:
            if other.fence == stay.fence:
                raise Violation(f"one lease runs twice at once: {other}, {stay}")
            if stay.strict:
                raise Violation(f"a strict id overlaps itself: {other}, {stay}")
            self.figures["overlaps of ids that may"] += 1
        beside.append(stay)
        self.stays.append(stay)
        self._by_lease[stay.queue, stay.fence].append(stay)
        self.figures["attempts"] += 1

    def ended(self, stay: Stay, now: float, fate: str) -> None:
        """Its handler is done, or its child is."""
        if stay.end is None:
            stay.end, stay.fate = now, fate
            self._open[stay.queue, stay.id].remove(stay)
            self.figures[f"attempts {fate}"] += 1

    def of(self, queue: str, token: str) -> list[Stay]:
        return self._by_lease.get((queue, int(token.partition(".")[0])), [])

    # What the server accepts

    def settled(self, queue: str, id: str, token: str, outcome: str, kind: str, delay: int) -> None:
        """A settle that was answered with OK: told truly, and the first one of its lease."""
        if (queue, token) in self._settled:
            raise Violation(f"lease {token} of {id} settled twice")
        self._settled.add((queue, token))
        self.figures[f"settled {outcome} {kind}".rstrip()] += 1
        stays = self.of(queue, token)
        fates = {stay.fate for stay in stays}
        if outcome == "done":
            true = "finished" in fates
        elif outcome == "release":
            true = "finished" not in fates or delay < 0
        elif outcome == "cancelled":
            true = True
        elif kind == "error":
            true = "raised" in fates
        elif kind == "permanent":
            true = "permanent" in fates
        elif kind == "timeout":
            true = any(s.end is not None and s.end - s.start >= s.timeout - 0.01 for s in stays)
            # One of several held the interpreter, and nobody knows which.
            true = true and "held" not in fates
        elif kind == "crash":
            true = bool(fates & OWN_ENDS) or (queue, int(token.partition(".")[0])) in self.taken_in
        else:
            true = False
        if not true:
            raise Violation(f"{id} ({token}) was settled as {outcome} {kind}, but it was: {stays}")

    def swept(self, queue: str, id: str, token: str, started: bool, cancelled: bool) -> None:
        """A lease that lapsed: a stall only if its attempt had begun."""
        if (queue, token) in self._settled:
            raise Violation(f"lease {token} of {id} was swept after it was settled")
        self._settled.add((queue, token))
        self.figures["swept"] += 1
        if started and not cancelled:
            if not self.of(queue, token) and (queue, int(token.partition(".")[0])) not in self.taken_in:
                raise Violation(f"{id} ({token}) was charged with a stall and had never begun")
            self.figures["stalls"] += 1
