"""What is known of jobs and queues: states, records and numbers as plain frozen values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from taskhive.retries import Counts


class JobState(StrEnum):
    """Where a job stands; `UNKNOWN` is one that never was, or whose time to live has passed."""

    READY = "ready"
    DELAYED = "delayed"
    BLOCKED = "blocked"
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


WAITING = (JobState.READY, JobState.DELAYED, JobState.BLOCKED)
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
LISTED = (*WAITING, JobState.ACTIVE, *ENDED)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Why an attempt failed, as told by whoever ran it; text, never an object."""

    kind: str
    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job as its record says at one instant."""

    id: str
    queue: str
    state: JobState
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    created_at: datetime | None = None
    run_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    expires: datetime | None = None
    priority: int = 100
    generation: int = 0
    attempts: int = 0
    counts: Counts = field(default_factory=Counts)
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    token: str | None = None
    result: Any = None
    error: ErrorInfo | None = None
    failure_job: str | None = None
    """In a `failed` record: the id of the failure job that was made for it."""
    failed_job: str | None = None
    """In a failure job: the id of the job it speaks of."""
    reason: str | None = None
    """Why it was cancelled: `cancelled`, `expired`, `purged`."""
    sealed: bool = False
    """Arguments or result are a signed pickle, which is opened only where it is used."""
    corrupt: bool = False
    """The record could not be read; nothing but its id and state is known."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A handler is told of jobs by pickle, which has no way with a read-only mapping.
        words = {one.name: getattr(self, one.name) for one in fields(self)}
        words["kwargs"], words["options"] = dict(self.kwargs), dict(self.options)
        return _job_info, (words,)


def _job_info(words: dict[str, Any]) -> JobInfo:
    """A record that came by pickle."""
    frozen = {name: MappingProxyType(words[name]) for name in ("kwargs", "options")}
    return JobInfo(**{**words, **frozen})


@dataclass(frozen=True, slots=True)
class LimitHits:
    """How often a job was put back for each of its limits, since its counters were last reset."""

    timeout: int = 0
    cpu: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One attempt that is over, as whoever ran it told of it."""

    error: ErrorInfo | None
    """Why it failed; None if it succeeded or was cancelled."""
    black_box: Mapping[str, Any] | None = None
    """What was seen from outside of an attempt that was killed or crashed."""
    costs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt said it was."""

    done: float
    total: float | None = None
    note: Any = None


class Standing(StrEnum):
    """What `fetch` can say of a run."""

    PENDING = "pending"
    """It waits or runs."""
    ENDED = "ended"
    LATER = "later"
    """It has ended, but the reply was full: ask again."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Fetched:
    """One run as a bulk read found it; the body is not decoded yet."""

    id: str
    standing: Standing
    state: JobState = JobState.UNKNOWN
    """How it ended; `UNKNOWN` for one that has not."""
    generation: int = 0
    """That of the run that ended, which may be later than the one that was asked for."""
    ended_at: datetime | None = None
    body: bytes = b""
    """The encoded result, the encoded error, or the reason of a cancellation."""
    kind: str = ""
    """Of a failure: its kind."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The numbers of a queue at one instant; they add up.

    created = ready + delayed + blocked + active + succeeded + failed + cancelled + merged
    """

    queue: str
    ready: int
    delayed: int
    blocked: int
    active: int
    dead: int
    created: int
    succeeded: int
    failed: int
    cancelled: int
    merged: int
    oldest_wait: float | None
    paused: bool
    max_depth: int | None
    stale: int
    """Settles refused because their lease was not current."""
    duplicates: int
    """Settles that came again and were known."""
    swept: int
    """Leases that lapsed."""
    anomalies: int
    """Records that were missing or unreadable."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs of a queue and where to go on; iterates over the jobs."""

    jobs: tuple[JobInfo, ...]
    cursor: str | None
    """Give it to the next call; None when this was the last page."""

    def __iter__(self) -> Iterator[JobInfo]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: int) -> JobInfo:
        return self.jobs[index]


def when(ms: float) -> datetime | None:
    """The wall time of a stored moment, or None for one that no calendar has."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
