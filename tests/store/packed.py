"""MessagePack as a hand that corrupts records would write it."""

from __future__ import annotations

import struct
from typing import Any


def packed(*values: Any) -> bytes:
    """The values one behind the other, as the scripts pack a record."""
    return b"".join(_one(value) for value in values)


def _one(value: Any) -> bytes:
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return b"\xd3" + struct.pack(">q", value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case bytes():
            return b"\xdb" + struct.pack(">I", len(value)) + value
        case str():
            return _one(value.encode())
        case list():
            return b"\xdc" + struct.pack(">H", len(value)) + b"".join(_one(item) for item in value)
        case dict():
            inside = b"".join(_one(key) + _one(item) for key, item in value.items())
            return b"\xde" + struct.pack(">H", len(value)) + inside
    raise TypeError(f"{type(value).__name__} is not packed here")
