"""The steps of a walk: each knows its script call, and what the model says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.store import walker_state
from tests.store.model import Queue
from tests.store.model_values import Item, Renewal, Settle

Generation = Callable[[int], int]
"""From the server's generation numbers to the model's, which has a count of its own."""


@dataclass(frozen=True)
class Op:
    """One call of one script on a queue ("main") or its fail lane ("lane")."""

    queue: str
    call: str

    @property
    def verb(self) -> str:
        return type(self).__name__.lower()

    @property
    def special(self) -> dict[str, str]:
        return {}

    def args(self) -> list[bytes]:
        raise NotImplementedError

    def expect(self, model: Queue, clock: int) -> Any:
        """Let the model do it; its reply."""
        raise NotImplementedError

    def read(self, reply: list[Any], generation: Generation) -> Any:
        """The server's reply, behind the call id, as the model would say it."""
        return reply[0]


@dataclass(frozen=True)
class Dispatch(Op):
    items: tuple[Item, ...]

    def args(self) -> list[bytes]:
        words = []
        for item in self.items:
            spec = item.spec.encode().encode() if item.spec else b""
            words += [item.id.encode(), item.payload, spec]
        return words

    def expect(self, model: Queue, clock: int) -> Any:
        return model.dispatch(clock, self.items)

    def read(self, reply: list[Any], generation: Generation) -> Any:
        return [(word[:1].decode(), generation(int(word[1:]))) for word in reply[1]]


@dataclass(frozen=True)
class Exchange(Op):
    worker: str
    want: int
    length: int
    by_hand: bool = False
    settles: tuple[Settle, ...] = ()
    renewals: tuple[Renewal, ...] = ()

    @property
    def special(self) -> dict[str, str]:
        return {"request": f"request:{self.worker}"}

    def args(self) -> list[bytes]:
        words = [b"1" if self.queue == "main" else b"0", b"%d" % self.want, b"%d" % self.length]
        words += [b"%d" % self.by_hand, b"%d" % len(self.settles)]
        for settle in self.settles:
            words += [settle.id.encode(), settle.token.encode(), settle.outcome.encode()]
            words += [settle.kind.encode(), b"%d" % settle.delay, b"%d" % settle.ttl, settle.body]
            words.append(settle.note)
        for renewal in self.renewals:
            words += [renewal.id.encode(), renewal.token.encode()]
            words += [b"%d" % renewal.started, renewal.progress]
        return words

    def expect(self, model: Queue, clock: int) -> Any:
        return model.exchange(
            clock,
            self.worker,
            self.call,
            self.want,
            self.length,
            self.by_hand,
            self.settles,
            self.renewals,
        )

    def read(self, reply: list[Any], generation: Generation) -> Any:
        settled, renewed, rows, due, paused = reply
        leases = [walker_state.leased(row) for row in rows]
        for row in leases:
            row["g"] = generation(row["g"])
        return [[word.decode() for word in settled], renewed, leases, due, paused]


@dataclass(frozen=True)
class Cancel(Op):
    id: str
    mode: str = "kill"
    grace: int = 0

    def args(self) -> list[bytes]:
        return [self.id.encode(), self.mode.encode(), b"%d" % self.grace]

    def expect(self, model: Queue, clock: int) -> Any:
        return model.cancel(clock, self.call, self.id, self.mode)


@dataclass(frozen=True)
class Remove(Op):
    id: str

    def args(self) -> list[bytes]:
        return [self.id.encode()]

    def expect(self, model: Queue, clock: int) -> Any:
        return model.remove(clock, self.call, self.id)


@dataclass(frozen=True)
class Revive(Op):
    id: str

    def args(self) -> list[bytes]:
        return [self.id.encode()]

    def expect(self, model: Queue, clock: int) -> Any:
        return model.revive(clock, self.call, self.id)


@dataclass(frozen=True)
class Sweep(Op):
    def args(self) -> list[bytes]:
        return [b"1" if self.queue == "main" else b"0"]

    def expect(self, model: Queue, clock: int) -> Any:
        return model.sweep(clock)

    def read(self, reply: list[Any], generation: Generation) -> Any:
        return [id.decode() for id in reply[0]]


@dataclass(frozen=True)
class Purge(Op):
    state: str
    age: int
    moment: int = 0
    limit: int = 1000
    skip: int = 0

    @property
    def special(self) -> dict[str, str]:
        return {"set": self.state}

    def args(self) -> list[bytes]:
        numbers = (self.age, self.moment, self.limit, self.skip)
        return [self.state.encode(), *(b"%d" % number for number in numbers)]

    def expect(self, model: Queue, clock: int) -> Any:
        numbers = (self.age, self.moment, self.limit, self.skip)
        return model.purge(clock, self.call, self.state, *numbers)

    def read(self, reply: list[Any], generation: Generation) -> Any:
        return reply


@dataclass(frozen=True)
class Configure(Op):
    pairs: tuple[tuple[str, str], ...]

    def args(self) -> list[bytes]:
        return [word.encode() for pair in self.pairs for word in pair]

    def expect(self, model: Queue, clock: int) -> Any:
        return model.configure(clock, self.call, self.pairs)


@dataclass(frozen=True)
class Account(Op):
    spent: tuple[tuple[str, int], ...]

    def args(self) -> list[bytes]:
        return [word.encode() for name, value in self.spent for word in (name, str(value))]

    def expect(self, model: Queue, clock: int) -> Any:
        return model.account(clock, self.call, self.spent)


@dataclass(frozen=True)
class Fetch(Op):
    runs: tuple[tuple[str, int | None, int | None], ...]
    """Id, generation as the model counts it, and as the server does."""

    def args(self) -> list[bytes]:
        words = [(id, "" if number is None else str(number)) for id, _, number in self.runs]
        return [word.encode() for pair in words for word in pair]

    def expect(self, model: Queue, clock: int) -> Any:
        return model.fetch(clock, [(id, generation) for id, generation, _ in self.runs])

    def read(self, reply: list[Any], generation: Generation) -> Any:
        return [walker_state.fetched(row, generation) for row in reply[0]]


@dataclass(frozen=True)
class Stats(Op):
    def args(self) -> list[bytes]:
        return []

    def expect(self, model: Queue, clock: int) -> Any:
        return model.stats(clock)

    def read(self, reply: list[Any], generation: Generation) -> Any:
        return reply[:7]
