"""Children that are only played: they take RUN frames and do what a seed says."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Protocol

from taskhive import frames
from taskhive.link import Receiver
from taskhive.wire import BadFrame, Kind, Reader, frame, json_frame, read_json
from tests.worker.simulation_ledger import OWN_ENDS, Ledger, Stay
from tests.worker.simulation_time import Channel, HostLoop, Universe

TO_RUN = (Kind.RUN, Kind.JOIN)
FATES = {
    "finish": 60,
    "raise": 9,
    "permanent": 3,
    "retry": 3,
    "hang": 3,
    "crash": 5,
    "exit": 3,
    "garbage": 3,
    "foreign frame": 1,
    "close": 2,
    "finish and die": 3,
    "finish spent": 3,
    "finish and stay": 1,
}
"""What an attempt comes to, and how often."""


class Chances:
    """What may go wrong now, and how long things take; everything by the seed."""

    def __init__(self, rng: random.Random, lease: float, timeout: float) -> None:
        self.rng = rng
        self.lease = lease
        self.timeout = timeout
        self.is_calm = False
        self.is_short = rng.random() < 0.3

    def happens(self, percent: float) -> bool:
        return not self.is_calm and self.rng.random() * 100 < percent

    def fate(self) -> str:
        if self.is_calm:
            return "finish"
        return self.rng.choices(list(FATES), list(FATES.values()))[0]

    def length(self) -> float:
        """Mostly short; some longer than several leases."""
        if self.is_short and self.rng.random() < 0.9:
            return self.rng.uniform(0.0001, 0.0009)
        longest = 0.3 if self.rng.random() < 0.85 else 1.8 * self.lease
        return self.rng.uniform(0.001, longest)

    def soon(self) -> float:
        """How long a message between processes takes."""
        return self.rng.uniform(0.0001, 0.004)


class Parent(Protocol):
    """What a played child knows of its zygote."""

    universe: Universe
    host: HostLoop
    chances: Chances
    ledger: Ledger

    def reap(self, child: PlayedChild, code: int, why: str) -> None: ...


class PlayedLink:
    """The supervisor's end of a played child; what is sent takes a moment."""

    def __init__(self, child: PlayedChild) -> None:
        self._child = child
        self._down = Channel(child.universe, child.chances.soon)
        self._up = Channel(child.universe, child.chances.soon)
        self._inbox = bytearray()
        self._reader = Reader()
        self._receiver: Receiver | None = None
        self._is_listening = False
        self._has_ended = False
        self.unread: list[bytes] = []
        self.written = 0

    def listen(self, receiver: Receiver) -> None:
        self._receiver, self._is_listening = receiver, True

    def send(self, data: bytes) -> None:
        self.unread.append(data)

        def arrive() -> None:
            if self._child.is_alive:
                self.unread.remove(data)
                self._child.receive(data)

        self._down.send(arrive)

    def shut(self) -> None:
        self._down.send(self._child.leave)

    def arrive(self, data: bytes) -> None:
        """Bytes of the child are in the buffer at once; that they are is noticed in a while."""
        self._inbox += data
        self._up.send(self._readable, self._child.host)

    def arrive_end(self) -> None:
        self._has_ended = True
        self._up.send(self._readable, self._child.host)

    def _readable(self) -> None:
        if not self._is_listening or self._receiver is None:
            return
        data, self._inbox = bytes(self._inbox), bytearray()
        if not data:
            if self._has_ended:
                self._is_listening = False
                self._receiver.broken("closed its socket")
            return
        came: list[tuple[Kind, bytes]] = []
        try:
            came.extend(self._reader.feed(data))
        except BadFrame as error:
            self._is_listening = False
            if not came or self._hand_on(came):
                self._receiver.broken(f"sent what is no frame: {error}")
            return
        self._hand_on(came)

    def _hand_on(self, came: list[tuple[Kind, bytes]]) -> bool:
        assert self._receiver is not None
        try:
            self._receiver.received(came)
        except BadFrame as error:
            self._is_listening = False
            self._receiver.broken(f"sent what is no frame: {error}")
            return False
        return True

    def drain(self) -> None:
        while self._is_listening and self._inbox:
            self._readable()
        self._is_listening = False

    def unsent(self) -> list[tuple[Kind, bytes]]:
        return []

    def left_unread(self) -> bool:
        return bool(self.unread)

    def stack_size(self) -> int:
        return self.written

    def stack(self) -> str:
        return "(a stack)"

    def close(self) -> None:
        self._is_listening = False


