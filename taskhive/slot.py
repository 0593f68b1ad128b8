"""A child as the supervisor sees it: what it is doing, and what it has been given to do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from taskhive.handler_options import HandlerOptions
from taskhive.link import Link
from taskhive.parcels import Leased
from taskhive.spawner import Spawner

KEPT_LINES = 200
MARGIN = 0.5
"""How much earlier than the lease itself a lease stops being trusted."""


class State(StrEnum):
    """Where a child is in its life."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    KILLING = "killing"
    GONE = "gone"


class Event(StrEnum):
    """What happens to a child."""

    READY = "ready"
    ASSIGNED = "assigned"
    EMPTIED = "emptied"
    CONDEMNED = "condemned"
    EXITED = "exited"


NEXT = {
    (State.STARTING, Event.READY): State.IDLE,
    (State.STARTING, Event.CONDEMNED): State.KILLING,
    (State.STARTING, Event.EXITED): State.GONE,
    (State.IDLE, Event.ASSIGNED): State.BUSY,
    (State.IDLE, Event.CONDEMNED): State.KILLING,
    (State.IDLE, Event.EXITED): State.GONE,
    (State.BUSY, Event.EMPTIED): State.IDLE,
    (State.BUSY, Event.CONDEMNED): State.KILLING,
    (State.BUSY, Event.EXITED): State.GONE,
    (State.KILLING, Event.EXITED): State.GONE,
}


@dataclass(slots=True, eq=False)
class Attempt:
    """One job in our hands."""

    job: Leased
    queue: str
    options: HandlerOptions
    strict: bool = False
    """Killed, rather than left to the fence, once its lease cannot be trusted."""
    alone: bool = False
    """It crashed or stalled before: nothing else runs beside it."""
    number: int = 0
    trusted_until: float = 0.0
    """Boottime until which its lease is surely ours."""
    started: float | None = None
    """Monotonic; None while it waits for its turn."""
    deadline: float | None = None
    soft_at: float | None = None
    verdict: str | None = None
    """Why it is being ended."""
    message: str = ""
    reported: bool = False
    """The server knows that it has started."""
    progress: Any = None
    has_news: bool = False
    """The server does not know this progress yet."""
    spared: int = 0
    """How often a child died before it had read it."""
    output: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


@dataclass(slots=True, eq=False)
class Slot:
    """One child."""

    number: int
    spawner: Spawner
    link: Link
    pid: int = 0
    state: State = State.STARTING
    runs: deque[Attempt] = field(default_factory=deque)
    """What it was given, in order: the first one runs, the others wait in its socket."""
    victim: Attempt | None = None
    """What it was condemned for, if that ended before the kill came: the next one is not to blame."""
    ended: int = 0
    """The number of the last attempt whose end was seen."""
    spent: float = 0.0
    """Seconds of CPU of the attempts that have told their end."""
    done: int = 0
    last_piece: float = 0
    """Number of the first attempt in what was sent to it last; endless if that was something else."""
    retire: bool = False
    """Nothing new for it; it ends after what it has."""
    shared_by: str | None = None
    """The queue whose attempts run beside each other in it; None if one runs after the other."""
    asked: int = 0
    answered: int = 0
    """Questions whether anything still moves in it."""
    handler: str = ""
    """Whose attempts it runs, or ran last; with their weight."""
    weight: float = 1.0
    since: float | None = None
    """Monotonic moment from which it has been busy; None while it is not."""
    idle_since: float = 0.0
    worked: float = 0.0
    """Seconds it was busy before that."""
    look_at: float | None = None
    """When its tree is to be measured against the budget of what it runs."""

    def on(self, event: Event) -> None:
        """Go where the table says; a missing row is a bug that names itself."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise RuntimeError(f"slot {self.number}: {event} while {self.state}") from None

    def begins(self, attempt: Attempt, now: float) -> None:
        """It has something to do, or something more."""
        self.worked = self.worked_until(now)
        self.handler, self.weight, self.since = attempt.queue, attempt.options.weight, now

    def rests(self, now: float) -> None:
        """It has nothing to do any more."""
        self.worked, self.since, self.idle_since = self.worked_until(now), None, now

    def worked_until(self, now: float) -> float:
        """Seconds it was busy; of attempts that share it, the sum of theirs."""
        if self.since is None:
            return self.worked
        return self.worked + (now - self.since) * (len(self.runs) if self.shared_by else 1)

    def running(self) -> list[Attempt]:
        """The attempts whose time runs."""
        return list(self.runs) if self.shared_by else list(self.runs)[:1]

    def find(self, number: int) -> Attempt | None:
        """The running attempt of this number."""
        head = self.head
        if head is not None and head.number == number:
            return head
        return next((one for one in self.runs if one.number == number), None) if self.shared_by else None

    @property
    def load(self) -> float:
        """The weights of what it runs; who has passed a limit and waits for its end is not counted."""
        if self.shared_by is not None:
            return self.weight * sum(one.verdict is None for one in self.runs)
        return self.weight if self.runs else 0.0

    @property
    def head(self) -> Attempt | None:
        """The attempt that runs, if one does."""
        return self.runs[0] if self.runs else None

    @property
    def is_alive(self) -> bool:
        """Neither being killed nor dead."""
        return self.state is not State.KILLING and self.state is not State.GONE
