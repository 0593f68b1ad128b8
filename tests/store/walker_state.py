"""The whole state of a queue as the server holds it, read in one call and decoded."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HASHES = (
    "meta",
    "jobs",
    "next",
    "leases",
    "ended",
    "memory0",
    "memory1",
    "memory2",
    "quarantine",
    "costs",
)
SETS = ("ready", "delayed", "blocked", "expiring", "active", "succeeded", "failed", "cancelled")

DUMP = """#!lua flags=no-writes
local out = {}
for i, kind in ipairs(ARGV) do
  if kind == 'h' then out[i] = redis.call('HGETALL', KEYS[i])
  elseif kind == 'z' then out[i] = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES')
  else out[i] = redis.call('GET', KEYS[i]) or '' end
end
return out
"""

_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_NUMBERS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_STRINGS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}


class Unpacker:
    """As much of MessagePack as the server's library writes."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def all(self) -> list[Any]:
        found = []
        while self.at < len(self.raw):
            found.append(self.one())
        return found

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.raw, self.at)
        self.at += struct.calcsize(form)
        return int(value) if value == int(value) else value

    def string(self, length: int) -> bytes:
        self.at += length
        return self.raw[self.at - length : self.at]

    def one(self) -> Any:
        head = self.raw[self.at]
        self.at += 1
        if head < 0x80:
            return head
        if head < 0x90:
            return self.table(head & 0x0F)
        if head < 0xA0:
            return [self.one() for _ in range(head & 0x0F)]
        if head < 0xC0:
            return self.string(head & 0x1F)
        if head >= 0xE0:
            return head - 0x100
        if head in _NUMBERS:
            return self.number(_NUMBERS[head])
        if head in _STRINGS:
            return self.string(self.number(_STRINGS[head]))
        if head in (0xDC, 0xDD):
            return [self.one() for _ in range(self.number(">H" if head == 0xDC else ">I"))]
        if head in (0xDE, 0xDF):
            return self.table(self.number(">H" if head == 0xDE else ">I"))
        return {0xC0: None, 0xC2: False, 0xC3: True}[head]

    def table(self, size: int) -> dict[str, Any]:
        return {self.one().decode(): self.one() for _ in range(size)}


@dataclass
class RawQueue:
    """The bytes of every key of one queue."""

    hashes: dict[str, dict[str, bytes]]
    sets: dict[str, list[tuple[str, int]]]
    requests: dict[str, bytes]

    def ids(self, name: str) -> list[str]:
        return [id for id, _ in self.sets[name]]


def kinds(workers: tuple[str, ...]) -> list[bytes]:
    return [b"h"] * len(HASHES) + [b"z"] * len(SETS) + [b"s"] * len(workers)


def parts(workers: tuple[str, ...]) -> list[str]:
    return [*HASHES, *SETS, *(f"request:{worker}" for worker in workers)]


def read(rows: list[Any], workers: tuple[str, ...]) -> RawQueue:
    """One queue from its share of the dump."""
    hashes, sets = {}, {}
    for name, row in zip(HASHES, rows, strict=False):
        hashes[name] = {key.decode(): value for key, value in zip(row[::2], row[1::2], strict=True)}
    for name, row in zip(SETS, rows[len(HASHES) :], strict=False):
        sets[name] = [(id.decode(), int(score)) for id, score in zip(row[::2], row[1::2], strict=True)]
    held = rows[len(HASHES) + len(SETS) :]
    return RawQueue(hashes, sets, {w: raw for w, raw in zip(workers, held, strict=True) if raw})


_BYTES = ("payload", "b", "e", "v", "N", "body")


_ENDED = dict.fromkeys(("w", "F", "v", "N"))


def _text(name: str, value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) and name not in _BYTES else value


def _filled(words: dict[str, Any]) -> dict[str, Any]:
    """Every field there is, with its default where the record is silent."""
    full: dict[str, Any] = dict.fromkeys("oxmyfekijzbn")
    full |= dict.fromkeys("garstcdTCM", 0) | {"u": words["created"], "p": 100}
    full |= {name: _text(name, value) for name, value in words.items()}
    full["q"] = tuple(full.get("q", "").split(",")[1:])
    past = full.get("A", [])
    full["A"] = tuple(word if n % 2 else word.decode() for n, word in enumerate(past))
    return full


FIRST = 1_704_067_200_000
"""The first moment of 2024, from which a record counts."""


def job(raw: bytes) -> dict[str, Any]:
    """A waiting or running job."""
    payload, moment, *rest = Unpacker(raw).all()
    if not isinstance(moment, bytes) or len(moment) != 5:
        raise ValueError(f"dispatched at {moment!r}, which is not five bytes")
    created = FIRST + int.from_bytes(moment, "big")
    return _filled({"payload": payload, "created": created, **(rest[0] if rest else {})})


def leased(row: list[Any]) -> dict[str, Any]:
    """A job as an exchange hands it out."""
    id, token, payload, created = row[:4]
    fields = {}
    if len(row) > 4:
        fields = {k.decode(): v for k, v in zip(row[4][::2], row[4][1::2], strict=True)}
    words = _filled({**fields, "payload": payload, "created": created})
    if words.pop("A"):
        raise ValueError("past attempts were sent with a lease")
    return {"id": id.decode(), "token": token.decode(), **words}


def ended(raw: bytes) -> dict[str, Any]:
    """An ended job."""
    state, generation, at, body, created, ext = Unpacker(raw).all()
    ext = ext if isinstance(ext, dict) else {}
    payload = ext.pop("P", b"")
    words = _filled({**_ENDED, **ext, "payload": payload, "created": created})
    return {**words, "g": generation, "state": state.decode(), "at": at, "body": body}


def fetched(row: Any, generation: Callable[[int], int]) -> Any:
    """One answer of a fetch."""
    if not isinstance(row, list):
        return {0: "pending", -1: "unknown"}[row]
    state, number, at, body, kind = row
    return {
        "state": state.decode(),
        "g": generation(number),
        "at": at,
        "body": body,
        "k": kind.decode() or None,
    }


def lease(raw: bytes) -> tuple[str, int, int, int, bytes | None]:
    """Token, length, when it was taken, marks, progress."""
    token, length, taken, marks, _, *progress = Unpacker(raw).all()
    return token.decode(), length, taken, marks, progress[0] if progress else None


def events(entries: list[Any]) -> list[tuple[str, list[str] | int]]:
    """Kinds, and ids or how many, of the entries of a stream, in order of kind."""
    found: list[tuple[str, list[str] | int]] = []
    for _, words in entries:
        fields = {k.decode(): v.decode() for k, v in zip(words[::2], words[1::2], strict=True)}
        ids: list[str] | int = sorted(fields["i"].split()) if "i" in fields else int(fields["n"])
        found.append((fields["k"], ids))
    return sorted(found, key=lambda one: one[0])


def request(raw: bytes) -> tuple[str, list[tuple[str, str]]]:
    """The last request of a worker, and what it was given: ids, and the number their tokens follow."""
    name, first, ids = Unpacker(raw).all()
    tokens = [f"{first + i}.{name.decode()}" for i in range(1, len(ids) + 1)]
    return name.decode(), [(id.decode(), token) for id, token in zip(ids, tokens, strict=True)]


READERS: dict[str, Callable[[bytes], Any]] = {
    "job": job,
    "ended": ended,
    "lease": lease,
    "request": request,
}
