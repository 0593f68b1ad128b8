"""Time that is only counted: many supervisors on one heap of events, each with a loop of its own.

A supervisor's loop never waits. What it asks for goes onto the heap, and whoever turns the heap sets the
clock. So a freeze of hours costs nothing, and the order of everything follows from the seed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import Any


class Rank(IntEnum):
    """In which order a loop that was frozen finds what came meanwhile: as asyncio does."""

    SOON = 0
    ARRIVAL = 1
    TIMER = 2


class Universe:
    """The one clock, and what is to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Rank, HostLoop | None, Callable[[], None]]] = []
        self._count = 0
        self._pids = 1000

    def pid(self) -> int:
        """The number of a new process."""
        self._pids += 1
        return self._pids

    def at(
        self,
        moment: float,
        call: Callable[[], None],
        host: HostLoop | None = None,
        rank: Rank = Rank.ARRIVAL,
    ) -> None:
        """Have something happen; to a host, if it is one's: then not while that is frozen."""
        self._count += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._count, rank, host, call))

    def after(self, seconds: float, call: Callable[[], None], host: HostLoop | None = None) -> None:
        self.at(self.now + seconds, call, host)

    def turn(self, until: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until a moment, or until it is enough."""
        while self._heap and self._heap[0][0] <= until and not enough():
            moment, _, rank, host, call = heapq.heappop(self._heap)
            self.now = moment
            if host is None:
                call()
            elif host.is_dead:
                continue
            elif host.is_frozen:
                host.missed.append((rank, call))
            else:
                self.events += 1
                host.act(call)
        if not self._heap or self._heap[0][0] > until:
            self.now = until


class Channel:
    """A stream between two processes: what is sent takes a while, and comes in the order it was sent."""

    def __init__(self, universe: Universe, takes: Callable[[], float]) -> None:
        self._universe = universe
        self._takes = takes
        self._last = 0.0

    def send(self, arrive: Callable[[], None], host: HostLoop | None = None) -> None:
        self._last = max(self._last, self._universe.now + self._takes())
        self._universe.at(self._last, arrive, host)


class HostLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process."""

    def __init__(self, universe: Universe, name: str) -> None:
        self.universe = universe
        self.name = name
        self.is_frozen = False
        self.is_dead = False
        self.missed: list[tuple[Rank, Callable[[], None]]] = []
        self.errors: list[str] = []

    def act(self, call: Callable[[], object]) -> None:
        """Run one callback as this loop."""
        asyncio._set_running_loop(self)
        try:
            call()
        finally:
            asyncio._set_running_loop(None)

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on: with what was ready, then with what arrived, then with what fell due."""
        self.is_frozen = False
        missed, self.missed = self.missed, []
        for rank, call in sorted(missed, key=lambda one: one[0]):
            self.universe.at(self.universe.now, call, self, rank)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self.universe.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.universe.at(self.universe.now, _running(handle), self, Rank.SOON)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.universe.at(when, _running(handle), self, Rank.TIMER)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays on the heap and does nothing."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


def _running(handle: asyncio.Handle) -> Callable[[], None]:
    def run() -> None:
        if not handle.cancelled():
            handle._run()

    return run


class SimulatedClock:
    """All clocks of a simulated machine are the one."""

    def __init__(self, universe: Universe) -> None:
        self._universe = universe

    def monotonic(self) -> float:
        return self._universe.now

    def boottime(self) -> float:
        return self._universe.now

    def wall(self) -> float:
        return self._universe.now
