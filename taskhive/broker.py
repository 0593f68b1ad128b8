"""The blocking broker: acts out flows for `Hive`, on connections of its own.

Connections are the client library's (they know TLS, passwords and unix sockets), but the pool and
every repetition are ours: a connection on which anything at all went wrong is closed, never used
again, so that no reply can be taken for the answer to another request.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from redis import connection as library
from redis.exceptions import RedisError, ResponseError

from taskhive import embedded
from taskhive.address import Address, Target
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


class MixedReply(RedisError):
    """A reply that belongs to another request: the connection cannot be trusted."""


def settings(
    target: Target, address: Address, sentinel: bool, io_timeout: float | None, mixed: bool
) -> dict[str, Any]:
    """Options for one connection of the client library, sync or async.

    `mixed`: it subscribes and takes requests too, which the older protocol does not allow.
    """
    chosen: dict[str, Any] = {
        "socket_timeout": io_timeout,
        "socket_connect_timeout": 5.0,
        "health_check_interval": 0,
        "protocol": 2,
        **(target.sentinel if sentinel else target.connection),
    }
    if mixed:
        chosen["protocol"] = 3
    if address.port == 0:
        chosen["path"] = address.host
        for name in ("socket_keepalive", "socket_connect_timeout"):
            chosen.pop(name, None)
    else:
        chosen["host"], chosen["port"] = address
    return chosen


class Own(Protocol):
    """A connection of somebody's own, who lets flows use it."""

    def takes(self, effect: Send) -> bool:
        """Whether it will do for this one."""
        ...

    def send(self, effect: Send) -> Any:
        """Act it out: the replies, or a `Trouble`."""
        ...


class Broker:
    """Runs flows; thread-safe, and a fork begins with no connections."""

    def __init__(self, target: Target, directory: Callable[[], Path], io_timeout: float) -> None:
        self._target = target
        self._directory = directory
        self._io_timeout = io_timeout
        self._pid = os.getpid()
        # A deque's ends are atomic: no lock, so none can be held by a thread that a fork left behind.
        self._idle: dict[tuple[Address, bool], deque[Any]] = {}

    def run(self, flow: Flow[T], own: Own | None = None) -> T:
        """Act out a flow to its end; on `own` what that takes, on idle connections the rest."""
        subscription = _Subscription(self)
        try:
            effect = next(flow)
            while True:
                if type(effect) is Send:
                    if own is not None and own.takes(effect):
                        outcome: Any = own.send(effect)
                    else:
                        outcome = self._send(effect)
                else:
                    outcome = self._other(effect, subscription)
                effect = flow.send(outcome)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            flow.close()
            if subscription.connection is not None:
                subscription.close()

    def close(self) -> None:
        """Close the idle connections; the broker may be used again."""
        idle, self._idle = self._idle, {}
        if os.getpid() != self._pid:
            return  # they belong to the parent
        for stack in idle.values():
            while stack:
                stack.pop().disconnect()

    def connect(self, address: Address, sentinel: bool = False, mixed: bool = False) -> Any:
        """A new connection, made but for `sentinel` as the URL says; `mixed`: see `settings`."""
        kind: Any = library.Connection
        if address.port == 0:
            kind = library.UnixDomainSocketConnection
        elif self._target.tls:
            kind = library.SSLConnection
        made = kind(**settings(self._target, address, sentinel, self._io_timeout, mixed))
        made.connect()
        return made

    def _send(self, effect: Send) -> Any:
        if os.getpid() != self._pid:
            self._idle, self._pid = {}, os.getpid()
        place = (effect.address, effect.sentinel)
        stack = self._idle.get(place)
        if stack is None:
            stack = self._idle.setdefault(place, deque())
        connection = None
        sent = False
        try:
            try:
                connection = stack.pop()
            except IndexError:
                connection = self.connect(effect.address, effect.sentinel)
            sent = True
            connection.send_packed_command((effect.data,), check_health=False)
            replies = [_reply(connection) for _ in range(effect.replies)]
            if effect.echo is not None and not is_answer(replies[0], effect.echo):
                raise MixedReply("the reply of another request")
        except (RedisError, OSError) as error:
            if connection is not None:
                connection.disconnect()
            return Trouble(error, sent)
        except BaseException:
            if connection is not None:
                connection.disconnect()
            raise
        # Looked up anew: meanwhile another thread may have dropped what was idle.
        self._idle.setdefault(place, stack).append(connection)
        return replies

    def _other(self, effect: Effect, subscription: _Subscription) -> Any:
        match effect:
            case Pause(seconds):
                time.sleep(seconds)
                return None
            case DropIdle():
                self.close()
                return None
            case EnsureEmbedded():
                return Address(str(embedded.ensure(self._directory())), 0)
            case Subscribe(address, channel):
                return subscription.open(address, channel)
            case AwaitMessage(seconds):
                return subscription.wait(seconds)
            case Send():
                return self._send(effect)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


class _Subscription:
    """One channel, listened to for as long as a flow runs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.connection: Any = None

    def open(self, address: Address, channel: str) -> Trouble | None:
        self.close()
        try:
            self.connection = self._broker.connect(address)
            self.connection.send_packed_command(
                (pack(b"SUBSCRIBE", channel.encode()),), check_health=False
            )
            self.connection.read_response(disable_decoding=True)
        except (RedisError, OSError) as error:
            self.close()
            return Trouble(error, False)
        return None

    def wait(self, seconds: float | None) -> bool | Trouble:
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while True:
                # A bound even where none was asked: some kernels' polls refuse huge ones.
                left = 3600.0 if deadline is None else max(0.0, deadline - time.monotonic())
                if self.connection.can_read(timeout=min(left, 3600.0)):
                    self.connection.read_response(disable_decoding=True)
                    return True
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        except (RedisError, OSError) as error:
            self.close()
            return Trouble(error, False)

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with contextlib.suppress(RedisError, OSError):  # it is of no more use either way
                connection.disconnect()
