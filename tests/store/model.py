"""One queue and its fail lane: what each call does, from the rules and not from the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.store.model_base import MAX_LOST, STATES, Store
from tests.store.model_values import (
    Entry,
    Item,
    Lease,
    Renewal,
    Run,
    Said,
    Settle,
    Spec,
    ended_record,
    record,
)

SWEPT, EXPIRED, PROMOTED = 100, 100, 500


class Full(Exception):
    """The dispatch was refused: so many jobs wait already."""


class Queue(Store):
    """The calls of one queue."""

    # Dispatch

    def dispatch(self, clock: int, items: Sequence[Item]) -> list[tuple[str, int]]:
        self.memory = self.remembered()
        if "depth" in self.settings:
            # What is refused leaves nothing behind, not even the time.
            added = sum(self.verdict(item)[0] in "NB" for item in items)
            if added and self.waiting() + added > int(self.settings["depth"]):
                self.effects["queue full"] += 1
                raise Full
        self.begin(clock)
        return [self.dispatch_one(item) for item in items]

    def verdict(self, item: Item) -> tuple[str, int]:
        """What a dispatch will be answered: its letter, and the generation if there is one."""
        entry = self.entries.get(item.id, Entry())
        request = item.spec.request if item.spec else None
        if item.spec is None or request is None:
            # A generated id is its own request: met again in any state, it is a resend.
            met = item.id in self.entries or item.id in self.ended or self.recall(item.id) is not None
            return ("D", 0) if met else ("N", 0)
        for run in (entry.running, entry.waiting):
            if run and request in run.requests:
                return "D", run.generation
        newest = entry.waiting or entry.running
        if newest and item.spec.join:
            return "J", newest.generation
        if newest:
            return ("B" if entry.waiting is None else "M" if entry.running else "U"), newest.generation
        requests, generation = self.known_ended(item.id)
        return ("D", generation) if request in requests else ("N", 0)

    def dispatch_one(self, item: Item) -> tuple[str, int]:
        letter, generation = self.verdict(item)
        self.effects[f"answer {letter}"] += 1
        spec = item.spec or Spec()
        said = Said(item.payload, spec, spec.options(self.now), spec.when(self.now))
        if letter in "NB":
            return letter, self.make(item, said, letter)
        if letter in "UM":
            entry = self.entries[item.id]
            assert entry.waiting is not None
            entry.waiting.hear(said)
            entry.waiting.said.append(said)
            if letter == "U":
                self.stand(entry.waiting, entry.waiting.place if entry.waiting.ready else None)
        return letter, generation

    def make(self, item: Item, said: Said, letter: str) -> int:
        run = Run(item.payload, self.now, said.at, options=said.options)
        if item.spec is not None:
            self.generations += 1
            run.generation = self.generations
        if said.spec.request is not None:
            if letter == "N":
                run.requests = list(self.known_ended(item.id)[0])
                self.ended.pop(item.id, None)
            run.learn(said.spec.request)
        run.said = [said]
        self.counters["created"] += 1
        self.happened("dispatched", item.id)
        self.entries.setdefault(item.id, Entry()).waiting = run
        if letter == "B":
            run.place = self.arrive()
        else:
            self.stand(run)
        return run.generation

    # Exchange

    def exchange(
        self,
        clock: int,
        worker: str,
        request: str,
        want: int,
        length: int,
        by_hand: bool,
        settles: Sequence[Settle],
        renewals: Sequence[Renewal],
    ) -> list[Any]:
        self.begin(clock)
        if want:
            self.lease_length = length
        offers: list[Settle | Renewal] = [*settles, *renewals]
        for one in offers if by_hand else ():
            self.lapse(one.id)
        renewed = [self.renew(one, length) for one in renewals]
        settled = [self.settle(one) for one in settles]
        last, leased = self.handed_out.get(worker, ("", []))
        if last == request:
            self.effects["replayed"] += 1
        else:
            self.tidy(2 * len(settles) + 100)
            leased = []
            if want and self.settings.get("paused") != "1":
                leased = self.take(request, want, length, by_hand)
            if leased:
                self.handed_out[worker] = (request, leased)
        rows = [row for id, token in leased if (row := self.row(id, token))]
        return [settled, renewed, rows, self.due_in(), int(self.settings.get("paused") == "1")]

    def row(self, id: str, token: str) -> dict[str, Any] | None:
        entry = self.entries.get(id)
        if entry is None or entry.lease is None or entry.lease.token != token:
            return None
        assert entry.running is not None
        return {"id": id, "token": token, **without(record(entry.running), "A")}

    def settle(self, offer: Settle) -> str:
        entry = self.entries.get(offer.id, Entry())
        lease, run = entry.lease, entry.running
        if lease is None or run is None or lease.token != offer.token:
            if self.recall(f"@{offer.token}") == offer.outcome:
                self.counters["dups"] += 1
                return "DUP"
            self.counters["stale"] += 1
            return "STALE"
        self.remember(f"@{offer.token}", offer.outcome)
        if lease.cancelled or offer.outcome == "cancelled":
            self.effects["cancelled by mark"] += lease.cancelled
            self.end_cancelled(offer.id, lease, started=True, note=offer.note)
        elif offer.outcome == "done":
            ttl = self.ttl(run.options.result_ttl, "result_ttl", offer.ttl)
            self.end_run(offer.id, "s", offer.body, ttl, lease.taken, offer.note)
        elif offer.outcome == "release":
            old_place = offer.delay < 0
            at = run.run_at if old_place else self.now + offer.delay
            self.put_back(offer.id, at, lease.place if old_place else None)
        elif offer.outcome == "again" and self.count(run, offer.kind):
            run.failed(offer.body, offer.kind)
            self.happened("retrying", offer.id)
            self.put_back(offer.id, self.now + offer.delay)
        else:
            self.give_up(offer.id, offer.kind, offer.body, lease.taken, offer.ttl, offer.note)
        return "OK"

    def lapse(self, id: str) -> None:
        """By hand, who comes late finds the lease swept, whether or not anybody has looked before."""
        lease = self.entries.get(id, Entry()).lease
        if lease is not None and lease.until <= self.now:
            self.effects["late by hand"] += 1
            self.sweep_one(id)

    def renew(self, renewal: Renewal, length: int) -> int:
        lease = self.entries.get(renewal.id, Entry()).lease
        if lease is None or lease.token != renewal.token:
            self.effects["stale renewal"] += 1
            return 0
        lease.until, lease.length, lease.extended = self.now + length, length, False
        lease.started = lease.started or renewal.started
        if renewal.progress:
            self.effects["progress"] += 1
            self.happened("progress", renewal.id)
            lease.progress = renewal.progress
        return 2 if lease.cancelled else 3 if lease.asked else 1

    def take(self, request: str, want: int, length: int, by_hand: bool) -> list[tuple[str, str]]:
        leased = []
        if "limit" in self.settings:
            room = max(int(self.settings["limit"]) - len(self.active()), 0)
            self.effects["held by the limit"] += room < min(want, len(self.ready()))
            want = min(want, room)
        popped = self.ready()[:want]
        for id in popped:
            entry = self.entries[id]
            run = entry.waiting
            assert run is not None
            if run.options.expires is not None and run.options.expires < self.now:
                self.end_waiting(id, "expired")
                continue
            self.tokens += 1
            token = f"{self.tokens}.{request}"
            entry.running, entry.waiting = run, None
            entry.lease = Lease(token, length, self.now, self.now + length, run.place, by_hand)
            leased.append((id, token))
            self.happened("started", id)
        return leased

    def due_in(self) -> int:
        moments = [until for until, _ in self.active()[:1]]
        moments += [at for _, at, _ in self.delayed()[:1]]
        moments += [expires for expires, _ in self.expiring()[:1]]
        return max(min(moments) - self.now, 0) if moments else -1

    # What any call does in passing

    def tidy(self, trimmed: int) -> list[str]:
        lapsed = [id for until, id in self.active() if until <= self.now][:SWEPT]
        for id in lapsed:
            self.sweep_one(id)
        gone = [id for id in lapsed if id not in self.entries or self.entries[id].lease is None]
        for expires, id in self.expiring()[:EXPIRED]:
            if expires < self.now:
                self.end_waiting(id, "expired")
        for id, at, _ in self.delayed()[:PROMOTED]:
            run = self.entries[id].waiting
            assert run is not None
            if at <= self.now:
                self.effects["promoted"] += 1
                self.stand(run)
        for state in STATES.values():
            for until, id in self.kept(state)[:trimmed]:
                if until <= self.now:
                    self.effects["trimmed"] += 1
                    del self.ended[id]
        return gone

    def sweep_one(self, id: str) -> None:
        entry = self.entries[id]
        run, lease = entry.running, entry.lease
        assert run is not None
        assert lease is not None
        if not lease.extended and lease.until < (self.gap_end or 0) + lease.length:
            self.effects["extended after a gap"] += 1
            lease.extended, lease.until = True, self.now + lease.length
            return
        self.effects["swept"] += 1
        self.counters["swept"] += 1
        if lease.cancelled:
            self.effects["swept cancelled"] += 1
            return self.end_cancelled(id, lease, lease.started)
        self.remember(f"@{lease.token}", "swept")
        if not lease.started:
            if run.counts.get("d", 0) < MAX_LOST:
                self.effects["lost delivery"] += 1
                self.count(run, "lost")
                return self.put_back(id, run.run_at, lease.place)
            self.effects["lost too often"] += 1
            why = f"its delivery was lost {MAX_LOST} times"
            return self.give_up(id, "stall", stalled(why), None)
        stalls = run.counts.get("s", 0)
        most = run.options.max_stalls
        if stalls < (self.setting("max_stalls") if most is None else most) and self.count(run, "stall"):
            self.effects["stalled"] += 1
            run.failed(stalled("the worker that ran it was lost"), "stall")
            self.happened("stalled", id)
            backoff = min(
                self.setting("max_backoff"), self.setting("min_backoff") * 2 ** min(stalls, 30)
            )
            return self.put_back(id, self.now + backoff)
        self.effects["stalled too often"] += 1
        why = f"the worker that ran it was lost {stalls + 1} times"
        return self.give_up(id, "stall", stalled(why), lease.taken)

    def sweep(self, clock: int) -> list[str]:
        self.begin(clock)
        return self.tidy(500)

    # By hand

    def answered(self, call: str) -> list[int]:
        """What this very call has answered before, if it did anything then."""
        words = (self.recall(f"={call}") or "").split()
        self.effects["answered as before"] += bool(words)
        return [int(word) for word in words]

    def keep_answer(self, call: str, *answer: int) -> None:
        self.remember(f"={call}", " ".join(map(str, answer)))

    def cancel(self, clock: int, call: str, id: str, mode: str) -> int:
        self.begin(clock)
        if known := self.answered(call):
            return known[0]
        entry = self.entries.get(id)
        if entry is None:
            return 0
        if entry.waiting is not None:
            self.end_waiting(id, "cancelled")
        if entry.lease is not None:
            self.effects["marked" if mode == "kill" else "asked"] += 1
            if mode == "kill":
                entry.lease.cancelled = True
            else:
                entry.lease.asked = True
        self.keep_answer(call, 1)
        return 1

    def drop_ended(self, id: str) -> None:
        """The record goes, but a resend of its dispatch is still known as one."""
        known = self.known_ended(id)[0]
        self.ended.pop(id, None)
        self.remember(id, "".join(f",{request}" for request in known))

    def remove(self, clock: int, call: str, id: str) -> int:
        self.begin(clock)
        if known := self.answered(call):
            return known[0]
        entry = self.entries.get(id, Entry())
        if entry.lease is not None:
            return -1
        if entry.waiting is not None:
            self.end_waiting(id, "removed")
        elif id not in self.ended:
            return 0
        self.drop_ended(id)
        self.keep_answer(call, 1)
        return 1

    def revive(self, clock: int, call: str, id: str) -> int:
        self.begin(clock)
        if known := self.answered(call):
            return known[0]
        ended = self.ended.get(id)
        if ended is None or ended.state != "f":
            return 0
        if id in self.entries:
            return -1
        self.effects["revived"] += 1
        del self.ended[id]
        old = ended.run
        self.generations += 1
        run = Run(old.payload, old.created, self.now, self.generations, requests=old.requests)
        run.options = Spec(
            priority=old.options.priority,
            text=old.options.text,
            max_stalls=old.options.max_stalls,
            result_ttl=old.options.result_ttl,
            failure_ttl=old.options.failure_ttl,
        ).options(self.now)
        run.failure = old.failure
        self.entries[id] = Entry(waiting=run)
        self.stand(run)
        self.counters["created"] += 1
        self.counters["revived"] += 1
        self.happened("dispatched", id)
        if self.lane is not None and ended.failure_job is not None:
            self.lane.withdraw(ended.failure_job)
        self.keep_answer(call, 1)
        return 1

    def withdraw(self, name: str) -> None:
        """Drop a failure job that nobody holds."""
        if name in self.entries and self.entries[name].lease is None:
            self.effects["failure job withdrawn"] += 1
            self.touched = True
            del self.entries[name]
            self.counters["cancelled"] += 1
            self.done.add(name)
            self.happened("cancelled", name)

    def purge(
        self, clock: int, call: str, state: str, age: int, moment: int, limit: int, skip: int
    ) -> list[int]:
        self.begin(clock)
        if known := self.answered(call):
            return known
        moment = moment or self.now
        ids = {
            "ready": self.ready,
            "delayed": lambda: [id for id, _, _ in self.delayed()],
            "blocked": self.blocked,
        }.get(state, lambda: [id for _, id in self.kept(state)])()[skip : skip + limit]
        dropped = 0
        for id in ids:
            entry = self.entries.get(id, Entry())
            waits = state in ("ready", "delayed", "blocked")
            run = entry.waiting
            since = self.ended[id].at if not waits else run.created if run else 0
            if since > moment - age:
                skip += 1
                continue
            dropped += 1
            self.effects["purged"] += 1
            if waits:
                self.end_waiting(id, "purged")
            if state != "blocked":
                self.drop_ended(id)
        answer = [dropped, int(len(ids) == limit), moment, skip]
        if dropped:
            self.keep_answer(call, *answer)
        return answer

    def configure(self, clock: int, call: str, pairs: Sequence[tuple[str, str]]) -> int:
        self.begin(clock)
        if known := self.answered(call):
            return known[0]
        self.keep_answer(call, 1)
        for name, value in pairs:
            if value:
                self.settings[name] = value
            else:
                self.settings.pop(name, None)
        return 1

    def account(self, clock: int, call: str, spent: Sequence[tuple[str, int]]) -> int:
        self.begin(clock)
        if self.recall(f"={call}") is not None:
            self.effects["counted before"] += 1
            return 0
        self.remember(f"={call}", "1")
        for name, value in spent:
            before = self.costs.get(name, 0)
            self.costs[name] = max(before, value) if name.endswith("_max") else before + value
        return 1

    def fetch(self, clock: int, runs: Sequence[tuple[str, int | None]]) -> list[Any]:
        return [self.fetched(max(clock, self.now), *run) for run in runs]

    def fetched(self, now: int, id: str, generation: int | None) -> Any:
        """A run ends with the first end of its generation, or of a later one."""
        entry, ended = self.entries.get(id, Entry()), self.ended.get(id)
        if ended is not None and ended.until <= now:
            ended = None
        newest = entry.waiting or entry.running
        if generation is None:
            over = newest is None
        else:
            over = ended is not None and ended.generation >= generation
            if not over and newest is not None and entry.waiting is None:
                newest = newest if newest.generation >= generation else None
        if not over and newest is not None:
            return "pending"
        if ended is None or not over:
            return "unknown"
        self.effects["fetched"] += 1
        words = ended_record(ended)
        return {name: words[name] for name in ("state", "g", "at", "body")} | {"k": words["k"] or None}

    def stats(self, clock: int) -> list[int]:
        now = max(clock, self.now)
        waits = [now - run.run_at for id in self.ready() if (run := self.entries[id].waiting)]
        dead = sum(until > now for until, _ in self.kept("failed"))
        sizes = [len(self.ready()), len(self.delayed()), len(self.blocked()), len(self.active())]
        return [now, *sizes, dead, oldest_head(self, now, waits)]


def oldest_head(queue: Queue, now: int, waits: list[int]) -> int:
    """The longest wait among the heads of the priority classes: what the server can tell cheaply."""
    heads: dict[int, int] = {}
    for id in queue.ready():
        run = queue.entries[id].waiting
        assert run is not None
        heads.setdefault(run.options.priority, max(now - run.run_at, 0))
    return max(heads.values(), default=-1) if waits else -1


def without(words: dict[str, Any], *names: str) -> dict[str, Any]:
    """What is too much for a reply that must stay lean is left out of it."""
    return {name: word for name, word in words.items() if name not in names}


def stalled(why: str) -> bytes:
    return b'{"type":"Stalled","message":"%b"}' % why.encode()
