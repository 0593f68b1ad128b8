"""Signed envelopes: bytes that only a holder of the secret can have written, for this place alone.

    p or s | 1 | kid, 8 | created ms, 8 | HMAC-SHA-256, 32 | body

A `p` holds a pickle, an `s` data as `codec` writes it. The signature covers what the envelope is for (a
call, a result, an exception), its key, its codec, the queue, the job id, the moment and the body. So a
signed body cannot be moved to another job, queue or purpose. It is compared in constant time before
anything is parsed.

A ring has one key or several: the first signs, any of them verifies. Secrets are never used themselves;
each purpose has a key derived from them (HKDF, RFC 5869). Beside the keys there may be one word that
says what is done about data; as part of the ring it goes wherever the keys go.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import time
from collections.abc import Iterable
from typing import Any, Literal

from taskhive.codec import ENVELOPE, SIGNED
from taskhive.errors import BadSignature as BadSignature
from taskhive.errors import ConfigurationError

Purpose = Literal["call", "result", "exception"]

PICKLE, DATA = b"p", SIGNED
PICKLES_ONLY = b"pickles-only"
"""Data is neither signed nor verified."""
ACCEPT_UNSIGNED = b"accept-unsigned"
"""Data is signed, but what is not is taken as well: while a secret is introduced."""
LEAST_BYTES = 32
MAX_AGE = 30 * 86400.0
"""Seconds after which an envelope is refused: a replay of an old job does not work for ever."""
_VERSION = b"1"
_KID = 8
_HEAD = struct.Struct(f"!cc{_KID}sQ32s")
assert _HEAD.size == ENVELOPE
_LENGTHS = struct.Struct("!IIIQ")
REMEDY = (
    "Set TASKHIVE_SECRET, or TASKHIVE_SECRET_FILE to the name of a file, in the programs that dispatch "
    "and in the workers; a good one comes from: python -c 'import secrets; "
    "print(secrets.token_urlsafe(32))'"
)


class KeyRing:
    """The keys of a program; its repr shows none of them."""

    def __init__(self, secrets: Iterable[str | bytes]) -> None:
        given = [word.encode() if isinstance(word, str) else bytes(word) for word in secrets]
        words = [word for word in given if word not in (PICKLES_ONLY, ACCEPT_UNSIGNED)]
        self.signs_data = PICKLES_ONLY not in given
        self.accepts_unsigned = ACCEPT_UNSIGNED in given
        if not words:
            raise ConfigurationError("secret", "there is none in it", REMEDY)
        for word in words:
            if len(word) < LEAST_BYTES:
                raise ConfigurationError(
                    "secret", f"one has {len(word)} bytes, and {LEAST_BYTES} are the least", REMEDY
                )
        self._words = given
        self._keys = {_derived(word, "kid")[:4].hex().encode(): word for word in words}
        self._first = next(iter(self._keys))
        self._states: dict[tuple[bytes, str], _States] = {}

    def seal(
        self,
        purpose: Purpose,
        queue: str,
        job_id: str,
        body: bytes,
        codec: bytes = PICKLE,
        due: float = 0.0,
    ) -> bytes:
        """An envelope for this purpose and place; `due`: the moment before which it is not wanted."""
        created = max(time.time_ns() // 1_000_000, int(due * 1000))
        mac = self._mac(purpose, self._first, codec, queue, job_id, created, body)
        return _HEAD.pack(codec, _VERSION, self._first, created, mac) + body

    def open(
        self, purpose: Purpose, queue: str, job_id: str, sealed: bytes, codec: bytes = PICKLE
    ) -> bytes:
        """The body of an envelope that was written for this purpose and place; else BadSignature."""
        if len(sealed) < _HEAD.size:
            raise BadSignature("it is too short to be signed")
        found, version, kid, created, mac = _HEAD.unpack_from(sealed)
        if found != codec or version != _VERSION:
            raise BadSignature("it is not signed, of another codec, or of another version of TaskHive")
        if kid not in self._keys:
            raise BadSignature("it is signed by a key that is not in this ring")
        body = sealed[_HEAD.size :]
        if not hmac.compare_digest(mac, self._mac(purpose, kid, codec, queue, job_id, created, body)):
            raise BadSignature("its signature does not fit: forged, moved here, or damaged")
        age = time.time() - created / 1000
        if age > MAX_AGE:
            raise BadSignature(f"it was signed {age:.0f} s ago by the clock of its writer")
        return body

    def portable(self) -> list[str]:
        """The secrets themselves, for a process that needs them over a private socket."""
        return [word.decode("latin-1") for word in self._words]

    @classmethod
    def from_portable(cls, words: list[str]) -> KeyRing:
        """A ring that came over a private socket."""
        return cls([word.encode("latin-1") for word in words])

    def _mac(
        self,
        purpose: Purpose,
        kid: bytes,
        codec: bytes,
        queue: str,
        job_id: str,
        created: int,
        body: bytes,
    ) -> bytes:
        states = self._states.get((kid, purpose))
        if states is None:
            states = self._states[kid, purpose] = _states(_derived(self._keys[kid], purpose))
        names = (queue.encode(), job_id.encode())
        # Lengths first: no two sets of names and bodies run together to the same bytes.
        head = _LENGTHS.pack(len(names[0]), len(names[1]), len(body), created)
        inner, outer = states[0].copy(), states[1].copy()
        inner.update(b"".join((b"TH1", codec, _VERSION, kid, head, *names, body)))
        outer.update(inner.digest())
        made: bytes = outer.digest()
        return made

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing({len(self)} keys)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key ring is not pickled: it would travel with whatever holds it")


_States = tuple[Any, Any]


def _states(key: bytes) -> _States:
    """HMAC (RFC 2104) as far as the key alone decides it: the inner hash and the outer.

    `hmac.digest` lets go of the interpreter's lock in every call. Where several threads sign and
    verify, as in an Executor, each then waits for the others more often than it works.
    """
    padded = key.ljust(64, b"\0")
    return tuple(  # type: ignore[return-value]
        hashlib.sha256(bytes(byte ^ mask for byte in padded)) for mask in (0x36, 0x5C)
    )


def _derived(secret: bytes, purpose: str) -> bytes:
    """A key for one purpose: HKDF with SHA-256, one block."""
    extracted = hmac.digest(b"taskhive", secret, hashlib.sha256)
    return hmac.digest(extracted, b"taskhive " + purpose.encode() + b"\x01", hashlib.sha256)


def is_sealed(data: bytes) -> bool:
    """Whether bytes claim to be a signed pickle."""
    return data[:1] == PICKLE
