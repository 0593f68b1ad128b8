"""The end of a job as a waiting program sees it: a value, or an exception that says why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taskhive import codec
from taskhive.errors import (
    JobCancelled,
    JobCrashed,
    JobFailed,
    JobKilled,
    JobStalled,
    JobTimeout,
    RemoteError,
    ResultGone,
)
from taskhive.exceptions import rebuild
from taskhive.jobs import Fetched, JobState
from taskhive.records import read_error, text

Classes = Mapping[str, type[Exception]]

_CLASSES: dict[str, type[JobFailed]] = {
    "timeout": JobTimeout,
    "cpu": JobTimeout,
    "memory": JobKilled,
    "crash": JobCrashed,
    "stall": JobStalled,
}


def value_of(queue: str, job_id: str, end: Fetched, registered: Classes) -> Any:
    """The result of an ended job; raises what stands in its place."""
    match end.state:
        case JobState.SUCCEEDED:
            return codec.decode_result(end.body) if end.body else None
        case JobState.FAILED:
            raise failure_of(queue, job_id, end, registered)
        case JobState.CANCELLED:
            reason = text(end.body) or "cancelled"
            raise JobCancelled("cancelled", queue, job_id, _REASONS.get(reason, reason))
        case _:
            raise ResultGone(queue, job_id)


_REASONS = {
    "cancelled": "it was cancelled",
    "expired": "it expired before it was started",
    "purged": "it was purged",
    "removed": "it was deleted",
}


def failure_of(queue: str, job_id: str, end: Fetched, registered: Classes) -> Exception:
    """The exception of a failed job: its handler's own, or that of what happened to it."""
    error = read_error(end.body, end.kind)
    record = _record(end.body)
    raised = rebuild(record.get("exception"), registered)
    if end.kind in ("error", "permanent"):
        return raised or RemoteError(error.type, error.message)
    box = record.get("black_box")
    kind = _CLASSES.get(end.kind, JobFailed)
    made = kind(
        end.kind,
        queue,
        job_id,
        error.message,
        error=error,
        black_box=box if isinstance(box, dict) else None,
    )
    made.__cause__ = raised
    return made


def _record(body: bytes) -> dict[str, Any]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
