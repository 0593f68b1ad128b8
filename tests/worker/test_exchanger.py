"""The talk of one queue with the server, with a server and a pool that say what the test wants."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from taskhive.clock import SystemClock
from taskhive.exchanger import Exchanger
from taskhive.handler_options import HandlerOptions
from taskhive.line import Line
from taskhive.logs import Log
from taskhive.parcels import Exchanged
from taskhive.slot import Attempt


class Keeper:
    """A pool with some room, and a note of what it was told."""

    def __init__(self, room: int) -> None:
        self.worker, self.is_draining = "w", False
        self.room = room
        self.told: list[str] = []

    def want(self, line: Line) -> int:
        return self.room

    def patience(self, line: Line) -> float:
        return 0.0

    def leased(self, line: Line, attempts: list[Attempt]) -> None:
        self.told.append("leased")

    def asked_for(self, line: Line) -> None:
        self.told.append("asked")

    def renewed(self, attempt: Attempt, answer: int) -> None:
        self.told.append("renewed")


class Nobody:
    """A server whose queue is empty; it also runs the flows, which are its own answers."""

    def __init__(self) -> None:
        self.wants: list[int] = []

    def exchange(self, queue: str, *, want: int, **rest: Any) -> Any:
        self.wants.append(want)
        return Exchanged([], [], [], None, False)

    async def run(self, flow: Any) -> Any:
        return flow


def talk(keeper: Keeper, line: Line) -> Nobody:
    """Serve the line until it has nothing more to say, then drain."""
    server = Nobody()

    async def main() -> None:
        clock: Any = SystemClock()
        commands: Any = server
        exchanger = Exchanger(line, keeper, commands, commands, clock, Log(io.StringIO()), lambda: None)
        serving = asyncio.create_task(exchanger.serve())
        while line.poll_at == 0.0:
            await asyncio.sleep(0)
        keeper.is_draining = True
        exchanger.wake.set()
        await serving

    asyncio.run(main())
    return server


def test_a_queue_that_had_nothing_passes_its_share_on() -> None:
    keeper = Keeper(room=2)
    server = talk(keeper, Line("q", HandlerOptions(), 15.0))
    assert server.wants == [2]
    assert keeper.told == ["asked"]


def test_a_look_on_suspicion_is_no_claim_on_the_next_room() -> None:
    line = Line("q", HandlerOptions(), 15.0, hungry=False)
    server = talk(Keeper(room=0), line)
    assert server.wants == [0]
    assert not line.hungry


def test_a_bell_is_a_claim_until_the_queue_was_asked() -> None:
    line = Line("q", HandlerOptions(), 15.0, hungry=True)
    server = talk(Keeper(room=0), line)
    assert server.wants == [0]
    assert line.hungry
