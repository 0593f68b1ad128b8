"""The asyncio broker: acts out the same flows for `AsyncHive`.

A connection belongs to the event loop it was made on, so each loop has its own. A cancelled await
closes the connection it was using: a reply that comes later must meet nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from redis.asyncio import connection as library
from redis.exceptions import RedisError, ResponseError

from taskhive import embedded
from taskhive.address import Address, Target
from taskhive.broker import MixedReply, settings
from taskhive.effects import (
    AwaitMessage,
    DropIdle,
    Effect,
    EnsureEmbedded,
    Flow,
    Pause,
    Send,
    Subscribe,
    T,
    Trouble,
    is_answer,
)
from taskhive.resp import pack

AT_ONCE = 64
"""Requests in flight on one loop; more wait their turn, lest ten thousand tasks open as many sockets."""


class _Pool:
    """What one event loop has: idle connections by server, and the turns of those who want one."""

    def __init__(self) -> None:
        self.idle: dict[tuple[Address, bool], list[Any]] = {}
        self.turns = asyncio.Semaphore(AT_ONCE)


class Own(Protocol):
    """A connection of somebody's own, who lets flows use it."""

    def takes(self, effect: Send) -> bool:
        """Whether it will do for this one."""
        ...

    async def send(self, effect: Send) -> Any:
        """Act it out: the replies, or a `Trouble`."""
        ...


class AsyncBroker:
    """Runs flows; any event loop may use it, each with connections of its own."""

    def __init__(
        self,
        target: Target,
        directory: Callable[[], Path],
        io_timeout: float,
        ensure: Callable[[Path], Path] = embedded.ensure,
    ) -> None:
        self._target = target
        self._directory = directory
        self.io_timeout = io_timeout
        self._ensure = ensure
        self._pid = os.getpid()
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = (
            weakref.WeakKeyDictionary()
        )

    async def run(self, flow: Flow[T], own: Own | None = None) -> T:
        """Act out a flow to its end; on `own` what that takes, on idle connections the rest."""
        subscription = _Subscription(self)
        try:
            effect = next(flow)
            while True:
                if type(effect) is Send:
                    if own is not None and own.takes(effect):
                        outcome: Any = await own.send(effect)
                    else:
                        outcome = await self._send(effect)
                else:
                    outcome = await self._other(effect, subscription)
                effect = flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()
            if subscription.connection is not None:
                await subscription.close()

    async def close(self) -> None:
        """Close this loop's idle connections; the broker may be used again."""
        for stack in self._pool().idle.values():
            while stack:
                await _drop(stack.pop())

    async def connect(self, address: Address, sentinel: bool = False, mixed: bool = False) -> Any:
        """A new connection of the running loop; `mixed`: see `settings`."""
        kind: Any = library.Connection
        if address.port == 0:
            kind = library.UnixDomainSocketConnection
        elif self._target.tls:
            kind = library.SSLConnection
        # No timeout of the library's: it wraps each read in a task. One timeout spans the request.
        made = kind(**settings(self._target, address, sentinel, None, mixed))
        try:
            await made.connect()
        except BaseException:  # cancelled in the middle of a handshake: nobody else knows of it
            await _drop(made)
            raise
        return made

    def _pool(self) -> _Pool:
        if os.getpid() != self._pid:
            self._pools, self._pid = weakref.WeakKeyDictionary(), os.getpid()
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools.setdefault(loop, _Pool())
        return pool

    async def _send(self, effect: Send) -> Any:
        pool = self._pool()
        async with pool.turns:
            stack = pool.idle.setdefault((effect.address, effect.sentinel), [])
            return await self._send_on(stack, effect)

    async def _send_on(self, stack: list[Any], effect: Send) -> Any:
        connection = None
        sent = False
        try:
            async with asyncio.timeout(self.io_timeout):
                connection = (
                    stack.pop() if stack else await self.connect(effect.address, effect.sentinel)
                )
                sent = True
                await connection.send_packed_command((effect.data,), check_health=False)
                replies = [await _reply(connection) for _ in range(effect.replies)]
            if effect.echo is not None and not is_answer(replies[0], effect.echo):
                raise MixedReply("the reply of another request")
        except (RedisError, OSError) as error:  # a TimeoutError is an OSError
            if connection is not None:
                await _drop(connection)
            return Trouble(error, sent)
        except BaseException:
            if connection is not None:
                await _drop(connection)
            raise
        stack.append(connection)
        return replies

    async def _other(self, effect: Effect, subscription: _Subscription) -> Any:
        match effect:
            case Pause(seconds):
                await asyncio.sleep(seconds)
                return None
            case DropIdle():
                await self.close()
                return None
            case EnsureEmbedded():
                path = await asyncio.to_thread(self._ensure, self._directory())
                return Address(str(path), 0)
            case Subscribe(address, channel):
                return await subscription.open(address, channel)
            case AwaitMessage(seconds):
                return await subscription.wait(seconds)
            case Send():
                return await self._send(effect)


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


async def _drop(connection: Any) -> None:
    # Without waiting for the peer: nothing more is wanted of it, and the caller may be cancelled.
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


class _Subscription:
    """One channel, listened to for as long as a flow runs."""

    def __init__(self, broker: AsyncBroker) -> None:
        self._broker = broker
        self._reading: asyncio.Task[Any] | None = None
        self.connection: Any = None

    async def open(self, address: Address, channel: str) -> Trouble | None:
        await self.close()
        try:
            async with asyncio.timeout(5.0):
                self.connection = await self._broker.connect(address)
                await self.connection.send_packed_command(
                    (pack(b"SUBSCRIBE", channel.encode()),), check_health=False
                )
                await self.connection.read_response(disable_decoding=True)
        except (RedisError, OSError) as error:
            await self.close()
            return Trouble(error, False)
        return None

    async def wait(self, seconds: float | None) -> bool | Trouble:
        # The read outlives a wait that ends before it: a read cut short would lose its message.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.connection.read_response(disable_decoding=True))
        done, _ = await asyncio.wait({self._reading}, timeout=seconds)
        if not done:
            return False
        reading, self._reading = self._reading, None
        try:
            reading.result()
        except (RedisError, OSError) as error:
            await self.close()
            return Trouble(error, False)
        return True

    async def close(self) -> None:
        connection, self.connection = self.connection, None
        reading, self._reading = self._reading, None
        if connection is not None:
            await _drop(connection)
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, RedisError, OSError):
                await reading
