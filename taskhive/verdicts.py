"""What becomes of an attempt that is over: how it is settled, and what is said about it. Pure."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, assert_never

from taskhive import blackbox
from taskhive.blackbox import BlackBox
from taskhive.outcomes import Costs, Ended, Finished, Outcome, Raised
from taskhive.parcels import Settle
from taskhive.retries import Again, FailureKind, GiveUp, decide
from taskhive.slot import Attempt

_KINDS = {
    "timeout": FailureKind.TIMEOUT,
    "memory": FailureKind.MEMORY,
    "oom-kill": FailureKind.MEMORY,
    "cpu": FailureKind.CPU,
}
_TYPES = {
    FailureKind.TIMEOUT: "JobTimeout",
    FailureKind.MEMORY: "JobMemory",
    FailureKind.CPU: "JobCpuTime",
    FailureKind.CRASH: "JobCrashed",
}
# What a child may call the end of its own attempt; anything else it says is an error.
_OWN_KINDS = {kind.value: kind for kind in (FailureKind.PERMANENT, FailureKind.TIMEOUT)}


@dataclass(slots=True)
class Verdict:
    """A settle, if the job is still ours to settle, and a line for the log, if it is worth one."""

    settle: Settle | None
    event: str = ""
    level: str = "info"
    facts: dict[str, Any] | None = None


def verdict(outcome: Outcome, rng: random.Random, wall: float) -> Verdict:
    """How one attempt ended, for the server and for the log."""
    match outcome:
        case Finished():
            return Verdict(_succeeded(outcome))
        case Raised():
            return _raised(outcome, rng, wall)
        case Ended():
            return _ended(outcome, rng)
        case _:
            assert_never(outcome)


def _succeeded(outcome: Finished) -> Settle:
    job, ttl = outcome.attempt.job, _ttl(outcome.attempt.options.result_ttl)
    note = b"" if ttl == 0 else _note(outcome.attempt, outcome.costs)
    return Settle(job.id, job.token, "done", ttl_ms=ttl, body=outcome.result, note=note)


def _note(attempt: Attempt, costs: Costs) -> bytes:
    """What is kept of an attempt that went well; by hand, since most have nothing but numbers."""
    note = b'{"wall":%.6f,"cpu":%.6f,"peak_memory":%d' % (costs.wall, costs.cpu, costs.peak_memory)
    if attempt.output:
        note += b',"output":' + json.dumps(blackbox.last_lines(list(attempt.output))).encode()
    return note + b"}"


def _raised(outcome: Raised, rng: random.Random, wall: float) -> Verdict:
    attempt = outcome.attempt
    kind = _OWN_KINDS.get(outcome.kind, FailureKind.ERROR)
    after = outcome.after
    if outcome.at is not None:
        after = max(0.0, outcome.at - wall)
    box = _box("raised", attempt, outcome.costs)
    error, body = blackbox.with_box(outcome.record, box, _left(attempt, kind))
    settle = failed(attempt, kind, body, rng, after)
    facts = {
        "job": _name(attempt),
        "error": error,
        "seconds": outcome.costs.wall,
        "next": _next(settle),
    }
    return Verdict(settle, "attempt.raised", "warning", facts)


def _ended(outcome: Ended, rng: random.Random) -> Verdict:
    attempt, box = outcome.attempt, outcome.box
    job = attempt.job
    name = _name(attempt)
    match box.verdict:
        case "lease lost":
            # Not ours any more: whoever has it now decides.
            return Verdict(None, "attempt.lost", "warning", {"job": name, "why": attempt.message})
        case "returned":
            settle = Settle(job.id, job.token, "release", delay_ms=-1)
            return Verdict(settle, "attempt.returned", "info", {"job": name})
        case "cancelled":
            settle = Settle(job.id, job.token, "cancelled")
            return Verdict(settle, "attempt.cancelled", "info", {"job": name, "seconds": box.wall})
    kind = _KINDS.get(box.verdict, FailureKind.CRASH)
    message = attempt.message or f"its process ended: {box.verdict}"
    body = blackbox.encode(_TYPES.get(kind, "JobCrashed"), message, box, _left(attempt, kind))
    settle = failed(attempt, kind, body, rng)
    facts = {
        "job": name,
        "verdict": box.verdict,
        "seconds": box.wall,
        "cpu": box.cpu,
        "at": box.where(),
        "next": _next(settle),
    }
    event = "attempt.killed" if attempt.verdict else "attempt.crashed"
    return Verdict(settle, event, "error", facts)


def failed(
    attempt: Attempt, kind: FailureKind, body: bytes, rng: random.Random, after: float | None = None
) -> Settle:
    """How a failed attempt is settled: again after a while, or given up."""
    job, options = attempt.job, attempt.options
    match decide(kind, job.counts, options.limits(), rng):
        case Again(delay):
            wait = delay if after is None else after
            return Settle(job.id, job.token, "again", kind.value, _ms(wait), body=body)
        case GiveUp():
            ttl = _ttl(options.failure_ttl)
            return Settle(job.id, job.token, "fail", kind.value, ttl_ms=ttl, body=body)


def _left(attempt: Attempt, kind: FailureKind) -> int:
    """How often it may still be put back for this."""
    return max(0, attempt.options.limits().of(kind) - attempt.job.counts.of(kind))


def _box(word: str, attempt: Attempt, costs: Costs) -> BlackBox:
    return BlackBox(
        word,
        wall=costs.wall,
        cpu=costs.cpu,
        peak_memory=costs.peak_memory,
        progress=attempt.progress,
        output=list(attempt.output),
    )


def _name(attempt: Attempt) -> str:
    return f"{attempt.queue}/{attempt.job.id}"


def _next(settle: Settle) -> str:
    return f"again in {settle.delay_ms / 1000:.1f} s" if settle.outcome == "again" else "given up"


def _ttl(seconds: Any) -> int:
    return -1 if seconds is None else _ms(seconds)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
