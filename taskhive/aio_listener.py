"""The one task of an `AsyncHive` on a loop that waits for ends, on one connection, for any number."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from taskhive.address import Address
from taskhive.aio_broker import AsyncBroker
from taskhive.board import Board, Run, Watch
from taskhive.broker import MixedReply
from taskhive.commands import Commands
from taskhive.effects import Send, Trouble, is_answer, is_message
from taskhive.errors import RedisUnavailable
from taskhive.listener import NOBODY, PATIENCE, ROUND
from taskhive.resp import pack

_LONGEST_PAUSE = 2.0


class Mixed:
    """A connection on which messages come between the replies: one task reads it, and hands out both.

    The owner itself sends nothing that is answered otherwise than by a message.
    """

    def __init__(
        self, connection: Any, address: Address, io_timeout: float, heard: Callable[[Any], None]
    ) -> None:
        self._connection = connection
        self._address = address
        self._io_timeout = io_timeout
        self._heard = heard
        self.is_broken = False
        self._replies: asyncio.Queue[Any] | None = None
        """Where the replies go of the request that is under way."""

    async def hear(self) -> None:
        """Read for as long as the connection lasts."""
        try:
            while True:
                try:
                    came = await self._connection.read_response(disable_decoding=True, push_request=True)
                except ResponseError as error:
                    if self._replies is None:
                        raise
                    came = error
                if is_message(came):
                    self._heard(came)
                elif self._replies is not None:
                    self._replies.put_nowait(came)
                else:
                    raise MixedReply("a reply that nobody waits for")
        except (RedisError, OSError) as error:
            self.is_broken = True
            if self._replies is not None:
                self._replies.put_nowait(Trouble(error, True))
            raise

    def takes(self, effect: Send) -> bool:
        """Whatever goes to its server, for as long as it lasts."""
        return effect.address == self._address and not effect.sentinel and not self.is_broken

    async def send(self, effect: Send) -> list[Any] | Trouble:
        """Send a request; what its reader hands out as the replies. One at a time."""
        coming: asyncio.Queue[Any] = asyncio.Queue()
        self._replies = coming
        try:
            async with asyncio.timeout(self._io_timeout):
                await self.write(effect.data)
                replies = [await coming.get() for _ in range(effect.replies)]
            trouble = next((one for one in replies if isinstance(one, Trouble)), None)
            if trouble is not None:
                return trouble
            if effect.echo is not None and not is_answer(replies[0], effect.echo):
                raise MixedReply("the reply of another request")
        except (RedisError, OSError) as error:
            self.is_broken = True  # a reply that is late must meet nobody
            return Trouble(error, True)
        finally:
            self._replies = None
        return replies

    async def write(self, words: bytes) -> None:
        """Send commands whose answers are messages."""
        await self._connection.send_packed_command((words,), check_health=False)


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
        address = await self._broker.run(self._commands.session.address(keys.tag))
        connection = await self._broker.connect(address, mixed=True)
        mixed = Mixed(connection, address, self._broker.io_timeout, self._heard)
        reading = asyncio.create_task(mixed.hear())
        reading.add_done_callback(lambda _: self._woken.set())
        try:
            while True:
                self._woken.clear()
                if reading.done():
                    reading.result()
                wanted = self._board.wanted()
                if wanted:
                    await mixed.write(pack(b"SUBSCRIBE", *wanted))
                for queue, runs in self._board.due():
                    await self._read(queue, runs, mixed)
                if mixed.is_broken:
                    raise OSError("the connection was lost")
                await self._wait(mixed)
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
                await reading
            await connection.disconnect(nowait=True)

    def _heard(self, message: Any) -> None:
        self._board.heard(message)
        self._tries = 0
        self._woken.set()

    async def _wait(self, mixed: Mixed) -> None:
        """Until there is something to do; ask a silent server whether it is there."""
        for patience in (ROUND, PATIENCE):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._woken.wait()
                return
            unwanted = self._board.unwanted() if patience is ROUND else []
            await mixed.write(pack(b"UNSUBSCRIBE", *unwanted, NOBODY))
        raise OSError("the subscription is silent")

    async def _read(self, queue: str, runs: list[Run], mixed: Mixed) -> None:
        try:
            fetched = await self._broker.run(self._commands.fetch(queue, runs), mixed)
        except RedisUnavailable:
            self._board.again(queue, runs)
            raise
        for watch, got in self._board.found(queue, runs, fetched):
            watch.deliver(watch, got)
