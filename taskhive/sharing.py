"""What becomes of the attempts that share a child when one of them must end, or the child does.

One that passed its time cannot be killed alone. So its child takes nothing new, the others finish, and
then it is killed with its child, while another one works already. If nothing moves in the child any
more, since one of them holds the interpreter's lock in C code, nobody can say which: all go back
uncharged, and each runs in a child of its own the next time; and so if the child dies with several.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from taskhive import frames
from taskhive.logs import Log
from taskhive.slot import Attempt, Slot

ANSWERS_WITHIN = 1.0
"""How long a child may take to show that something moves in it."""
INTERRUPTED_WITHIN = 0.25
"""How long an attempt may take to end by the exception that a cancel raises in it."""
KEPT_SUSPECTS = 4096


class Holder(Protocol):
    """Whoever has the children in hand."""

    def tell(self, slot: Slot, data: bytes) -> None:
        """Send a frame to a child."""
        ...

    def withdraw(self, slot: Slot) -> None:
        """Give it nothing new; another one takes its place."""
        ...

    def condemn(self, slot: Slot, verdict: str, message: str) -> None:
        """Kill it."""
        ...


class Sharing:
    """Decides for the attempts of shared children."""

    def __init__(self, holder: Holder, log: Log) -> None:
        self._holder = holder
        self._log = log
        self._suspects: OrderedDict[tuple[str, str], None] = OrderedDict()

    def may_share(self, attempt: Attempt) -> bool:
        """Whether it runs beside others: what it takes of memory and CPU time cannot be told apart."""
        options = attempt.options
        return (
            options.isolation == "thread"
            and options.memory is None
            and options.cpu_timeout is None
            and not attempt.alone
            and (attempt.queue, attempt.job.id) not in self._suspects
        )

    def overdue(self, slot: Slot, attempt: Attempt, verdict: str, message: str) -> None:
        """It has passed a limit."""
        attempt.verdict, attempt.message = verdict, message
        if len(slot.runs) > 1:
            slot.asked += 1
            self._holder.tell(slot, frames.ping(slot.asked))
            asyncio.get_running_loop().call_later(ANSWERS_WITHIN, self._is_silent, slot, slot.asked)
        self._holder.withdraw(slot)
        self.left(slot)

    def cancel(self, slot: Slot, attempt: Attempt, message: str, grace: float) -> None:
        """Somebody cancelled it: by an exception, and if it does not end by that, as one overdue."""
        attempt.verdict, attempt.message = "cancelled", message
        self._holder.tell(slot, frames.interrupt(attempt.number, "cancelled"))
        within = max(grace, INTERRUPTED_WITHIN)
        asyncio.get_running_loop().call_later(within, self._is_deaf, slot, attempt)

    def _is_deaf(self, slot: Slot, attempt: Attempt) -> None:
        if slot.is_alive and attempt in slot.runs:
            self.overdue(slot, attempt, "cancelled", attempt.message)

    def _is_silent(self, slot: Slot, question: int) -> None:
        if slot.is_alive and slot.answered < question:
            self._log.event("child.stuck", "error", queue=slot.shared_by, jobs=len(slot.runs))
            self.suspect(slot)
            self._holder.condemn(slot, "returned", "nothing moves in its child any more")

    def answered(self, slot: Slot, question: int) -> None:
        """Something moves in it."""
        slot.answered = question
        self.left(slot)

    def left(self, slot: Slot) -> None:
        """If those that are left have passed their time, their child goes; not before it has shown that
        they could have ended."""
        if slot.answered < slot.asked:
            return
        if slot.runs and all(one.verdict is not None for one in slot.runs):
            self._holder.condemn(slot, "timeout", "")

    def suspect(self, slot: Slot) -> None:
        """One of several did it: none is charged, and each runs in a child of its own next time."""
        for attempt in slot.runs:
            if attempt.verdict in (None, "timeout"):
                attempt.verdict, attempt.message = "returned", "one of several in its child"
                self._suspects[attempt.queue, attempt.job.id] = None
        while len(self._suspects) > KEPT_SUSPECTS:
            self._suspects.popitem(last=False)

    def cleared(self, attempt: Attempt) -> None:
        """It has ended by itself."""
        if self._suspects:
            self._suspects.pop((attempt.queue, attempt.job.id), None)
