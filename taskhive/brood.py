"""The children of a worker: made until there are enough, let go when there are too many."""

from __future__ import annotations

import asyncio
from typing import Protocol

from taskhive.clock import Clock
from taskhive.link import Receiver
from taskhive.logs import Log
from taskhive.slot import Event, Slot, State
from taskhive.spawner import Spawner

LEAVE_WITHIN = 5.0
"""How long a retired child may take to end by itself."""
SPARE_FOR = 10.0
"""How long a child that is not needed stays, in case it is again."""
MOST_CHILDREN = 1024


class Parent(Protocol):
    """Whoever the children work for."""

    def ear(self, slot: Slot) -> Receiver:
        """What listens to a new child."""
        ...

    def overstayed(self, slot: Slot) -> None:
        """It was let go long ago, and is still there."""
        ...

    def may_start(self) -> None:
        """After a pause: children may be made again."""
        ...


class Brood:
    """Every child there is, by the number of its slot."""

    def __init__(self, clock: Clock, log: Log, parent: Parent) -> None:
        self.slots: dict[int, Slot] = {}
        self.spawner: Spawner | None = None
        self.is_closed = False
        """No more are made: the worker drains."""
        self._clock = clock
        self._log = log
        self._parent = parent
        self._numbers = 0
        self._failed_starts = 0
        self._rests_until = 0.0

    def living(self) -> list[Slot]:
        """Those that any attempt may be given to, now or when they are ready or free."""
        return [
            slot
            for slot in self.slots.values()
            if slot.is_alive and not slot.retire and slot.shared_by is None
        ]

    def use(self, spawner: Spawner) -> None:
        """Make new children by this one; those of an older one finish and leave."""
        self.spawner = spawner
        for slot in list(self.slots.values()):
            if slot.spawner is not spawner:
                self.retire(slot)

    def grow(self, size: int) -> None:
        """Start children until there are so many."""
        if self.spawner is None or self.is_closed or self._clock.monotonic() < self._rests_until:
            return
        for _ in range(min(size, MOST_CHILDREN) - len(self.living())):
            self._fork(self.spawner)

    def shrink(self, size: int) -> None:
        """Let children go that have not been needed for a while, down to so many."""
        now = self._clock.monotonic()
        spare = len(self.living()) - size
        for slot in list(self.slots.values()):
            if slot.state is not State.IDLE or slot.retire or now - slot.idle_since <= SPARE_FOR:
                continue
            if slot.shared_by is not None:
                self.retire(slot)
            elif spare > 0:
                self.retire(slot)
                spare -= 1

    def _fork(self, spawner: Spawner) -> None:
        self._numbers += 1
        try:
            link = spawner.fork(self._numbers)
        except OSError as error:
            self.failed_start(f"it could not be ordered: {error}")
            return
        slot = Slot(self._numbers, spawner, link)
        self.slots[slot.number] = slot
        link.listen(self._parent.ear(slot))

    def forked(self, number: int, pid: int, problem: str) -> Slot | None:
        """A fork was made, or not; the slot whose child has a number now."""
        slot = self.slots.get(number)
        if slot is None:
            return None
        if pid == 0:
            slot.on(Event.EXITED)
            self.remove(slot)
            self.failed_start(problem)
            return None
        slot.pid = pid
        return slot

    def started(self) -> None:
        """A child is ready: they can be made."""
        self._failed_starts = 0

    def failed_start(self, why: str) -> None:
        """Slower and slower: a child that cannot start will not start better at once."""
        self._failed_starts += 1
        delay = min(30.0, 0.1 * 2.0 ** min(self._failed_starts, 9))
        self._log.event("child.not_started", "error", why=why, times=self._failed_starts)
        self._rests_until = self._clock.monotonic() + delay
        # A little later than that: clocks are read twice.
        asyncio.get_running_loop().call_later(delay + 0.001, self._parent.may_start)

    def retire(self, slot: Slot) -> None:
        """Let a child end by itself after what it has; nothing new for it."""
        if slot.retire or not slot.is_alive:
            return
        slot.retire = True
        if not slot.runs:
            self.leave(slot)

    def leave(self, slot: Slot) -> None:
        """It has nothing left to do: let it go."""
        slot.link.shut()
        asyncio.get_running_loop().call_later(LEAVE_WITHIN, self._parent.overstayed, slot)

    def remove(self, slot: Slot) -> None:
        """It is gone."""
        del self.slots[slot.number]
        slot.link.close()

    def close(self) -> None:
        """Let go of everything; the zygotes kill what is left."""
        for slot in self.slots.values():
            slot.link.close()
        self.slots.clear()
