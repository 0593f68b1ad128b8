"""What happened to the jobs of a queue, as its stream of events tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from taskhive import records
from taskhive.jobs import ErrorInfo, Progress, when

FROM_NOW = "$"
"""As the id to read from: only what happens after this."""


class EventKind(StrEnum):
    """What can happen."""

    DISPATCHED = "dispatched"
    STARTED = "started"
    """It was leased."""
    PROGRESS = "progress"
    RETRYING = "retrying"
    STALLED = "stalled"
    """The worker that ran it was lost; it is put back."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DESTROYED = "destroyed"
    """The whole queue."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one job; details are known of what happened to one job alone."""

    id: str
    """Its place in the stream: what is to be read next begins behind it. Events of one call share it."""
    kind: EventKind
    queue: str
    at: datetime | None
    job_id: str = ""
    """Empty where it happened to many at once (`dispatched`), or to the queue."""
    count: int = 1
    """To how many jobs: more than one where they are not named."""
    worker: str = ""
    attempt: int | None = None
    error_kind: str = ""
    error_type: str = ""
    message: str = ""
    retries_left: int | None = None
    progress: Progress | None = None

    @property
    def error(self) -> ErrorInfo | None:
        """Why it is retried or given up, in short: `job.attempts()` has it whole."""
        if not (self.error_kind or self.error_type):
            return None
        return ErrorInfo(self.error_kind, self.error_type, self.message)


def read_events(queue: str, entries: Any) -> list[Event]:
    """Events from the entries of a stream (XRANGE), one per job; what is none is passed over."""
    found: list[Event] = []
    for entry in entries if isinstance(entries, list) else ():
        found += _entry(queue, entry)
    return found


def read_streams(queue: str, reply: Any) -> list[Event]:
    """Events from the reply to an XREAD of this queue's stream alone; None is no event."""
    if isinstance(reply, dict):  # RESP3
        reply = list(reply.items())
    return [event for _, entries in reply or () for event in read_events(queue, entries)]


def _entry(queue: str, entry: Any) -> Iterable[Event]:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2 or not isinstance(entry[1], list):
        return
    id, fields = records.text(entry[0]), records.table(entry[1])
    try:
        kind = EventKind(records.text(fields.get(b"k", b"")))
    except ValueError:  # of a later version
        return
    jobs = records.text(fields.get(b"i", b"")).split()
    many = fields.get(b"n", b"1")
    facts = {
        "queue": queue,
        "at": when(int(ms)) if (ms := id.partition("-")[0]).isdigit() else None,
        "count": int(many) if isinstance(many, bytes) and many.isdigit() else 1,
        "worker": records.text(fields.get(b"w", b"")),
        **_detail(kind, fields.get(b"d")),
    }
    for job_id in jobs or [""]:
        yield Event(id, kind, job_id=job_id, **facts)


def _detail(kind: EventKind, data: Any) -> dict[str, Any]:
    if not isinstance(data, bytes):
        return {}
    if kind is EventKind.PROGRESS:
        return {"progress": records.read_progress(data)}
    # A message is cut by bytes, perhaps in the middle of a letter.
    words = records.read_json(data.decode(errors="ignore"))
    if not isinstance(words, dict):
        return {}
    numbers = {
        name: int(words[name])
        for name in ("attempt", "retries_left")
        if records.is_number(words.get(name))
    }
    names = {"error_kind": "kind", "error_type": "type", "message": "message"}
    return {**numbers, **{name: str(words.get(word) or "") for name, word in names.items()}}
