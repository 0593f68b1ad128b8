"""The one thread of a `Hive` that waits for ends, on one connection, for any number of waiters."""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from taskhive.address import Address
from taskhive.board import Board, Run, Watch
from taskhive.broker import Broker, MixedReply
from taskhive.commands import Commands
from taskhive.effects import Send, Trouble, is_answer, is_message
from taskhive.errors import RedisUnavailable
from taskhive.jobs import Fetched
from taskhive.resp import pack

ROUND = 10.0
"""Seconds without a word after which the server is asked whether it is still there."""
PATIENCE = 5.0
"""Seconds it may then take."""
NOBODY = b"taskhive"
"""A channel that nobody listens to: leaving it is a question whose answer is a message, and no reply."""
_LONGEST_PAUSE = 2.0


class Mixed:
    """A connection on which messages come between the replies; its owner's thread alone uses it.

    The owner itself sends nothing that is answered otherwise than by a message.
    """

    def __init__(self, connection: Any, address: Address, heard: Callable[[Any], None]) -> None:
        self.connection = connection
        self._address = address
        self._heard = heard
        self.is_broken = False

    def takes(self, effect: Send) -> bool:
        """Whatever goes to its server, for as long as it lasts."""
        return effect.address == self._address and not effect.sentinel and not self.is_broken

    def write(self, words: bytes) -> None:
        """Send commands whose answers are messages."""
        self.connection.send_packed_command((words,), check_health=False)

    def hear(self) -> None:
        """Take in what has come, without waiting for more."""
        while self.connection.can_read(timeout=0):
            self._heard(self._next())

    def send(self, effect: Send) -> list[Any] | Trouble:
        """Send a request and read until it is answered; what comes before is for the owner."""
        try:
            self.write(effect.data)
            replies: list[Any] = []
            while len(replies) < effect.replies:
                came = self._reply()
                if is_message(came):
                    self._heard(came)
                else:
                    replies.append(came)
            if effect.echo is not None and not is_answer(replies[0], effect.echo):
                raise MixedReply("the reply of another request")
        except (RedisError, OSError) as error:
            self.is_broken = True  # a reply that is late must meet nobody
            return Trouble(error, True)
        return replies

    def _reply(self) -> Any:
        try:
            return self._next()
        except ResponseError as error:
            return error

    def _next(self) -> Any:
        return self.connection.read_response(disable_decoding=True, push_request=True)


class Listener:
    """Started at first use; a fork begins with none."""

    def __init__(self, broker: Broker, commands: Commands) -> None:
        self._broker = broker
        self._commands = commands
        self._board = Board(lambda queue: commands.keys(queue).done.encode())
        self._lock = threading.Lock()
        self._reading, self._waking = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._waking, False)
        self._stopped = False
        self._ended = False
        self._rng = random.Random()
        self._tries = 0
        """Connections in a row on which nothing was heard."""
        self._last = 0.0
        """When something was heard."""
        self._thread = threading.Thread(target=self._run, name="taskhive-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    # From any thread

    def watch(self, watches: Sequence[Watch]) -> None:
        """Deliver the end of each, now or when it comes."""
        with self._lock:
            self._board.watch(watches)
            wakes = self._board.has_work()
        if wakes:
            self._wake()

    def sent(self, watches: Sequence[Watch]) -> None:
        """The jobs of watches that were entered unsent are there now."""
        with self._lock:
            self._board.sent(watches)
            wakes = self._board.has_work()
        if wakes:
            self._wake()

    def forget(self, watches: Sequence[Watch]) -> None:
        """Nobody waits for these any more."""
        with self._lock:
            self._board.forget(watches)

    def discard(self) -> None:
        """Drop it unstarted: another thread was quicker to make one."""
        os.close(self._reading)
        os.close(self._waking)

    def stop(self) -> None:
        """End the thread and its connection; for the process that started it."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._ended:
                os.write(self._waking, b".")

    # The thread

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    self._listen()
                except (RedisError, OSError, RedisUnavailable):
                    self._tries += 1
                except Exception as error:  # noqa: BLE001 -- refused, or a bug: nobody waits in vain
                    self._tries += 1
                    self._fail(error)
                with self._lock:
                    self._board.lost()
                if not self._stopped:
                    longest = min(_LONGEST_PAUSE, 0.1 * 2 ** min(self._tries, 6))
                    time.sleep(self._rng.uniform(0.05, longest))
        finally:
            with self._lock:
                self._ended = True
                self.discard()

    def _listen(self) -> None:
        """Listen on one connection until it breaks or there is nothing more to do."""
        self._await_work()
        if self._stopped:
            return
        queue = self._commands.keys("taskhive")
        address = self._broker.run(self._commands.session.address(queue.tag))
        mixed = Mixed(self._broker.connect(address, mixed=True), address, self._heard)
        try:
            self._serve(mixed)
        finally:
            mixed.connection.disconnect()

    def _heard(self, message: Any) -> None:
        self._tries = 0
        self._last = time.monotonic()
        with self._lock:
            self._board.heard(message)

    def _await_work(self) -> None:
        """No connection is made before somebody waits."""
        while not self._stopped:
            with self._lock:
                if len(self._board):
                    return
            select.select([self._reading], [], [])
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reading, 4096):
                pass

    def _serve(self, mixed: Mixed) -> None:
        connection = mixed.connection
        poll = select.poll()
        poll.register(connection._sock.fileno(), select.POLLIN)
        poll.register(self._reading, select.POLLIN)
        self._last = time.monotonic()
        asked = -math.inf
        while not self._stopped:
            with self._lock:
                wanted = self._board.wanted()
            if wanted:
                mixed.write(pack(b"SUBSCRIBE", *wanted))
            mixed.hear()
            with self._lock:
                due = self._board.due()
            for queue, runs in due:
                try:
                    self._read(queue, runs, mixed)
                except RedisUnavailable:
                    with self._lock:
                        self._board.again(queue, runs)
                    raise
            if mixed.is_broken:
                raise OSError("the connection was lost")
            if due:
                continue
            now = time.monotonic()
            is_asked = asked >= self._last
            if is_asked and now - self._last > ROUND + PATIENCE:
                raise OSError("the subscription is silent")
            if not is_asked and now - self._last > ROUND:
                asked, is_asked = now, True
                with self._lock:
                    unwanted = self._board.unwanted()
                mixed.write(pack(b"UNSUBSCRIBE", *unwanted, NOBODY))
            wait = self._last + ROUND + (PATIENCE if is_asked else 0.0) - now
            poll.poll(max(1.0, wait * 1000 + 1))
            self._drain()

    def _read(self, queue: str, runs: list[Run], mixed: Mixed) -> None:
        fetched: list[Fetched] = self._broker.run(self._commands.fetch(queue, runs), mixed)
        with self._lock:
            over = self._board.found(queue, runs, fetched)
        for watch, got in over:
            watch.deliver(watch, got)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            watches = self._board.all()
        for watch in watches:
            watch.deliver(watch, error)
