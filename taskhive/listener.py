"""The one thread of a `Hive` that waits for ends, on one connection, for any number of waiters."""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError

from taskhive.board import Board, Watch
from taskhive.broker import Broker
from taskhive.commands import Commands
from taskhive.errors import RedisUnavailable
from taskhive.jobs import Fetched
from taskhive.resp import pack

ROUND = 10.0
"""Seconds without a word after which the server is asked whether it is still there."""
PATIENCE = 5.0
"""Seconds it may then take."""
_LONGEST_PAUSE = 2.0


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
        connection = self._broker.connect(address)
        try:
            self._serve(connection)
        finally:
            connection.disconnect()

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

    def _serve(self, connection: Any) -> None:
        poll = select.poll()
        poll.register(connection._sock.fileno(), select.POLLIN)
        poll.register(self._reading, select.POLLIN)
        last = time.monotonic()
        asked = False
        while not self._stopped:
            with self._lock:
                wanted = self._board.wanted()
            if wanted:
                connection.send_packed_command((pack(b"SUBSCRIBE", *wanted),), check_health=False)
            while connection.can_read(timeout=0):
                message = connection.read_response(disable_decoding=True)
                last, asked = time.monotonic(), False
                self._tries = 0
                with self._lock:
                    self._board.heard(message)
            with self._lock:
                due = self._board.due()
            for queue, runs in due:
                try:
                    self._read(queue, runs)
                except RedisUnavailable:
                    with self._lock:
                        self._board.again(queue, runs)
                    raise
            if due:
                continue
            now = time.monotonic()
            if asked and now - last > ROUND + PATIENCE:
                raise OSError("the subscription is silent")
            if not asked and now - last > ROUND:
                asked = True
                with self._lock:
                    unwanted = self._board.unwanted()
                words = pack(b"PING") + (pack(b"UNSUBSCRIBE", *unwanted) if unwanted else b"")
                connection.send_packed_command((words,), check_health=False)
            wait = last + ROUND + (PATIENCE if asked else 0.0) - now
            poll.poll(max(1.0, wait * 1000 + 1))
            self._drain()

    def _read(self, queue: str, runs: list[tuple[str, int | None]]) -> None:
        fetched: list[Fetched] = self._broker.run(self._commands.fetch(queue, runs))
        with self._lock:
            over = self._board.found(queue, runs, fetched)
        for watch, got in over:
            watch.deliver(watch, got)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            watches = self._board.all()
        for watch in watches:
            watch.deliver(watch, error)
