"""One queue as a worker works on it: what it holds, what it owes, when it must speak again."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

from taskhive.costs import Spent
from taskhive.handler_options import HandlerOptions
from taskhive.jobs import LimitHits
from taskhive.options import read_stored
from taskhive.parcels import MAX_SETTLES, Exchanged, Leased, Renewal, Settle
from taskhive.records import text
from taskhive.slot import Attempt
from taskhive.tally import Tally

STARTED_AFTER = 1.0
"""An attempt that has run so long is reported as started at once, not at the next beat."""
POLL = 2.0
"""How long a queue is left alone while no bell is heard: a bell can be lost, a job must not."""
LOST, KEPT, CANCELLED, ASKED = 0, 1, 2, 3
"""What a renewal is answered with."""


@dataclass(slots=True, eq=False)
class Line:
    """The state of one served queue; decisions without I/O."""

    queue: str
    options: HandlerOptions
    lease: float
    held: dict[str, Attempt] = field(default_factory=dict)
    """By token: every lease we have and have not settled."""
    settles: deque[Settle] = field(default_factory=deque)
    last_words: list[Renewal] = field(default_factory=list)
    """Progress that came with the end of its attempt: it goes with the settle."""
    hungry: bool = True
    """There may be jobs to be had."""
    due_at: float | None = None
    """When something falls due in the queue, by the monotonic clock."""
    beat_at: float = 0.0
    poll_at: float = 0.0
    """When it is asked again though no bell was heard."""
    last_served: float = 0.0
    asking: int = 0
    """Jobs that the exchange in flight asks for."""
    tally: Tally = field(default_factory=Tally)
    spent: Spent = field(default_factory=Spent)
    """Costs that the server has not been told of."""
    is_served: bool = True
    """There is a handler for it: after a reload there may be none any more."""
    _first: tuple[HandlerOptions, HandlerOptions] | None = None

    def attempt(self, job: Leased, trusted_until: float) -> Attempt:
        """Take a leased job into our hands."""
        made = Attempt(job, self.queue, self._plain(), trusted_until=trusted_until)
        if job.fields:
            made.options = self.options_of(job).at(job.limit_hits)
            made.strict = self._strict(job)
            counts = job.counts
            made.alone = bool(counts.crashes or counts.stalls)
        self.held[job.token] = made
        return made

    def _plain(self) -> HandlerOptions:
        """The options of a first attempt, with the first budget of each limit."""
        if self._first is None or self._first[0] is not self.options:
            self._first = (self.options, self.options.at(LimitHits()))
        return self._first[1]

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

    def speaks_at(self, asks: bool = True) -> float:
        """When this queue must be called again if nothing else happens; one that asks for no more
        jobs speaks for those it holds only."""
        moments = [self.poll_at] if asks else []
        if asks and self.due_at is not None:
            moments.append(self.due_at)
        if self.held:
            moments.append(self.beat_at)
            moments += [
                one.started + STARTED_AFTER
                for one in self.held.values()
                if one.started is not None and not one.reported
            ]
        return min(moments)

    def is_due(self, now: float) -> bool:
        """Whether something fell due in the queue, or it was not asked for long."""
        return now >= self.poll_at or (self.due_at is not None and now >= self.due_at)

    def renewals(self, now: float) -> list[Renewal]:
        """All leases held if a beat is due, else those with news: begun, or further than they were."""
        last_words, self.last_words = self.last_words, []
        if now >= self.beat_at:
            chosen = list(self.held.values())
        else:
            chosen = [
                one
                for one in self.held.values()
                if one.has_news
                or (not one.reported and one.started is not None and now >= one.started + STARTED_AFTER)
            ]
        return [*last_words, *map(_renewal, chosen)]

    def end(self, attempt: Attempt, settle: Settle | None) -> None:
        """An attempt is over; owe its settle, if it is still ours to settle."""
        if self.held.pop(attempt.job.token, None) is not None and settle is not None:
            self.settles.append(settle)
            if attempt.has_news:
                self.last_words.append(_renewal(attempt))

    def owed(self) -> list[Settle]:
        """What the next exchange is to settle; stays owed until it was answered."""
        return [self.settles[index] for index in range(min(MAX_SETTLES, len(self.settles)))]

    def answered(
        self, got: Exchanged, settles: list[Settle], renewals: list[Renewal], sent: float, now: float
    ) -> list[tuple[Attempt, int]]:
        """Take in the answers; the attempts whose renewal was answered with more than "kept"."""
        for _ in settles:
            self.settles.popleft()
        news = []
        for renewal, answer in zip(renewals, got.renewed, strict=True):
            attempt = self.held.get(renewal.token)
            if attempt is None:
                continue
            if answer != KEPT:
                news.append((attempt, answer))
            if answer != LOST:
                attempt.reported = attempt.reported or renewal.started
                # Trusted from before the call that renewed it.
                attempt.trusted_until = sent + self.lease
        if len(renewals) == len(self.held) or now >= self.beat_at:
            self.beat_at = now + self.lease / 3
        self.poll_at = now + POLL
        # A millisecond more: what is due at this instant is due for the next one's clock too.
        self.due_at = None if got.due_in is None else now + got.due_in + 0.001
        return news


def _renewal(attempt: Attempt) -> Renewal:
    progress = b""
    if attempt.has_news:
        attempt.has_news = False
        progress = json.dumps(attempt.progress).encode()
    return Renewal(attempt.job.id, attempt.job.token, attempt.started is not None, progress)


_OWN = frozenset(HandlerOptions().portable())
