"""The one task of an `AsyncHive` on a loop that waits for ends, on one connection, for any number."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from taskhive.aio_broker import AsyncBroker
from taskhive.board import Board, Run, Watch
from taskhive.commands import Commands
from taskhive.errors import RedisUnavailable
from taskhive.listener import PATIENCE, ROUND
from taskhive.resp import pack

_LONGEST_PAUSE = 2.0


class AsyncListener:
    """Belongs to one event loop, and is touched by nobody else."""

    def __init__(self, broker: AsyncBroker, commands: Commands) -> None:
        self._broker = broker
        self._commands = commands
        self._board = Board(lambda queue: commands.keys(queue).done.encode())
        self._woken = asyncio.Event()
        self._rng = random.Random()
        self._tries = 0
        """Connections in a row on which nothing was heard."""
        self._task: asyncio.Task[None] | None = None

    def watch(self, watches: Sequence[Watch]) -> None:
        """Deliver the end of each, now or when it comes."""
        self._board.watch(watches)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="taskhive-listener")
        self._woken.set()

    def forget(self, watches: Sequence[Watch]) -> None:
        """Nobody waits for these any more."""
        self._board.forget(watches)

    async def stop(self) -> None:
        """End the task and its connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except (RedisError, OSError, RedisUnavailable):
                self._tries += 1
            except Exception as error:  # noqa: BLE001 -- refused, or a bug: nobody waits in vain
                self._tries += 1
                for watch in self._board.all():
                    watch.deliver(watch, error)
            self._board.lost()
            longest = min(_LONGEST_PAUSE, 0.1 * 2 ** min(self._tries, 6))
            await asyncio.sleep(self._rng.uniform(0.05, longest))

    async def _listen(self) -> None:
        while not len(self._board):
            self._woken.clear()
            await self._woken.wait()
        keys = self._commands.keys("taskhive")  # a message reaches every server of a cluster
        connection = await self._broker.connect(
            await self._broker.run(self._commands.session.address(keys.tag))
        )
        reading = asyncio.create_task(self._hear(connection))
        try:
            while True:
                self._woken.clear()
                if reading.done():
                    reading.result()
                wanted = self._board.wanted()
                if wanted:
                    await self._send(connection, pack(b"SUBSCRIBE", *wanted))
                for queue, runs in self._board.due():
                    await self._read(queue, runs)
                await self._wait(connection)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
                await reading
            await connection.disconnect(nowait=True)

    async def _hear(self, connection: Any) -> None:
        # Apart from the reading of records: while one is under way, ends gather for the next.
        try:
            while True:
                self._board.heard(await connection.read_response(disable_decoding=True))
                self._tries = 0
                self._woken.set()
        finally:
            self._woken.set()

    async def _wait(self, connection: Any) -> None:
        """Until there is something to do; ask a silent server whether it is there."""
        for patience in (ROUND, PATIENCE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._woken.wait()
                return
            unwanted = self._board.unwanted() if patience is ROUND else []
            leave = pack(b"UNSUBSCRIBE", *unwanted) if unwanted else b""
            await self._send(connection, pack(b"PING") + leave)
        raise OSError("the subscription is silent")

    async def _send(self, connection: Any, words: bytes) -> None:
        await connection.send_packed_command((words,), check_health=False)

    async def _read(self, queue: str, runs: list[Run]) -> None:
        try:
            fetched = await self._broker.run(self._commands.fetch(queue, runs))
        except RedisUnavailable:
            self._board.again(queue, runs)
            raise
        for watch, got in self._board.found(queue, runs, fetched):
            watch.deliver(watch, got)
