"""What a queue holds, told as plainly as it can be.

There is one dictionary of ids, and everything that the server keeps in a set of its own is derived
from it. A blocked run remembers every dispatch that went into it and replays them one by one, where
the scripts keep a composed clamp and three flags.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import Self

from tests.store.model_values import (
    Ended,
    Entry,
    Failure,
    Lease,
    Run,
    Spec,
    shelved,
)

COUNTER = {
    "error": "r",
    "timeout": "t",
    "cpu": "t",
    "memory": "t",
    "crash": "c",
    "stall": "s",
    "lost": "d",
}
DEFAULTS = {
    "max_stalls": 3,
    "min_backoff": 2000,
    "max_backoff": 300_000,
    "result_ttl": 3_600_000,
    "failure_ttl": 604_800_000,
}
HIT = {"timeout": "T", "cpu": "C", "memory": "M"}
MAX_ATTEMPTS, MAX_LOST = 100, 20
SPAN, RESENT_WITHIN = 30_000, 60_000
FOREVER = 2**53 - 1
FAILURE_JOB_MIN = 60_000
STATES = {"s": "succeeded", "f": "failed", "c": "cancelled"}


class Store:
    """The state of one queue; `lane` is its fail lane, which has none itself."""

    def __init__(self, effects: Counter[str], lane: Self | None = None) -> None:
        self.lane = lane
        self.effects = effects
        self.now = 0
        self.lease_length: int | None = None
        self.gap_end: int | None = None
        self.entries: dict[str, Entry] = {}
        self.ended: dict[str, Ended] = {}
        self.memory: dict[str, tuple[int, str]] = {}
        self.spans = 0
        self.handed_out: dict[str, tuple[str, list[tuple[str, str]]]] = {}
        self.settings: dict[str, str] = {}
        self.counters: Counter[str] = Counter()
        self.costs: dict[str, int] = {}
        self.arrivals = 0
        self.generations = 0
        self.tokens = 0
        self.touched = False
        """Since somebody last asked; a queue that no step touched is not compared anew."""
        self.used = False
        self.done: set[str] = set()
        """The ids of which a run has ended since somebody last asked: what its channel is told."""
        self.events: list[tuple[str, str]] = []
        """Kind and id of what happened since somebody last asked."""

    # What follows from the dictionary

    def ready(self) -> list[str]:
        waiting = [(id, e.waiting) for id, e in self.entries.items() if e.waiting and not e.running]
        found = [(-run.options.priority, run.place, id) for id, run in waiting if run.ready]
        return [id for _, _, id in sorted(found)]

    def delayed(self) -> list[tuple[str, int, int]]:
        waiting = [(id, e.waiting) for id, e in self.entries.items() if e.waiting and not e.running]
        found = [(run.run_at, -run.options.priority, id) for id, run in waiting if not run.ready]
        return [(id, at, -priority) for at, priority, id in sorted(found)]

    def blocked(self) -> list[str]:
        found = [(e.waiting.place, id) for id, e in self.entries.items() if e.waiting and e.running]
        return [id for _, id in sorted(found)]

    def expiring(self) -> list[tuple[int, str]]:
        runs = [(id, e.waiting) for id, e in self.entries.items() if e.waiting]
        return sorted((run.options.expires, id) for id, run in runs if run.options.expires is not None)

    def active(self) -> list[tuple[int, str]]:
        return sorted((e.lease.until, id) for id, e in self.entries.items() if e.lease)

    def kept(self, state: str) -> list[tuple[int, str]]:
        return sorted((e.until, id) for id, e in self.ended.items() if STATES[e.state] == state)

    def waiting(self) -> int:
        return sum(e.waiting is not None for e in self.entries.values())

    # Time and memory

    def begin(self, clock: int) -> None:
        """The server's clock, but never backwards; a long silence is noted as a gap."""
        self.touched = self.used = True
        self.memory = self.remembered()
        silence = clock - self.now
        if self.now and self.lease_length is not None and silence > self.lease_length / 2:
            self.gap_end = clock
        self.now = max(self.now, clock)

    def happened(self, kind: str, id: str) -> None:
        if self.settings.get("events") != "0":
            self.events.append((kind, id))

    def setting(self, name: str) -> int:
        return int(self.settings.get(name, DEFAULTS[name]))

    def remember(self, field: str, value: str) -> None:
        self.spans = self.now // SPAN
        self.memory[field] = (self.spans, value)

    def remembered(self) -> dict[str, tuple[int, str]]:
        """What is left of the memory: a call that adds to it forgets, at its end, what is too old."""
        return {field: kept for field, kept in self.memory.items() if kept[0] > self.spans - 3}

    def recall(self, field: str) -> str | None:
        return self.memory[field][1] if field in self.memory else None

    # Places

    def arrive(self) -> int:
        self.arrivals += 1
        return self.arrivals

    def stand(self, run: Run, place: int | None = None) -> None:
        """Ready if its time has come, in its old place or at the end; delayed otherwise."""
        run.ready = run.run_at <= self.now
        if run.ready:
            run.place = place if place is not None else self.arrive()

    # The ends of a run

    def known_ended(self, id: str) -> tuple[list[str], int]:
        """The dispatches that are remembered of an id that neither waits nor runs."""
        if id in self.ended and self.ended[id].run.requests:
            return self.ended[id].run.requests, self.ended[id].generation
        return (self.recall(id) or "").split(",")[1:], 0

    def write_ended(self, id: str, ended: Ended, ttl: int) -> None:
        # Whoever resends its dispatch does so within a minute, whether or not the record is kept.
        self.ended.pop(id, None)
        if 0 <= ttl < RESENT_WITHIN:
            self.remember(id, "".join(f",{request}" for request in ended.run.requests))
        if ttl != 0:
            self.ended[id] = ended
        self.counters[STATES[ended.state]] += 1
        self.done.add(id)

    def until(self, ttl: int) -> int:
        return FOREVER if ttl < 0 else self.now + ttl

    def end_waiting(self, id: str, why: str) -> None:
        entry = self.entries[id]
        run = entry.waiting
        assert run is not None
        entry.waiting = None
        if entry.running:
            # It lends its generation to the run in its way: a handle on it ends when that does.
            self.effects[f"{why} while blocked"] += 1
            entry.running.generation = run.generation
            for request in run.requests:
                entry.running.learn(request)
            self.counters["cancelled"] += 1
            self.done.add(id)
            return
        self.effects[f"{why} while waiting"] += 1
        del self.entries[id]
        self.happened("cancelled", id)
        ttl = self.ttl(run.options.result_ttl, "result_ttl")
        self.write_ended(id, Ended("c", self.now, why.encode(), self.until(ttl), run), ttl)

    def ttl(self, own: int | None, name: str, offered: int = -2) -> int:
        """The job's own word comes first, then the worker's, then the queue's."""
        if own is not None:
            return own
        return offered if offered >= -1 else self.setting(name)

    def end(self, id: str, ended: Ended, ttl: int, note: bytes) -> None:
        entry = self.entries[id]
        blocked = entry.waiting
        assert entry.lease is not None
        self.happened(STATES[ended.state], id)
        self.effects["progress kept"] += entry.lease.progress is not None
        self.effects["earlier attempts kept"] += bool(ended.run.earlier)
        ended = replace(ended, progress=entry.lease.progress, note=note or None)
        entry.running = entry.lease = None
        self.write_ended(id, ended, ttl)
        if blocked is None:
            del self.entries[id]
            return
        self.effects["unblocked"] += 1
        requests, blocked.requests = blocked.requests, ended.run.requests
        for request in requests:
            blocked.learn(request)
        self.stand(blocked)

    def end_run(
        self, id: str, state: str, body: bytes, ttl: int, started: int | None, note: bytes = b""
    ) -> None:
        run = self.entries[id].running
        assert run is not None
        ended = Ended(state, self.now, body, self.until(ttl), shelved(run), started)
        self.end(id, ended, ttl, note)

    def end_cancelled(self, id: str, lease: Lease, started: bool, note: bytes = b"") -> None:
        run = self.entries[id].running
        assert run is not None
        ttl = self.ttl(run.options.result_ttl, "result_ttl")
        self.end_run(id, "c", b"cancelled", ttl, lease.taken if started else None, note)

    def give_up(
        self,
        id: str,
        kind: str,
        body: bytes,
        started: int | None,
        offered_ttl: int = -2,
        note: bytes = b"",
    ) -> None:
        entry = self.entries[id]
        run, lease = entry.running, entry.lease
        assert run is not None
        assert lease is not None
        ttl = self.ttl(run.options.failure_ttl, "failure_ttl", offered_ttl)
        name = None
        if self.lane is not None:
            name = hashlib.sha1(f"{id}:{lease.token}".encode()).hexdigest()[:22]
            self.lane.receive(name, id, lease.token, run, kind, body, self.now, ttl)
        until = self.until(ttl)
        ended = Ended("f", self.now, body, until, shelved(run), started, kind, name)
        self.end(id, ended, ttl, note)

    def receive(
        self, name: str, id: str, token: str, run: Run, kind: str, body: bytes, now: int, ttl: int
    ) -> None:
        """A failure job for this lane."""
        assert name not in {*self.entries, *self.ended}, "two failure jobs for one failure"
        self.effects["failure job"] += 1
        self.touched = self.used = True
        counts = " ".join(str(n) for n in (run.attempts, *(run.counts.get(c, 0) for c in "rtsc")))
        made = Run(run.payload, now, now, failure=Failure(id, token, kind, body, counts))
        if ttl >= 0:
            made.options = Spec(expires=now + max(ttl, FAILURE_JOB_MIN)).options(now)
        made.ready, made.place = True, self.arrive()
        self.entries[name] = Entry(waiting=made)
        self.counters["created"] += 1
        self.happened("dispatched", name)
        # In case nobody serves the lane: two that lapsed go for one that comes.
        for expires, old in self.expiring()[:2]:
            entry = self.entries[old]
            idle = entry.running is None and entry.waiting and entry.waiting.ready
            if expires < now and idle and entry.waiting and entry.waiting.failure:
                self.effects["failure job lapsed"] += 1
                del self.entries[old]
                self.counters["cancelled"] += 1
                self.done.add(old)
                self.happened("cancelled", old)

    # Back to wait

    def put_back(self, id: str, at: int, place: int | None = None) -> None:
        entry = self.entries[id]
        run, blocked = entry.running, entry.waiting
        assert run is not None
        run.run_at = at
        if blocked is not None:
            self.effects["merged"] += 1
            self.counters["merged"] += 1
            before = run.options.priority
            for said in blocked.said:
                run.hear(said)
            run.generation = blocked.generation
            if run.options.priority != before:
                place = None
        entry.waiting, entry.running, entry.lease = run, None, None
        self.stand(run, place)

    def count(self, run: Run, kind: str) -> bool:
        """One more put-back of this kind; False when the job has had enough of them."""
        if kind != "lost":
            if run.attempts + 1 >= MAX_ATTEMPTS:
                self.effects["attempts used up"] += 1
                return False
            run.attempts += 1
        for name in (COUNTER[kind], HIT.get(kind)):
            if name is not None:
                run.counts[name] = run.counts.get(name, 0) + 1
        return True
