"""Tells the server what this worker is doing, and what its attempts have cost.

Every two seconds, in a few small writes; a worker that falls silent counts as gone soon after.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from taskhive.clock import Clock
from taskhive.commands import Commands
from taskhive.errors import RedisUnavailable
from taskhive.exchanger import Runner
from taskhive.ids import nonce
from taskhive.line import Line
from taskhive.pool import Pool
from taskhive.regulator import Regulator
from taskhive.slot import Attempt, Slot

INTERVAL = 2.0
GONE_AFTER = 10.0
MOST_SLOTS = 64
"""Slots that are told one by one; with more, the busy ones first."""


@dataclass(slots=True)
class About:
    """Who a worker is; that does not change."""

    name: str
    started: float
    id: str = field(init=False)
    facts: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.name or socket.gethostname()
        plain = re.sub("[^A-Za-z0-9._-]", "-", self.name)[:100]
        self.id = f"{plain}-{os.getpid()}-{nonce()}"
        self.facts = {
            "name": self.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": version("taskhive"),
            "started": round(self.started, 3),
        }
        """As JSON."""


@dataclass(slots=True)
class Inside:
    """What a worker is doing, as seen from its own middle."""

    regulator: Regulator
    pool: Pool
    lines: dict[str, Line]
    clock: Clock

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        grant, now = self.regulator.gauge.grant, self.clock.monotonic()
        ordered = sorted(self.pool.slots.values(), key=lambda slot: (not slot.runs, slot.number))
        return {
            "capacity": self.regulator.target,
            "load": round(self.pool.load, 3),
            "reason": self.regulator.reason,
            "machine": grant.words(),
            "memory": grant.memory,
            "jobs": sum(len(line.held) for line in self.lines.values()),
            "queues": sorted(queue for queue, line in self.lines.items() if line.is_served),
            "slots": [told for slot in ordered for told in _slot(slot, now)][:MOST_SLOTS],
        }


class Herald:
    """Speaks for one worker."""

    def __init__(self, about: About, commands: Commands, runner: Runner, inside: Inside) -> None:
        self._about = about
        self._commands = commands
        self._runner = runner
        self._inside = inside

    async def speak(self) -> None:
        """For as long as the worker runs."""
        while True:
            try:
                facts = {**self._about.facts, **self._inside.facts()}
                await self._runner.run(self._commands.announce(self._about.id, facts, GONE_AFTER))
                await self._account()
            except RedisUnavailable:
                # Whether it was counted is not known: lost costs are better than doubled ones. That
                # the server is away is said elsewhere.
                pass
            await asyncio.sleep(INTERVAL)

    async def leave(self) -> None:
        """The last word."""
        await self._account()
        await self._runner.run(self._commands.leave(self._about.id))

    async def _account(self) -> None:
        for queue, line in list(self._inside.lines.items()):
            if line.spent:
                await self._runner.run(self._commands.account(queue, line.spent.take()))


def _slot(slot: Slot, now: float) -> list[dict[str, Any]]:
    """A child and what it runs; one that attempts share, once for each of them."""
    running: list[Attempt | None] = [*slot.running()]
    return [
        {
            "slot": slot.number,
            "pid": slot.pid,
            "state": str(slot.state),
            "queue": one.queue if one is not None else None,
            "job": one.job.id if one is not None else None,
            "seconds": round(now - one.started, 1)
            if one is not None and one.started is not None
            else None,
            "waiting": len(slot.runs) - len(running) if one is not None else 0,
        }
        for one in running or [None]
    ]
