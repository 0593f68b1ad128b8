"""Who walks: clients and workers that choose the next step at random, faults included."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.store.model import Full, Queue
from tests.store.model_values import Item, Renewal, Settle, Spec
from tests.store.walker import WORKERS, Walker
from tests.store.walker_ops import (
    Account,
    Cancel,
    Configure,
    Dispatch,
    Exchange,
    Fetch,
    Op,
    Purge,
    Remove,
    Revive,
    Stats,
    Sweep,
)

NAMES = ("a", "b", "c", "d")
STATES = ("ready", "delayed", "blocked", "succeeded", "failed", "cancelled")
KINDS = ("error", "error", "timeout", "cpu", "memory", "crash", "stall", "lost")
OUTCOMES = ("done", "done", "again", "again", "fail", "release", "release", "cancelled")
JUMPS = (-5000, 5000, 60_000)
PAUSES = (0, 0, 1, 50, 200, 400, 800)
MOVES = {
    "dispatch": 25,
    "exchange": 36,
    "stale_exchange": 5,
    "resend": 12,
    "cancel": 4,
    "sweep": 5,
    "purge": 2,
    "remove": 2,
    "revive": 4,
    "configure": 3,
    "pause": 2,
    "stats": 1,
    "fetch": 2,
    "account": 1,
    "flush": 1,
    "jump": 3,
    "die": 3,
}
"""What a crew may do next, and how often it does."""
SETTINGS = {
    "depth": ("2", "5", "", ""),
    "max_stalls": ("0", "1", ""),
    "min_backoff": ("100", "1500", ""),
    "max_backoff": ("1000", "3000", ""),
    "result_ttl": ("0", "700", "-1", ""),
    "limit": ("0", "1", "2", "2", "", "", "", ""),
    "events": ("0", "", ""),
    "failure_ttl": ("0", "700", "90000", "-1", ""),
}


@dataclass(frozen=True)
class Held:
    """A lease as its worker knows it, or remembers it."""

    queue: str
    id: str
    token: str
    outcome: str = ""


class Crew:
    """The clients of one walk. What they know, they know from replies that reached them."""

    def __init__(self, walker: Walker, rng: random.Random) -> None:
        self.walker, self.rng = walker, rng
        self.held: dict[str, list[Held]] = {worker: [] for worker in WORKERS}
        self.spent: list[Held] = []
        self.unanswered: dict[tuple[str, str], Exchange] = {}
        self.lost: list[Op] = []
        self.calls = 0
        self.made = 0

    # Chances

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def maybe(self, percent: int, *values: Any) -> Any:
        return self.rng.choice(values) if self.chance(percent) else None

    def call(self) -> str:
        self.calls += 1
        return f"c{self.calls}"

    def queue(self) -> str:
        return "lane" if self.chance(15) else "main"

    def model(self, queue: str) -> Queue:
        return self.walker.models[queue]

    # One step

    def step(self) -> None:
        self.walker.advance(self.rng.choice(PAUSES))
        (move,) = self.rng.choices(list(MOVES), list(MOVES.values()))
        getattr(self, move)()

    def send(self, op: Op) -> None:
        """Send it; the reply may get lost, and then it is sent again, at once or later."""
        reply = self.walker.do(op)
        self.walker.figures["requests"] += 1
        if not self.chance(14):
            self.answered(op, reply)
            return
        self.walker.figures["lost replies"] += 1
        if isinstance(op, Exchange):
            self.unanswered[op.queue, op.worker] = op
        elif not isinstance(op, (Stats, Fetch)):
            self.lost.append(op)

    def answered(self, op: Op, reply: Any) -> None:
        if not isinstance(op, Exchange) or reply is Full:
            return
        mine = self.held[op.worker]
        for settle, _ in zip(op.settles, reply[0], strict=True):
            self.forget(op.worker, settle.token, settle.outcome)
        for renewal, kept in zip(op.renewals, reply[1], strict=True):
            if kept == 0:
                self.forget(op.worker, renewal.token, "")
        known = {one.token for one in mine}
        for row in reply[2]:
            if row["token"] not in known:
                mine.append(Held(op.queue, row["id"], row["token"]))

    def forget(self, worker: str, token: str, outcome: str) -> None:
        for one in self.held[worker]:
            if one.token == token:
                self.held[worker].remove(one)
                self.spent = [*self.spent, Held(one.queue, one.id, token, outcome)][-40:]
                return

    # Faults

    def resend(self) -> None:
        """The same bytes once more; of a worker's exchanges only the last one can be sent again."""
        waiting = sorted(self.unanswered)
        if waiting and (not self.lost or self.chance(60)):
            where = self.rng.choice(waiting)
            op: Op = self.unanswered[where]
            reply = self.walker.do(op, resent=True)
            if self.chance(75):
                del self.unanswered[where]
                self.answered(op, reply)
        elif self.lost:
            op = self.rng.choice(self.lost[-10:])
            self.walker.do(op, resent=True)
            if self.chance(60):
                self.lost.remove(op)
        else:
            self.exchange()

    def flush(self) -> None:
        self.walker.flush()

    def jump(self) -> None:
        self.walker.jump(self.rng.choice(JUMPS))

    def die(self) -> None:
        """A worker is gone with all it knew; its tokens may turn up again, as a zombie's would."""
        worker = self.rng.choice(WORKERS)
        for one in self.held[worker]:
            self.spent = [*self.spent, one][-40:]
        self.held[worker] = []
        for queue in ("main", "lane"):
            self.unanswered.pop((queue, worker), None)
        self.sweep()

    # Dispatch

    def dispatch(self) -> None:
        queue = self.queue()
        size = self.rng.choice((1, 1, 1, 2, 4))
        self.send(Dispatch(queue, self.call(), tuple(self.item() for _ in range(size))))

    def item(self) -> Item:
        self.made += 1
        payload = b"p%d" % self.made
        named = self.chance(75)
        id = self.rng.choice(NAMES) if named else f"g{self.made:05}"
        if not named and self.chance(50):
            return Item(id, payload)
        return Item(id, payload, self.spec(f"n{self.made}" if named else None))

    def spec(self, request: str | None) -> Spec:
        now = self.walker.clock
        rng = self.rng
        words: dict[str, Any] = {"request": request}
        timed = rng.choice(("", "", "delay", "at"))
        if timed == "delay":
            words["delay"] = rng.choice((0, 1, 300, 1500, 4000))
        elif timed == "at":
            words["at"] = now + rng.choice((-3000, -1, 0, 200, 1000, 3000))
        if self.chance(20):
            words[rng.choice(("lasts", "lasts", "expires"))] = rng.choice((0, 300, 1500, 4000))
            if "expires" in words:
                words["expires"] += now
        words["priority"] = self.maybe(30, 0, 99, 100, 101, 255)
        words["text"] = self.maybe(30, '{"timeout":1}', '{"timeout":2}', "{}")
        words["max_stalls"] = self.maybe(15, 0, 1, 5)
        words["result_ttl"] = self.maybe(20, -1, 0, 1, 900, 100_000)
        words["failure_ttl"] = self.maybe(20, -1, 0, 1, 900, 100_000)
        if request is not None:
            words["join"] = self.chance(12)
            words["update_data"] = self.chance(50)
            words["update_options"] = self.chance(40)
            words["reset_counts"] = self.chance(40)
            words["update_run_at"] = rng.choice(("keep", "set", "later", "earlier"))
        return Spec(**words)

    # Exchange

    def exchange(self) -> None:
        rng = self.rng
        worker = rng.choice(WORKERS)
        queue = self.queue()
        if (queue, worker) in self.unanswered:
            return self.resend_of(queue, worker)
        mine = [one for one in self.held[worker] if one.queue == queue]
        rng.shuffle(mine)
        done = mine[: rng.choice((0, 1, 1, 2, 3))]
        kept = [one for one in mine[len(done) :] if self.chance(50)]
        settles = [self.settle(one) for one in done] + self.refused(queue, rng.choice((0, 0, 0, 1, 2)))
        rng.shuffle(settles)
        renewals = [self.renewal(one) for one in kept]
        if self.chance(15):
            renewals += [self.renewal(one) for one in self.refused(queue, 1)]
        self.send(
            Exchange(
                queue,
                self.call(),
                worker,
                rng.choice((0, 1, 1, 2, 5)),
                rng.choice((900, 1500, 2500, 6000)),
                self.chance(30),
                tuple(settles),
                tuple(renewals),
            )
        )
        return None

    def resend_of(self, queue: str, worker: str) -> None:
        op = self.unanswered.pop((queue, worker))
        self.answered(op, self.walker.do(op, resent=True))

    def stale_exchange(self) -> None:
        """Nothing but offers that come too late, to see that they change nothing."""
        queue = self.queue()
        worker = self.rng.choice(WORKERS)
        if (queue, worker) in self.unanswered:
            return self.resend_of(queue, worker)
        settles = self.refused(queue, 2)
        late = [Renewal(one.id, one.token, True) for one in self.refused(queue, 1)]
        op = Exchange(queue, self.call(), worker, 0, 2500, False, tuple(settles), tuple(late))
        self.send(op)
        return None

    def settle(self, held: Held) -> Settle:
        rng = self.rng
        outcome = rng.choice(OUTCOMES)
        kind = ""
        if outcome == "again":
            kind = rng.choice(KINDS)
        elif outcome == "fail":
            kind = rng.choice(("error", "permanent", "timeout", "crash", ""))
        delay = rng.choice((0, 0, 300, 2000))
        if outcome == "release":
            delay = rng.choice((-1, -1, 0, 600))
        ttl = rng.choice((-2, -2, -1, 0, 1, 800))
        body = b"b%d" % rng.randrange(100)
        note = b"n%d" % rng.randrange(100) if self.chance(30) else b""
        return Settle(held.id, held.token, outcome, kind, delay, ttl, body, note)

    def renewal(self, held: Held | Settle) -> Renewal:
        progress = b"%d %%" % self.rng.randrange(100) if self.chance(40) else b""
        return Renewal(held.id, held.token, self.chance(60), progress)

    def refused(self, queue: str, number: int) -> list[Settle]:
        """Offers that are most probably too late: old tokens, another id's, and invented ones."""
        offers = []
        for _ in range(number):
            past = [one for one in self.spent if one.queue == queue]
            if not past or self.chance(10):
                made_up = f"{self.rng.randrange(1, 9)}.{self.rng.choice(('zz', 'c1'))}"
                offers.append(self.settle(Held(queue, self.rng.choice(NAMES), made_up)))
                continue
            one = self.rng.choice(past)
            id = self.rng.choice(NAMES) if self.chance(10) else one.id
            offer = self.settle(Held(queue, id, one.token))
            if one.outcome and self.chance(35):
                kind = self.rng.choice(KINDS) if one.outcome == "again" else ""
                offer = Settle(id, one.token, one.outcome, kind, offer.delay, offer.ttl, offer.body)
            offers.append(offer)
        return offers

    # By hand

    def some_id(self, queue: str) -> str:
        model = self.model(queue)
        known = sorted([*model.entries, *model.ended])
        if not known or self.chance(30):
            return self.rng.choice(NAMES)
        return self.rng.choice(known)

    def cancel(self) -> None:
        queue = self.queue()
        mode = "ask" if self.chance(30) else "kill"
        self.send(Cancel(queue, self.call(), self.some_id(queue), mode))

    def remove(self) -> None:
        queue = self.queue()
        self.send(Remove(queue, self.call(), self.some_id(queue)))

    def revive(self) -> None:
        queue = self.queue()
        dead = [id for _, id in self.model(queue).kept("failed")]
        id = self.rng.choice(dead) if dead and self.chance(85) else self.some_id(queue)
        self.send(Revive(queue, self.call(), id))

    def sweep(self) -> None:
        self.send(Sweep(self.queue(), self.call()))

    def purge(self) -> None:
        queue, state = self.queue(), self.rng.choice(STATES)
        age = self.rng.choice((0, 0, 1000, 5000))
        limit, skip = self.rng.choice((1, 2, 1000)), self.rng.choice((0, 0, 1))
        self.send(Purge(queue, self.call(), state, age, 0, limit, skip))

    def configure(self) -> None:
        name = self.rng.choice((*sorted(SETTINGS), "limit", "limit"))
        value = self.rng.choice(SETTINGS[name])
        self.send(Configure(self.queue(), self.call(), ((name, value),)))

    def pause(self) -> None:
        queue = self.queue()
        paused = self.model(queue).settings.get("paused") == "1"
        self.send(Configure(queue, self.call(), (("paused", "" if paused else "1"),)))

    def stats(self) -> None:
        self.send(Stats(self.queue(), self.call()))

    def account(self) -> None:
        names = self.rng.sample(("n", "wall", "k_done", "k_stall", "w0", "w79", "m40", "wall_max"), 3)
        spent = tuple((name, self.rng.randrange(100)) for name in names)
        self.send(Account(self.queue(), self.call(), spent))

    def fetch(self) -> None:
        queue = self.queue()
        model, runs = self.model(queue), []
        for _ in range(self.rng.choice((1, 2, 6))):
            id = self.some_id(queue)
            entry, ended = model.entries.get(id), model.ended.get(id)
            known = [run.generation for run in (entry.waiting, entry.running) if run] if entry else []
            known += [ended.generation] if ended else []
            asked = self.rng.choice((None, 0, *known))
            near = self.rng.choice((-1, 0, 0, 1)) if asked else 0
            generation = None if asked is None else min(asked + near, model.generations)
            runs.append((id, generation, self.walker.server_generation(queue, generation)))
        self.send(Fetch(queue, self.call(), tuple(runs)))

    # The end

    def drain(self) -> None:
        """With the faults switched off, everything that waits or runs must end."""
        for queue in ("main", "lane"):
            for _ in range(200):
                if not self.model(queue).entries:
                    break
                self.drain_once(queue)
            assert not self.model(queue).entries, f"{queue} is not empty after the drain"

    def drain_once(self, queue: str) -> None:
        self.walker.advance(20_000)
        off = (("paused", ""), ("depth", ""), ("limit", ""))
        self.walker.do(Configure(queue, self.call(), off))
        op = Exchange(queue, self.call(), "w1", 128, 60_000)
        rows = self.walker.do(op)[2]
        done = tuple(Settle(row["id"], row["token"], "done") for row in rows)
        self.walker.do(Exchange(queue, self.call(), "w1", 0, 60_000, settles=done))
