"""Replies of the scripts read into values; whatever stands in a record, reading it never fails."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from taskhive import codec
from taskhive.jobs import (
    AttemptInfo,
    ErrorInfo,
    Fetched,
    JobInfo,
    JobState,
    LimitHits,
    Progress,
    QueueStats,
    Standing,
    when,
)
from taskhive.options import read_stored
from taskhive.retries import Counts

_ENDED = {b"s": JobState.SUCCEEDED, b"f": JobState.FAILED, b"c": JobState.CANCELLED}
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
MAX_ERROR_TEXT = 16 * 1024


def text(value: Any) -> str:
    """A string of the server's; bytes that are no UTF-8 stay visible."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def table(flat: Any) -> dict[bytes, Any]:
    """A flat list of names and values as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=False))


def _number(fields: dict[bytes, Any], name: bytes, default: int = 0) -> int:
    value = fields.get(name, default)
    return value if isinstance(value, int) else default


def counts(fields: dict[bytes, Any]) -> Counts:
    """The counters of a record."""
    return Counts(*(_number(fields, name) for name in (b"r", b"t", b"s", b"c")))


def limit_hits(fields: dict[bytes, Any]) -> LimitHits:
    """How often each limit was hit."""
    return LimitHits(*(_number(fields, name) for name in (b"T", b"C", b"M")))


def encode_error(type_name: str, message: str, traceback: str = "") -> bytes:
    """An error as it is stored, cut to what a record may hold."""
    words = {"type": type_name[:200], "message": _cut(message)}
    if traceback:
        words["traceback"] = _cut(traceback)
    return json.dumps(words).encode()


def _cut(words: str) -> str:
    return words if len(words) <= MAX_ERROR_TEXT else words[: MAX_ERROR_TEXT - 3] + "..."


def read_error(body: bytes, kind: str) -> ErrorInfo:
    """An error from a record that anybody may have written."""
    try:
        words = json.loads(body)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict):
        return ErrorInfo(kind, "Unreadable", _cut(text(body)))
    return ErrorInfo(
        kind, *(_cut(str(words.get(name, ""))) for name in ("type", "message", "traceback"))
    )


@dataclass(frozen=True, slots=True)
class Look:
    """Everything known of one id."""

    place: str
    waiting: dict[bytes, Any]
    lease: list[Any]
    running: dict[bytes, Any]
    ended: list[Any]
    tried: Sequence[Any] = ()
    """Kinds and errors of the past attempts of the run that waits or runs, if they were asked for."""
    over: Sequence[Any] = ()
    """Those of the run that ended, but for its last attempt."""

    @classmethod
    def of(cls, reply: list[Any]) -> Look:
        """From the reply of look.lua."""
        _, _, place, waiting, lease, running, ended, *past = reply
        return cls(text(place), table(waiting), lease, table(running), ended, *past)

    def state(self, generation: int | None) -> JobState:
        """The state of that generation of runs; of the newest if None.

        A handle ends with the first end of its generation or of a later one: a run that was merged
        into another ends when that does.
        """
        if generation is None:
            if self.place:
                return JobState(self.place)
            if self.lease:
                return JobState.ACTIVE
            return self._ended_state()
        if self.ended and self.ended[1] >= generation:
            return self._ended_state()
        if self.lease and _number(self.running, b"g") >= generation:
            return JobState.ACTIVE
        if self.place:
            return JobState(self.place)
        return JobState.UNKNOWN

    def _ended_state(self) -> JobState:
        return _ENDED.get(self.ended[0], JobState.UNKNOWN) if self.ended else JobState.UNKNOWN

    def progress(self, generation: int | None) -> Progress | None:
        """What was reported last of that generation."""
        state = self.state(generation)
        if state is JobState.ACTIVE:
            return read_progress(self.lease[5])
        return read_progress(table(self.ended[4]).get(b"v")) if state in _ENDED.values() else None

    def attempts(self, generation: int | None) -> list[AttemptInfo]:
        """What is kept of the attempts of that generation that are over, oldest first."""
        state = self.state(generation)
        if state not in _ENDED.values():
            return [] if state is JobState.BLOCKED else read_attempts(self.tried)
        fields = table(self.ended[4])
        if state is JobState.FAILED:
            return read_attempts([*self.over, fields.get(b"k", b"error"), self.ended[3]])
        last = [AttemptInfo(None, costs=_facts(read_json(fields.get(b"N"))))]
        return read_attempts(self.over) + (last if b"w" in fields else [])

    def info(self, queue: str, job_id: str, generation: int | None) -> JobInfo:
        """All of it about that generation."""
        state = self.state(generation)
        if state is JobState.UNKNOWN:
            corrupt = bool(self.ended) and self.ended[0] == b"corrupt"
            return JobInfo(job_id, queue, state, corrupt=corrupt)
        if state in _ENDED.values():
            return read_ended(queue, job_id, self.ended)
        if state is JobState.ACTIVE:
            fields = {**self.running, b"token": self.lease[0], b"w": self.lease[2]}
            return read_job(queue, job_id, state, fields)
        return read_job(queue, job_id, state, self.waiting)


def is_number(value: Any) -> bool:
    """Whether JSON brought a number that can be reckoned with."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def read_json(data: Any) -> Any:
    """JSON that anybody may have written; None for what is none."""
    try:
        return json.loads(data, parse_constant=lambda _: None)
    except (TypeError, ValueError, RecursionError):
        return None


