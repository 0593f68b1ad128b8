"""What supervisor and child say to each other, built and read; a child's words are checked here."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

from taskhive.retries import Counts
from taskhive.wire import BadFrame, Kind, frame, json_body, json_frame, read_json

_OVER = struct.Struct("!QddQB")
MAX_PROGRESS = 4096
NO_COUNTS = Counts()


def run(
    number: int,
    queue: str,
    job_id: str,
    fence: int,
    attempt: int,
    counts: Counts,
    extra: dict[str, Any] | None,
    payload: bytes,
    kind: Kind = Kind.RUN,
) -> bytes:
    """What a child needs to run an attempt; the arguments stay the bytes they are.

    `RUN`: after what it was given before. `JOIN`: beside that, in a thread or on its loop.
    """
    if counts is NO_COUNTS and extra is None:
        # By hand: names and ids have no character that JSON would write otherwise.
        head = b'[%d,"%b","%b",%d,%d,[0,0,0,0],null]\n' % (
            number,
            queue.encode(),
            job_id.encode(),
            fence,
            attempt,
        )
        return frame(kind, head + payload)
    told = [counts.retries, counts.timeouts, counts.stalls, counts.crashes]
    return json_frame(kind, [number, queue, job_id, fence, attempt, told, extra], payload)


class Over(NamedTuple):
    """What both ends of an attempt begin with: the costs, and whether the child is spent."""

    number: int
    wall: float
    cpu: float
    peak_memory: int
    spent: bool
    rest: bytes
    """The result; or, of one that raised, how to go on and the record."""


def over(kind: Kind, number: int, wall: float, cpu: float, peak: int, spent: bool, rest: bytes) -> bytes:
    """The end of an attempt, `FINISHED` or `RAISED`."""
    return frame(kind, _OVER.pack(number, wall, cpu, peak, spent) + rest)


def read_over(body: bytes) -> Over:
    """An end as a child tells it."""
    number, wall, cpu, peak, spent = _OVER.unpack_from(body)
    if not (math.isfinite(wall) and math.isfinite(cpu)):
        raise BadFrame("costs that are no numbers")
    return Over(number, wall, cpu, peak, bool(spent), body[_OVER.size :])


def failed_job(fields: dict[bytes, Any]) -> dict[str, Any] | None:
    """What a failure job tells its handler about the job that failed."""
    failed = fields.get(b"i")
    if not isinstance(failed, bytes):
        return None
    counts = [int(word) for word in fields.get(b"n", b"").split()[1:5] if word.isdigit()]
    return {
        "failure": {
            "job_id": failed.decode(errors="replace"),
            "kind": fields.get(b"z", b"error").decode(errors="replace"),
            "error": fields.get(b"b", b"").decode("latin-1"),
            "counts": (counts + [0] * 4)[:4],
        }
    }


def raised(kind: str, after: float | None, at: float | None, record: bytes) -> bytes:
    """What a child says about an exception: how to go on, then its record."""
    return json_body([kind, after, at], record)


def read_raised(rest: bytes) -> tuple[str, float | None, float | None, bytes]:
    """The same, as the supervisor reads it."""
    (kind, after, at), record = read_json(rest)
    return str(kind), _number(after), _number(at), record


def read_output(body: bytes) -> tuple[int, str]:
    """A line of an attempt."""
    (number, line), _ = read_json(body)
    return int(number), str(line)


def read_progress(body: bytes) -> tuple[int, dict[str, Any]]:
    """How far an attempt says it is."""
    if len(body) > MAX_PROGRESS:
        raise BadFrame(f"progress of {len(body)} bytes")
    (number, value), _ = read_json(body)
    if not isinstance(value, dict):
        raise BadFrame("progress that is none")
    return int(number), value


def read_question(body: bytes) -> tuple[int, str, list[Any]]:
    """What a handler asks of the server: number, verb, arguments."""
    (number, verb, args), _ = read_json(body)
    return int(number), str(verb), list(args)


def answer(number: int, data: bytes) -> bytes:
    """The reply to a question."""
    return json_frame(Kind.ANSWER, [number], data)


def cancel(number: int) -> bytes:
    """Word to an attempt that somebody asks it to stop by itself."""
    return json_frame(Kind.CANCEL, number)


def interrupt(number: int, word: str) -> bytes:
    """Order to end one of the attempts that share a child: its soft limit has passed, or somebody
    cancelled it."""
    return json_frame(Kind.INTERRUPT, [number, word])


def ping(number: int) -> bytes:
    """Does anything still move in there?"""
    return json_frame(Kind.PING, number)


def read_pong(body: bytes) -> int:
    """Which question it answers."""
    number, _ = read_json(body)
    return int(number)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
