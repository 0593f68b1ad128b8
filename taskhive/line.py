"""One queue as a worker works on it: what it holds, what it owes, when it must speak again."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from taskhive.commands import MAX_SETTLES, Exchanged, Leased, Renewal, Settle
from taskhive.handler_options import HandlerOptions
from taskhive.options import read_stored
from taskhive.records import text
from taskhive.retries import Again, FailureKind, Limits, decide
from taskhive.slot import Attempt

STARTED_AFTER = 1.0
"""An attempt that has run so long is reported as started at once, not at the next beat."""


@dataclass(slots=True, eq=False)
class Line:
    """The state of one served queue; decisions without I/O."""

    queue: str
    options: HandlerOptions
    lease: float
    held: dict[str, Attempt] = field(default_factory=dict)
    """By token: every lease we have and have not settled."""
    settles: deque[Settle] = field(default_factory=deque)
    hungry: bool = True
    """There may be jobs to be had."""
    due_at: float | None = None
    beat_at: float = 0.0
    trusted_until: float = 0.0
    """Boottime until which the leases held are surely ours."""
    last_served: float = 0.0
    mean: float | None = None
    """Seconds an attempt takes, as measured lately."""

    def attempt(self, job: Leased) -> Attempt:
        """Take a leased job into our hands."""
        options = self.options_of(job)
        made = Attempt(job, self.queue, options, strict=self._strict(job))
        counts = job.counts
        made.alone = bool(counts.crashes or counts.stalls)
        self.held[job.token] = made
        return made

    def options_of(self, job: Leased) -> HandlerOptions:
        """The handler's options, under those that were dispatched with the job."""
        stored = job.fields.get(b"o")
        if stored is None:
            return self.options
        chosen = {k: v for k, v in read_stored(text(stored)).items() if k in _OWN}
        return HandlerOptions(**{**self.options.portable(), **chosen}) if chosen else self.options

    @staticmethod
    def _strict(job: Leased) -> bool:
        stored = job.fields.get(b"o")
        chosen = read_stored(text(stored)).get("strict") if stored is not None else None
        return bool(chosen) if chosen is not None else b"q" in job.fields

    def speaks_at(self, now: float) -> float:
        """When this queue must be called again if nothing else happens."""
        moments = [self.due_at] if self.due_at is not None else []
        if self.held:
            moments.append(self.beat_at)
            moments += [
                one.started + STARTED_AFTER
                for one in self.held.values()
                if one.started is not None and not one.reported
            ]
        return min(moments, default=now + 3600.0)

    def renewals(self, now: float) -> list[Renewal]:
        """All leases held, if a beat is due or an attempt is to be reported."""
        if not self.held or (now < self.beat_at and not self._unreported(now)):
            return []
        return [Renewal(one.job.id, token, one.started is not None) for token, one in self.held.items()]

    def _unreported(self, now: float) -> bool:
        return any(
            one.started is not None and not one.reported and now >= one.started + STARTED_AFTER
            for one in self.held.values()
        )

    def owed(self) -> list[Settle]:
        """What the next exchange is to settle; stays owed until it was answered."""
        return [self.settles[index] for index in range(min(MAX_SETTLES, len(self.settles)))]

    def answered(
        self, got: Exchanged, settles: list[Settle], renewals: list[Renewal], sent: float, now: float
    ) -> tuple[list[Attempt], list[Attempt]]:
        """Take in the answers; the attempts that are lost to us, and those somebody cancelled."""
        for _ in settles:
            self.settles.popleft()
        lost, cancelled = [], []
        for renewal, answer in zip(renewals, got.renewed, strict=True):
            attempt = self.held.get(renewal.token)
            if attempt is None:
                continue
            if answer == 0:
                lost.append(attempt)
            else:
                attempt.reported = attempt.reported or renewal.started
                if answer == 2:
                    cancelled.append(attempt)
        if renewals:
            self.beat_at = now + self.lease / 3
        if renewals or got.leases:
            # Trusted from before the call that renewed them.
            self.trusted_until = sent + self.lease
        self.due_at = None if got.due_in is None else now + got.due_in + 0.001
        return lost, cancelled


_OWN = frozenset(HandlerOptions().portable())


def failed(
    attempt: Attempt, kind: FailureKind, body: bytes, rng: random.Random, after: float | None = None
) -> Settle:
    """How a failed attempt is settled: again after a while, or given up."""
    job, options = attempt.job, attempt.options
    limits: Limits = options.limits()
    match decide(kind, job.counts, limits, rng):
        case Again(delay):
            wait = delay if after is None else after
            return Settle(job.id, job.token, "again", _kind(kind), _ms(wait), body=body)
        case _:
            ttl: Any = options.failure_ttl
            return Settle(job.id, job.token, "fail", kind.value, ttl_ms=_ttl(ttl), body=body)


def succeeded(attempt: Attempt, result: bytes) -> Settle:
    """How a finished attempt is settled."""
    job = attempt.job
    ttl: Any = attempt.options.result_ttl
    return Settle(job.id, job.token, "done", ttl_ms=_ttl(ttl), body=result)


def _kind(kind: FailureKind) -> str:
    return "error" if kind is FailureKind.PERMANENT else kind.value


def _ttl(seconds: float | None) -> int:
    return -1 if seconds is None else _ms(seconds)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
