"""Listens for bells and hints of all served queues on one connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection

from redis.exceptions import RedisError

from taskhive.aio_broker import AsyncBroker
from taskhive.commands import Commands
from taskhive.errors import TaskHiveError
from taskhive.resp import pack


class Doorbell:
    """One subscription per server of the queues; a lost one is made again, and rings everywhere."""

    def __init__(
        self,
        broker: AsyncBroker,
        commands: Commands,
        queues: Collection[str],
        rung: Callable[[str], None],
        hinted: Callable[[str, str], None],
    ) -> None:
        self._broker = broker
        self._commands = commands
        self._queues = list(queues)
        self._rung = rung
        self._hinted = hinted
        self._rng = random.Random()

    async def listen(self) -> None:
        """For ever; cancel it to stop."""
        tries = 0
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError, TaskHiveError):
                tries += 1
            await asyncio.sleep(self._rng.uniform(0.05, min(2.0, 0.1 * 2 ** min(tries, 6))))

    async def _listen_once(self) -> None:
        keys = [self._commands.keys(queue) for queue in self._queues]
        channels = {k.bell.encode(): ("bell", k.queue) for k in keys}
        channels |= {k.hint.encode(): ("hint", k.queue) for k in keys}
        address = await self._broker.run(self._commands.session.address(keys[0].tag))
        connection = await self._broker.connect(address)
        try:
            await connection.send_packed_command((pack(b"SUBSCRIBE", *channels),), check_health=False)
            for _ in channels:
                await connection.read_response(disable_decoding=True)
            # What was dispatched before this rang for nobody.
            for queue in self._queues:
                self._rung(queue)
            while True:
                _, channel, message = await connection.read_response(disable_decoding=True)
                what, queue = channels[channel]
                if what == "bell":
                    self._rung(queue)
                else:
                    self._hinted(queue, message.decode(errors="replace"))
        finally:
            await connection.disconnect(nowait=True)
