"""The values a queue is made of, as the model sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

PRIORITY = 100
KEPT_REQUESTS = 8
KEPT_ATTEMPTS = 5


@dataclass(frozen=True)
class Options:
    """What a dispatch says of how its job is to be run; always replaced as a whole."""

    text: str | None = None
    priority: int = PRIORITY
    expires: int | None = None
    max_stalls: int | None = None
    result_ttl: int | None = None
    failure_ttl: int | None = None


@dataclass(frozen=True)
class Spec:
    """The third argument of a dispatched job."""

    request: str | None = None
    at: int | None = None
    delay: int | None = None
    expires: int | None = None
    lasts: int | None = None
    priority: int | None = None
    text: str | None = None
    max_stalls: int | None = None
    result_ttl: int | None = None
    failure_ttl: int | None = None
    update_data: bool = False
    update_run_at: str = "keep"
    reset_counts: bool = False
    update_options: bool = False
    join: bool = False

    def encode(self) -> str:
        words: dict[str, Any] = {
            "q": self.request,
            "at": self.at,
            "delay": self.delay,
            "x": self.expires,
            "lasts": self.lasts,
            "p": self.priority,
            "o": self.text,
            "m": self.max_stalls,
            "y": self.result_ttl,
            "f": self.failure_ttl,
            "ud": self.update_data or None,
            "ur": self.update_run_at,
            "rs": self.reset_counts or None,
            "uo": self.update_options or None,
            "join": self.join or None,
        }
        return json.dumps({name: word for name, word in words.items() if word is not None})

    def options(self, now: int) -> Options:
        expires = self.expires
        if expires is None and self.lasts is not None:
            expires = now + self.lasts
        priority = PRIORITY if self.priority is None else self.priority
        return Options(self.text, priority, expires, self.max_stalls, self.result_ttl, self.failure_ttl)

    def when(self, now: int) -> int:
        if self.at is not None:
            return self.at
        return now + (self.delay or 0)


@dataclass(frozen=True)
class Item:
    """One job to be dispatched; without a spec it is a plain one with a generated id."""

    id: str
    payload: bytes
    spec: Spec | None = None


@dataclass(frozen=True)
class Said:
    """What one dispatch of an id asked for, with its times made absolute when it came."""

    payload: bytes
    spec: Spec
    options: Options
    at: int


@dataclass(frozen=True)
class Failure:
    """What a failure job says of the job that failed."""

    job: str
    token: str
    kind: str
    body: bytes
    counts: str


@dataclass
class Run:
    """One run of an id, waiting or running."""

    payload: bytes
    created: int
    run_at: int
    generation: int = 0
    options: Options = Options()
    requests: list[str] = field(default_factory=list)
    attempts: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    error: tuple[bytes, str] | None = None
    earlier: list[tuple[str, bytes]] = field(default_factory=list)
    """Kind and error of the attempts before that one: together with the newest, five at most."""
    failure: Failure | None = None
    ready: bool = False
    place: int = 0
    """Its number in the order of arrival; who is put back in its old place has its old number."""
    said: list[Said] = field(default_factory=list)
    """Every dispatch that went into this run, to be replayed if it is merged into another."""

    def failed(self, body: bytes, kind: str) -> None:
        """One more attempt that came to nothing."""
        self.earlier, self.error = self.past(), (body, kind)

    def past(self) -> list[tuple[str, bytes]]:
        """What is kept of all attempts so far when there is a newer one."""
        newest = [(self.error[1], self.error[0])] if self.error else []
        return [*self.earlier, *newest][-(KEPT_ATTEMPTS - 1) :]

    def learn(self, request: str) -> None:
        self.requests = [*self.requests, request][-KEPT_REQUESTS:]

    def hear(self, said: Said) -> None:
        """Let one more dispatch have its say in a run that is there already."""
        spec = said.spec
        if spec.update_data:
            self.payload = said.payload
        if spec.update_options:
            self.options = said.options
        if spec.reset_counts:
            self.counts = {}
        self.run_at = moved(self.run_at, said)
        assert spec.request is not None
        self.learn(spec.request)


def moved(run_at: int, said: Said) -> int:
    """The run time after one dispatch's say in it."""
    match said.spec.update_run_at:
        case "set":
            return said.at
        case "later":
            return max(run_at, said.at)
        case "earlier":
            return min(run_at, said.at)
        case _:
            return run_at


@dataclass
class Lease:
    """The claim on a running attempt."""

    token: str
    length: int
    taken: int
    until: int
    place: int
    started: bool = False
    cancelled: bool = False
    asked: bool = False
    extended: bool = False
    progress: bytes | None = None


@dataclass
class Entry:
    """What is known of an id that has not ended: blocked is to have both runs."""

    waiting: Run | None = None
    running: Run | None = None
    lease: Lease | None = None

    @property
    def blocked(self) -> bool:
        return self.waiting is not None and self.running is not None


@dataclass(frozen=True)
class Ended:
    """The record that replaces a job."""

    state: str
    at: int
    body: bytes
    until: int
    run: Run
    started: int | None = None
    kind: str | None = None
    failure_job: str | None = None
    progress: bytes | None = None
    note: bytes | None = None

    @property
    def generation(self) -> int:
        return self.run.generation


@dataclass(frozen=True)
class Settle:
    """The end of one lease as a worker tells it."""

    id: str
    token: str
    outcome: str
    kind: str = ""
    delay: int = 0
    ttl: int = -2
    body: bytes = b""
    note: bytes = b""


@dataclass(frozen=True)
class Renewal:
    """A lease to be kept."""

    id: str
    token: str
    started: bool = False
    progress: bytes = b""


def record(run: Run) -> dict[str, Any]:
    """A run as the comparison wants it: every field there is, with its default filled in."""
    failure = run.failure
    body, kind = run.error or (None, None)
    return {
        "payload": run.payload,
        "created": run.created,
        "u": run.run_at,
        "g": run.generation,
        "q": tuple(run.requests),
        "a": run.attempts,
        **{name: run.counts.get(name, 0) for name in "rtscdTCM"},
        "o": run.options.text,
        "p": run.options.priority,
        "x": run.options.expires,
        "m": run.options.max_stalls,
        "y": run.options.result_ttl,
        "f": run.options.failure_ttl,
        "e": body,
        "k": kind,
        "A": tuple(word for attempt in run.earlier for word in attempt),
        "i": failure.job if failure else None,
        "j": failure.token if failure else None,
        "z": failure.kind if failure else None,
        "b": failure.body if failure else None,
        "n": failure.counts if failure else None,
    }


def ended_record(ended: Ended) -> dict[str, Any]:
    """An ended job as the comparison wants it; arguments stay with a failure only."""
    words = record(ended.run)
    words["payload"] = ended.run.payload if ended.state == "f" else b""
    words["state"], words["at"], words["body"] = ended.state, ended.at, ended.body
    words["w"], words["F"], words["v"] = ended.started, ended.failure_job, ended.progress
    words["N"] = ended.note
    if ended.kind is not None:
        words["k"] = ended.kind
    return words


def shelved(run: Run) -> Run:
    """A run whose last error has joined the earlier ones, since it ended otherwise."""
    return replace(run, error=None, earlier=run.past())
