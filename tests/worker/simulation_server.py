"""The queue's model as a server behind a network that loses, repeats and delays."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from taskhive.errors import RedisUnavailable
from taskhive.parcels import Exchanged, Leased
from tests.store.model import Queue
from tests.store.model_values import Item, Renewal, Settle
from tests.worker.simulation_children import Chances
from tests.worker.simulation_ledger import Ledger, Violation
from tests.worker.simulation_time import HostLoop, Universe

PATIENCE = 20.0
Rung = Callable[[str], None]
Hinted = Callable[[str, str], None]


class WatchedQueue(Queue):
    """The model, with every end of a lease entered in the ledger."""

    def __init__(
        self, name: str, ledger: Ledger, effects: Counter[str], lane: WatchedQueue | None = None
    ):
        super().__init__(effects, lane)
        self.name = name
        self.ledger = ledger

    def settle(self, offer: Settle) -> str:
        entry = self.entries.get(offer.id)
        marked = entry is not None and entry.lease is not None and entry.lease.cancelled
        answer = super().settle(offer)
        self.ledger.figures[f"answers {answer}"] += 1
        if answer == "OK":
            outcome = "cancelled" if marked else offer.outcome
            kind = "" if marked else offer.kind
            self.ledger.settled(self.name, offer.id, offer.token, outcome, kind, offer.delay)
        return answer

    def sweep_one(self, id: str) -> None:
        lease = self.entries[id].lease
        assert lease is not None
        super().sweep_one(id)
        entry = self.entries.get(id)
        if entry is None or entry.lease is not lease:
            self.ledger.swept(self.name, id, lease.token, lease.started, lease.cancelled)


class Server:
    """One queue and its fail lane."""

    def __init__(self, universe: Universe, chances: Chances, ledger: Ledger) -> None:
        self.universe, self.chances, self.ledger = universe, chances, ledger
        self.effects: Counter[str] = Counter()
        self._calls = itertools.count()
        lane = WatchedQueue("work:fail", ledger, self.effects)
        self.main = WatchedQueue("work", ledger, self.effects, lane)
        self.lane = lane
        self.queues = {"work": self.main, "work:fail": lane}
        self.away_until = 0.0
        self.listeners: dict[HostLoop, tuple[Rung, Hinted]] = {}

    def call(self) -> str:
        """A name for one request of a client, under which it may come again."""
        return f"call {next(self._calls)}"

    def clock(self) -> int:
        return 1_000_000 + int(self.universe.now * 1000)

    def act(self, call: Callable[[int], Any]) -> Any:
        """One call, and what it makes ring."""
        before = {name: len(queue.ready()) for name, queue in self.queues.items()}
        answer = call(self.clock())
        self.check()
        for name, queue in self.queues.items():
            if len(queue.ready()) > before[name]:
                self.publish(partial(_ring, name))
        return answer

    def publish(self, tell: Callable[[tuple[Rung, Hinted]], None]) -> None:
        for host, heard in list(self.listeners.items()):
            if self.chances.happens(15) or self.universe.now < self.away_until:
                self.ledger.figures["lost bells"] += 1
                continue
            self.universe.after(self.chances.soon(), partial(tell, heard), host)

    def check(self) -> None:
        """Nothing is created or gone but by an end that is counted."""
        for queue in self.queues.values():
            counters = queue.counters
            here = sum((e.waiting is not None) + (e.running is not None) for e in queue.entries.values())
            ended = sum(counters[n] for n in ("succeeded", "failed", "cancelled", "merged"))
            if counters["created"] != here + ended:
                raise Violation(f"{counters['created']} created, {here} here, {ended} ended")
        if self.lane.counters["created"] != self.main.counters["failed"]:
            raise Violation("not one failure job for each failure")

    # Clients

    def dispatch(self, item: Item) -> None:
        self.act(lambda clock: self.main.dispatch(clock, [item]))

    def cancel(self, id: str, mode: str) -> None:
        call = self.call()
        self.act(lambda clock: self.main.cancel(clock, call, id, mode))
        entry = self.main.entries.get(id)
        if entry is not None and entry.lease is not None:
            token = entry.lease.token
            words = f"cancel {id} {token} 0" if mode == "kill" else f"ask {id} {token}"
            self.publish(lambda heard: heard[1]("work", words))


def _ring(name: str, heard: tuple[Rung, Hinted]) -> None:
    heard[0](name)


Request = Callable[[int], Any]


class PlayedCommands:
    """The operations that a supervisor uses, as calls of the model."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.session = SimpleNamespace(command=lambda *words: lambda clock: b"PONG")

    def configure(self, queue: str, **values: str) -> Request:
        call, pairs = self._server.call(), list(values.items())
        return lambda clock: self._server.queues[queue].configure(clock, call, pairs)

    def exchange(
        self,
        queue: str,
        *,
        want: int,
        lease_ms: int,
        worker: str,
        request: str,
        settles: Sequence[Any],
        renewals: Sequence[Any],
    ) -> Request:
        offers = [
            Settle(s.id, s.token, s.outcome, s.kind, s.delay_ms, s.ttl_ms, s.body, s.note)
            for s in settles
        ]
        kept = [Renewal(r.id, r.token, r.started, r.progress) for r in renewals]

        def apply(clock: int) -> Exchanged:
            settled, renewed, rows, due, paused = self._server.queues[queue].exchange(
                clock, worker, request, want, lease_ms, False, offers, kept
            )
            due_in = due / 1000 if due >= 0 else None
            return Exchanged(settled, renewed, [_leased(row) for row in rows], due_in, bool(paused))

        return apply