class PlayedChild:
    """One child."""

    def __init__(self, parent: Parent, slot: int, pid: int) -> None:
        self.universe, self.chances, self.host = parent.universe, parent.chances, parent.host
        self.slot, self.pid = slot, pid
        self.is_alive = True
        self.link = PlayedLink(self)
        self._zygote = parent
        self._ledger = parent.ledger
        self._reader = Reader()
        self._runs: deque[bytes] = deque()
        self._stay: Stay | None = None
        self._together: dict[int, Stay] = {}
        """Attempts that share it."""
        self._is_held = False
        """One of them holds the interpreter: nothing moves."""
        self._is_leaving = False
        self._is_mute = False
        self._stays = False

    def say(self, data: bytes) -> None:
        if not self._is_mute:
            self.link.arrive(data)

    def start(self) -> None:
        if self.chances.happens(4):
            self.die(1, "not started")
        else:
            self.say(frame(Kind.READY, b""))

    def receive(self, data: bytes) -> None:
        if not self.is_alive:
            return
        if self._is_mute:
            # What comes to run beside others counts as begun when it was sent.
            for kind, body in self._reader.feed(data):
                if kind is Kind.JOIN:
                    self._take_in(body)
            return
        for kind, body in self._reader.feed(data):
            match kind:
                case Kind.RUN:
                    self._runs.append(body)
                case Kind.JOIN:
                    self._begin(body, together=True)
                case Kind.PING if not self._is_held:
                    self.say(json_frame(Kind.PONG, read_json(body)[0]))
                case Kind.INTERRUPT if not self._is_held:
                    self._interrupt(*read_json(body)[0])
        self._next()

    def _interrupt(self, number: int, word: str) -> None:
        stay = self._together.get(number)
        if stay is not None and self.chances.rng.random() < 0.8:
            self._ledger.figures["interrupted"] += 1
            self._end(stay, number, 0.01, "raise")

    def leave(self) -> None:
        """There is nothing more for it: it ends after what it has."""
        self._is_leaving = True
        self._next()

    def _next(self) -> None:
        if not self.is_alive or self._stay is not None or self._together:
            return
        if self._runs:
            self._begin(self._runs.popleft())
        elif self._is_leaving and not self._is_mute and not self._stays:
            self.die(0, "left")

    def _begin(self, body: bytes, together: bool = False) -> None:
        (number, queue, id, fence, _, _, _), payload = read_json(body)
        told = json.loads(payload)
        stay = Stay(
            queue,
            id,
            fence,
            self.host.name,
            told["strict"] and queue == "work",
            self.universe.now,
            self.chances.timeout,
        )
        if together:
            self._together[number] = stay
            if len(self._together) > 1:
                self._ledger.figures["attempts together"] += 1
        else:
            self._stay = stay
        self._ledger.began(stay)
        fate, length = self.chances.fate(), self.chances.length()
        if self.chances.happens(10):
            self.say(json_frame(Kind.OUTPUT, [number, "a line"]))
        if self.chances.happens(10):
            self.say(json_frame(Kind.PROGRESS, [number, {"done": 1, "total": 2}]))
        if fate == "hang":
            if together and self.chances.rng.random() < 0.5:
                self._is_held = True
            return
        self.universe.after(length, lambda: self._end(stay, number, length, fate))

    def _end(self, stay: Stay, number: int, length: float, fate: str) -> None:
        if not self.is_alive or stay.end is not None or self._is_held:
            return
        is_only = len(self._together) < 2
        match fate:
            case "crash":
                return self.die(self.chances.rng.choice((-11, -9, -6)), "crashed")
            case "exit":
                return self.die(self.chances.rng.choice((0, 3)), "crashed")
            case "garbage":
                # It goes on as if nothing had happened; its worker must not.
                stay.fate = "garbage" if is_only else "beside garbage"
                self.say(self.chances.rng.randbytes(40) + b"\xff" * 9)
                self._is_mute = True
                return None
            case "foreign frame":
                stay.fate = "garbage" if is_only else "beside garbage"
                self.say(frame(Kind.FINISHED, b"short"))
                self._is_mute = True
                return None
            case "close":
                stay.fate = "closed" if is_only else "beside closed"
                self._is_mute = True
                self.link.arrive_end()
                return None
        self._stay = None
        self._together.pop(number, None)
        if fate in ("raise", "permanent", "retry"):
            self._ledger.ended(stay, self.universe.now, "permanent" if fate == "permanent" else "raised")
            kind = "permanent" if fate == "permanent" else "error"
            after = 0.2 if fate == "retry" else None
            record = json.dumps({"type": "ValueError", "message": "no"}).encode()
            told = frames.raised(kind, after, None, record)
            self.say(frames.over(Kind.RAISED, number, length, 0.0, 0, False, told))
        else:
            self._ledger.ended(stay, self.universe.now, "finished")
            spent = fate == "finish spent"
            self.say(frames.over(Kind.FINISHED, number, length, 0.0, 0, spent, b"1"))
        if fate == "finish and die":
            self.universe.after(self.chances.soon(), lambda: self.die(-11, "crashed"))
        else:
            # It goes on as it should; but when it is to leave, it does not: threads that never end.
            self._stays = self._stays or fate == "finish and stay"
            self._next()

    def die(self, code: int, why: str) -> None:
        """Dead, and reaped a moment later; its socket ends before or after that is told."""
        if not self.is_alive:
            return
        self.is_alive = False
        running = [*self._together.values(), *([self._stay] if self._stay is not None else [])]
        # Of several that share a child nobody knows who did it: none may be charged.
        told = f"beside {why}" if len(running) > 1 and why in OWN_ENDS else why
        told = "held" if len(running) > 1 and self._is_held else told
        for stay in running:
            self._ledger.ended(stay, self.universe.now, stay.fate or told)
        self.link.arrive_end()
        self._zygote.reap(self, code, why)

    def bequeath(self) -> None:
        """Note what nobody can know to be unbegun: what it had read, or what came in several pieces."""
        pieces = self.link.unread if len(self.link.unread) > 1 else []
        on_the_way = [body for kind, body in Reader().feed(b"".join(pieces)) if kind in TO_RUN]
        for body in [*self._runs, *on_the_way]:
            self._take_in(body)

    def _take_in(self, body: bytes) -> None:
        (_, queue, _, fence, *_), _ = read_json(body)
        self._ledger.taken_in.add((queue, fence))
