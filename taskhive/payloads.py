"""Arguments and results as data, signed and verified where there is a secret.

Without one, data is written as it is, and read whether it is signed or not: it is data, and was taken
from anybody before. With one, what is not signed for its place is refused before it is parsed.
"""

from __future__ import annotations

from typing import Any

from taskhive import codec
from taskhive.signing import DATA, BadSignature, KeyRing, Purpose
from taskhive.units import LANE_SUFFIX


def sealed(
    ring: KeyRing | None, purpose: Purpose, queue: str, job_id: str, data: bytes, due: float = 0.0
) -> bytes:
    """Encoded arguments or an encoded result, signed for this place if data is signed here."""
    if ring is None or not ring.signs_data:
        return data
    return ring.seal(purpose, queue, job_id, data, DATA, due)


def decode_call(
    ring: KeyRing | None, queue: str, job_id: str, data: bytes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a job; BadPayload for what nobody who may has written for it."""
    return codec.decode_call(_opened(ring, "call", queue, job_id, data))


def decode_result(ring: KeyRing | None, queue: str, job_id: str, data: bytes) -> Any:
    """A result from its stored form; an empty one is a None."""
    data = _opened(ring, "result", queue, job_id, data)
    return codec.decode_result(data) if data else None


def signed_for(queue: str, job_id: str, failed: Any) -> tuple[str, str]:
    """Whose arguments a job has: a failure job those of the job that `failed`, as that one had them."""
    if failed is None or not queue.endswith(LANE_SUFFIX):
        return queue, job_id
    return queue.removesuffix(LANE_SUFFIX), str(failed)


def are_signed(ring: KeyRing | None) -> bool:
    """Whether data is signed and verified here."""
    return ring is not None and ring.signs_data


def _opened(ring: KeyRing | None, purpose: Purpose, queue: str, job_id: str, data: bytes) -> bytes:
    if ring is None or not ring.signs_data:
        return data
    if ring.accepts_unsigned and data[:1] in (b"", b"j", b"k", b"r"):
        return data
    if data[:1] == codec.SIGNED:
        return ring.open(purpose, queue, job_id, data, DATA)
    raise BadSignature(
        "it is not signed, and this program has a secret: whoever wrote it needs that too"
    )
