"""One queue's talk with the server, beside the other queues of its worker."""

from __future__ import annotations

import asyncio
from typing import Any

from taskhive.address import EMBEDDED
from taskhive.clock import SystemClock
from taskhive.commands import Commands, Exchanged
from taskhive.exchanger import Exchanger
from taskhive.handler_options import HandlerOptions
from taskhive.line import Line
from taskhive.logs import Log
from taskhive.session import Session
from taskhive.slot import Attempt


class EmptyServer:
    """Has no jobs in any queue."""

    async def run(self, flow: Any) -> Any:
        flow.close()
        await asyncio.sleep(0)
        return Exchanged([], [], [], None, False)


class OneSlot:
    """Lets one queue ask at a time, in the order in which they are listed."""

    worker = "w"
    is_draining = False

    def __init__(self) -> None:
        self.exchangers: list[Exchanger] = []
        self.asked: list[str] = []

    def want(self, line: Line) -> int:
        lines = [one.line for one in self.exchangers]
        first = next(one for one in lines if one.hungry)
        if any(one.asking for one in lines) or line is not first:
            return 0
        self.asked.append(line.queue)
        return 1

    def leased(self, line: Line, attempts: list[Attempt]) -> None:
        assert attempts == []
        for one in self.exchangers:
            if one.line.hungry:
                one.wake.set()

    def renewed(self, attempt: Attempt, answer: int) -> None: ...


def test_a_queue_that_finds_nothing_lets_the_next_one_ask_at_once() -> None:
    async def serve() -> list[str]:
        keeper = OneSlot()
        commands = Commands(Session(EMBEDDED, 1.0), "th")
        for queue in "abcd":
            line = Line(queue, HandlerOptions(), 15.0)
            clock, log = SystemClock(), Log()
            keeper.exchangers.append(
                Exchanger(line, keeper, EmptyServer(), commands, clock, log, lambda: None)
            )
        tasks = [asyncio.create_task(one.serve()) for one in keeper.exchangers]
        # Long before the two seconds after which each would ask again by itself.
        for _ in range(100):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return keeper.asked

    assert asyncio.run(serve()) == ["a", "b", "c", "d"]