def read_progress(data: Any) -> Progress | None:
    """A progress as a renewal brought it, or None for what is none."""
    words = read_json(data) if data else None
    if not isinstance(words, dict) or not is_number(words.get("done")):
        return None
    total = words.get("total")
    return Progress(words["done"], total if is_number(total) else None, words.get("note"))


def _facts(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def read_attempts(words: Sequence[Any]) -> list[AttemptInfo]:
    """Failed attempts, from a list of kinds and errors in turn."""
    found = []
    for kind, body in zip(words[::2], words[1::2], strict=False):
        facts = _facts(read_json(body)) or {}
        error = read_error(body, text(kind) or "error")
        found.append(AttemptInfo(error, _facts(facts.get("black_box")), _facts(facts.get("costs"))))
    return found


def read_job(queue: str, job_id: str, state: JobState, fields: dict[bytes, Any]) -> JobInfo:
    """A waiting or running job."""
    if b"payload" not in fields:
        return JobInfo(job_id, queue, state, corrupt=True)
    error = fields.get(b"e")
    failed = fields.get(b"i")
    if failed is not None:  # a failure job speaks of another one's error
        error = fields.get(b"b")
    kind = text(fields.get(b"z" if failed is not None else b"k", b"error"))
    token = fields.get(b"token")
    return _info(
        queue,
        job_id,
        state,
        fields,
        token=text(token) if token is not None else None,
        error=read_error(error, kind) if isinstance(error, bytes) else None,
        failed_job=text(failed) if failed is not None else None,
    )


def read_ended(queue: str, job_id: str, row: Any) -> JobInfo:
    """An ended job, from `{state, generation, ended at, body, fields}`."""
    if not isinstance(row, list) or len(row) != 5 or row[0] not in _ENDED:
        return JobInfo(job_id, queue, JobState.UNKNOWN, corrupt=True)
    code, _, ended_at, body, flat = row
    state, fields = _ENDED[code], table(flat)
    more: dict[str, Any] = {"ended_at": when(ended_at)}
    if state is JobState.SUCCEEDED and body:
        try:
            more["result"] = codec.decode_result(body)
        except codec.Sealed:
            more["sealed"] = True
        except codec.BadPayload:
            more["corrupt"] = True
    elif state is JobState.FAILED:
        more["error"] = read_error(body, text(fields.get(b"k", b"error")))
        more["failure_job"] = text(fields[b"F"]) if b"F" in fields else None
    elif state is JobState.CANCELLED:
        more["reason"] = text(body)
    return _info(queue, job_id, state, fields, **more)


_STANDING = {-1: Standing.UNKNOWN, -2: Standing.LATER}


def read_fetched(job_id: str, row: Any) -> Fetched:
    """One answer of fetch.lua."""
    if not isinstance(row, list):
        return Fetched(job_id, _STANDING.get(row, Standing.PENDING))
    code, generation, ended_at, body, kind = row
    words = text(kind or b"error") if code == b"f" else ""
    return Fetched(job_id, Standing.ENDED, _ENDED[code], generation, when(ended_at), body, words)


def _info(queue: str, job_id: str, state: JobState, fields: dict[bytes, Any], **more: Any) -> JobInfo:
    payload = fields.get(b"payload")
    if payload:
        try:
            more["args"], kwargs = codec.decode_call(payload)
            more["kwargs"] = MappingProxyType(kwargs)
        except codec.Sealed:
            more["sealed"] = True
        except codec.BadPayload:
            more["corrupt"] = True
    created = _number(fields, b"created")
    started = _number(fields, b"w")
    expires = _number(fields, b"x")
    stored = fields.get(b"o")
    return JobInfo(
        id=job_id,
        queue=queue,
        state=state,
        created_at=when(created),
        run_at=when(_number(fields, b"u", created)),
        started_at=when(started) if started else None,
        expires=when(expires) if expires else None,
        priority=_number(fields, b"p", 100),
        generation=_number(fields, b"g"),
        attempts=_number(fields, b"a") + (state is not JobState.CANCELLED and bool(started)),
        counts=counts(fields),
        options=MappingProxyType(read_stored(text(stored))) if stored is not None else _NO_OPTIONS,
        **more,
    )


def read_stats(queue: str, reply: list[Any]) -> QueueStats:
    """The numbers of a queue from the reply of stats.lua."""
    _, _, ready, delayed, blocked, active, dead, oldest, flat = reply
    meta = table(flat)

    def counter(name: bytes) -> int:
        value = meta.get(name, b"0")
        return int(value) if value.lstrip(b"-").isdigit() else 0

    return QueueStats(
        queue=queue,
        ready=ready,
        delayed=delayed,
        blocked=blocked,
        active=active,
        dead=dead,
        created=counter(b"created"),
        succeeded=counter(b"succeeded"),
        failed=counter(b"failed"),
        cancelled=counter(b"cancelled"),
        merged=counter(b"merged"),
        oldest_wait=oldest / 1000 if oldest >= 0 else None,
        paused=meta.get(b"paused") == b"1",
        max_depth=counter(b"depth") if b"depth" in meta else None,
        stale=counter(b"stale"),
        duplicates=counter(b"dups"),
        swept=counter(b"swept"),
        anomalies=counter(b"anomalies"),
    )
