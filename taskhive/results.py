"""The end of a job as a waiting program sees it: a value, or an exception that says why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from taskhive import payloads, pickles, secret
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
from taskhive.signing import KeyRing, is_sealed

Classes = Mapping[str, type[Exception]]

_CLASSES: dict[str, type[JobFailed]] = {
    "timeout": JobTimeout,
    "cpu": JobTimeout,
    "memory": JobKilled,
    "crash": JobCrashed,
    "stall": JobStalled,
}


Ring = Callable[[], KeyRing | None]


def value_of(queue: str, job_id: str, end: Fetched, registered: Classes, ring: Ring) -> Any:
    """The result of an ended job; raises what stands in its place."""
    match end.state:
        case JobState.SUCCEEDED:
            if is_sealed(end.body):
                return pickles.decode_result(secret.need(ring()), queue, job_id, end.body)
            return payloads.decode_result(ring(), queue, job_id, end.body)
        case JobState.FAILED:
            raise failure_of(queue, job_id, end, registered, ring)
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


def failure_of(queue: str, job_id: str, end: Fetched, registered: Classes, ring: Ring) -> Exception:
    """The exception of a failed job: its handler's own, or that of what happened to it."""
    error = read_error(end.body, end.kind)
    record = _record(end.body)
    raised = rebuild(record.get("exception"), registered)
    signed = record.get("exception", {}).get("pickle") if raised is not None else None
    if raised is not None and signed is not None and (keys := ring()) is not None:
        raised = _grafted(pickles.decode_exception(keys, queue, job_id, signed), raised)
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


def _grafted(signed: Exception | None, rebuilt: Exception) -> Exception:
    """The object itself, with what a pickle does not keep of it."""
    if signed is None:
        return rebuilt
    signed.__cause__, signed.__context__ = rebuilt.__cause__, rebuilt.__context__
    signed.__suppress_context__ = rebuilt.__suppress_context__
    return signed.with_traceback(rebuilt.__traceback__)


def _record(body: bytes) -> dict[str, Any]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