def _leased(row: dict[str, Any]) -> Leased:
    fields: dict[bytes, Any] = {}
    for name in "artscTCM":
        if row[name]:
            fields[name.encode()] = row[name]
    if row["q"]:
        fields[b"q"] = ",".join(row["q"]).encode()
    for name in "izbn":
        if row[name] is not None:
            value = row[name]
            fields[name.encode()] = value if isinstance(value, bytes) else value.encode()
    return Leased(row["id"], row["token"], row["payload"], row["created"], fields)


class PlayedRunner:
    """Brings requests to the server and answers back, as well as the network allows."""

    def __init__(self, server: Server, host: HostLoop) -> None:
        self._server = server
        self._host = host

    async def run(self, request: Any) -> Any:
        """The same request until it is answered, as long as the patience lasts."""
        universe, rng = self._server.universe, self._server.chances.rng
        deadline = universe.now + PATIENCE
        while True:
            answer: asyncio.Future[Any] = self._host.create_future()
            self._send(request, answer)
            is_answered, reply = await answer
            if is_answered:
                return reply
            if universe.now >= deadline:
                raise RedisUnavailable("the simulated server", PATIENCE, None)
            await asyncio.sleep(rng.uniform(0.01, 0.3))

    def _send(self, request: Request, answer: asyncio.Future[Any]) -> None:
        server = self._server
        universe, chances = server.universe, server.chances
        figures = server.ledger.figures

        def arrive(tell: bool = True) -> None:
            if universe.now < server.away_until:
                self._fail(answer, 0.2)
                return
            reply = server.act(request)
            if tell:
                universe.after(chances.soon(), lambda: _resolve(answer, (True, reply)), self._host)

        if chances.happens(4):
            figures["lost requests"] += 1
            self._fail(answer, chances.rng.uniform(0.01, 1.0))
        elif chances.happens(5):
            figures["lost replies"] += 1
            universe.after(chances.soon(), lambda: arrive(False))
            self._fail(answer, chances.rng.uniform(0.01, 1.0))
        elif chances.happens(3):
            figures["late requests"] += 1  # given up and sent again while it was still on its way
            universe.after(chances.rng.uniform(0.1, 3.0), lambda: arrive(False))
            self._fail(answer, chances.rng.uniform(0.01, 0.5))
        elif chances.happens(3):
            figures["repeated requests"] += 1
            universe.after(chances.soon(), arrive)
            universe.after(chances.rng.uniform(0.01, 3.0), lambda: arrive(False))
        elif chances.happens(5):
            figures["slow requests"] += 1
            universe.after(chances.rng.uniform(0.1, 2.0), arrive)
        else:
            universe.after(chances.soon(), arrive)

    def _fail(self, answer: asyncio.Future[Any], seconds: float) -> None:
        self._server.universe.after(seconds, lambda: _resolve(answer, (False, None)), self._host)


def _resolve(answer: asyncio.Future[Any], outcome: tuple[bool, Any]) -> None:
    if not answer.done():
        answer.set_result(outcome)
