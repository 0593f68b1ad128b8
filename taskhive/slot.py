"""A child as the supervisor sees it: what it is doing, and what it has been given to do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from taskhive.commands import Leased
from taskhive.handler_options import HandlerOptions

KEPT_LINES = 200


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
    strict: bool
    number: int = 0
    started: float | None = None
    """Monotonic; None while it waits for its turn."""
    deadline: float | None = None
    soft_at: float | None = None
    verdict: str | None = None
    """Why its child is being killed."""
    message: str = ""
    reported: bool = False
    """The server knows that it has started."""
    progress: Any = None
    output: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    alone: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """One child."""

    number: int
    memory: int
    pid: int = 0
    state: State = State.STARTING
    transport: Any = None
    runs: deque[Attempt] = field(default_factory=deque)
    done: int = 0
    retire: bool = False
    only_for: Attempt | None = None

    def on(self, event: Event) -> None:
        """Go where the table says; a missing row is a bug that names itself."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise RuntimeError(f"slot {self.number}: {event} while {self.state}") from None

    @property
    def head(self) -> Attempt | None:
        """The attempt that runs, if one does."""
        return self.runs[0] if self.runs else None
