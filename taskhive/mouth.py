"""A child's end of its socket: attempts come in; ends, output, progress and questions go out."""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from taskhive.errors import NoCurrentJob
from taskhive.outbox import Outbox
from taskhive.voice import Voice, own
from taskhive.wire import Kind, Reader, frame, json_frame, read_json

TOGETHER_FOR, SEVERAL_FOR = 0.002, 0.010
"""Seconds that the end of an attempt may wait for the one behind it, or for several: the last one should
not be over before the next ones were asked for."""
TOGETHER = 32
"""Ends that wait, at most: what is told is settled and read while the rest still runs."""


class Mouth:
    """Speaks for one child; any of its threads may, a process it forked may not."""

    def __init__(self, sock: socket.socket, outbox: Outbox) -> None:
        self.runs: deque[tuple[Kind, bytes]] = deque()
        """Attempts that wait here, their frames."""
        self.voice = Voice(self, 0)
        """Of the attempt that has the child for itself."""
        self.cancelled: set[int] = set()
        """Attempts that were asked to stop."""
        self.interrupt: Callable[[int, str], None] = lambda number, word: None
        """Ends one of the attempts that share the child."""
        self._sock = sock
        self._outbox = outbox
        self._waits_since: float | None = None
        self._waiting = 0
        self._frames = Reader()
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._news = threading.Condition()
        self._answers: dict[int, bytes] = {}
        self._asked = 0

    # Out

    def send(self, data: bytes) -> None:
        """Send whole frames, behind the ends that wait to be sent."""
        with self._sending:
            if self._waits_since is not None:
                data = self._outbox.contents() + data
            self._sock.sendall(data)
            if self._waits_since is not None:
                self._outbox.clear()
                self._waits_since = None
                self._waiting = 0

    def tell_end(self, data: bytes, wall: float) -> None:
        """Send the end of an attempt: with others, if more are here and they will soon be over too."""
        now = time.perf_counter()
        waits = now - self._waits_since if self._waits_since is not None else 0.0
        left = len(self.runs)
        soon = TOGETHER_FOR if left == 1 else SEVERAL_FOR
        if left and wall + waits < soon and self._waiting < TOGETHER and self._outbox.put(data):
            self._waits_since = now - waits
            self._waiting += 1
            return
        self.send(data)

    def ready(self) -> None:
        """Say that attempts may come."""
        self.send(frame(Kind.READY, b""))

    def print(self, descriptor: int, line: str) -> None:
        """Pass on one line of output; what a forked process writes goes down the pipe as it is."""
        if os.getpid() != self._pid:
            os.write(descriptor, (line + "\n").encode(errors="backslashreplace"))
            return
        (own.get() or self.voice).print(line)

    def check_process(self, what: str) -> None:
        """NoCurrentJob in a process that the handler forked."""
        if os.getpid() != self._pid:
            raise NoCurrentJob(
                f"{what} in a process that the handler forked: it has no way to the worker. Call it in "
                "the handler itself"
            )

    # In

    def wait_for_run(self) -> bool:
        """Wait until an attempt is there; False when there will be no more."""
        while not self.runs:
            with self._reading:
                if not self.runs and not self._read():
                    return False
        return True

    def _read(self) -> bool:
        data = self._sock.recv(1 << 18)
        if not data:
            return False
        others = False
        for kind, body in self._frames.feed(data):
            if kind is Kind.RUN or kind is Kind.JOIN:
                self.runs.append((kind, body))
                continue
            value, tail = read_json(body)
            if kind is Kind.ANSWER:
                self._answers[value[0]] = tail
                others = True
            elif kind is Kind.CANCEL:
                self.cancelled.add(value)
            elif kind is Kind.INTERRUPT:
                self.interrupt(*value)
            elif kind is Kind.PING:
                self.send(json_frame(Kind.PONG, value))
        if others:
            with self._news:
                self._news.notify_all()
        return True

    def is_cancelled(self, number: int) -> bool:
        """Whether somebody asked an attempt to stop; looked up without waiting."""
        if number not in self.cancelled and self._reading.acquire(blocking=False):
            try:
                while select.select([self._sock], [], [], 0)[0]:
                    if not self._read():
                        return True  # the supervisor is gone, and so shall we be
            finally:
                self._reading.release()
        return number in self.cancelled

    def ask(self, verb: str, args: list[Any]) -> Any:
        """Have the supervisor do something on the server; wait for what comes of it."""
        self.check_process("a call of a Hive")
        with self._news:
            self._asked += 1
            number = self._asked
        self.send(json_frame(Kind.ASK, [number, verb, args]))
        while number not in self._answers:
            # Whoever reads hands out what it reads: the main thread between attempts, or one of us.
            if self._reading.acquire(blocking=False):
                try:
                    if number not in self._answers and not self._read():
                        os._exit(0)
                finally:
                    self._reading.release()
            else:
                with self._news:
                    self._news.wait_for(lambda: number in self._answers, timeout=0.02)
        # The supervisor is ours: it is the child that is not to be trusted.
        answer = pickle.loads(self._answers.pop(number))
        if isinstance(answer, Exception):
            raise answer
        return answer
