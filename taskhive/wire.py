"""Frames between supervisor, zygote and children: a length, a checksum, a kind, a body.

What a child sends is hostile until checked: a length is bounded, a checksum must fit, and a body is
parsed only by the reader of its kind. Numbers and bytes, never pickles.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

MAX_FRAME = 80 * 1024 * 1024
_HEAD = struct.Struct("!IIB")
HEAD_SIZE = _HEAD.size


class Kind(IntEnum):
    """What a frame is about."""

    # supervisor to child
    RUN = 1
    ANSWER = 2
    CANCEL = 3
    JOIN = 4
    INTERRUPT = 5
    PING = 6
    # child to supervisor
    READY = 16
    FINISHED = 18
    RAISED = 19
    OUTPUT = 20
    PROGRESS = 21
    ASK = 22
    PONG = 23
    # supervisor to zygote
    FORK = 32
    SIGNAL = 33
    KILL = 34
    PULSE = 35
    ENTRUST = 36
    # zygote to supervisor
    CATALOG = 48
    BROKEN = 49
    FORKED = 50
    EXITED = 51


class BadFrame(Exception):
    """Bytes that are no frame: the sender is broken or hostile, and is to be killed."""


def frame(kind: Kind, body: bytes) -> bytes:
    """One frame, ready to be sent."""
    return _HEAD.pack(len(body), zlib.crc32(body), kind) + body


def json_frame(kind: Kind, value: Any, tail: bytes = b"") -> bytes:
    """A frame whose body is JSON on one line, then raw bytes."""
    return frame(kind, json_body(value, tail))


def json_body(value: Any, tail: bytes = b"") -> bytes:
    """JSON on one line, then raw bytes."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n" + tail


def read_json(body: bytes) -> tuple[Any, bytes]:
    """The JSON and the raw bytes of a body; BadFrame if there is no such thing."""
    line, _, tail = body.partition(b"\n")
    try:
        return json.loads(line), tail
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a body that is no JSON: {error}") from error


class Reader:
    """Frames out of a stream of bytes."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Whole frames so far; raises BadFrame at the first that cannot be one."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= HEAD_SIZE:
                length, check, kind = _HEAD.unpack_from(buffer, start)
                if length > self._limit:
                    raise BadFrame(f"a frame of {length:,} bytes")
                end = start + HEAD_SIZE + length
                if len(buffer) < end:
                    break
                body = bytes(buffer[start + HEAD_SIZE : end])
                if zlib.crc32(body) != check:
                    raise BadFrame("a frame whose checksum does not fit")
                try:
                    known = Kind(kind)
                except ValueError:
                    raise BadFrame(f"a frame of unknown kind {kind}") from None
                start = end
                yield known, body
        finally:
            del buffer[:start]
