"""Generated job ids: 22 characters that sort by time, and request nonces."""

from __future__ import annotations

import os
import time
from binascii import b2a_base64

# Ordered as bytes order them, so that sorting ids sorts by time.
_ALPHABET = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_V = _ALPHABET.index("V") << 42
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
# Random characters need no order: base64 as the standard library has it, with two letters changed.
_OURS = bytes.maketrans(b"+/", b"-_")


def new_id() -> str:
    """A V, 42 bits of milliseconds and 84 random bits, in base 64: 22 characters until 2109.

    The first one is fixed: an id that began with a dash would be an option on a command line.
    """
    return _moment() + b2a_base64(os.urandom(12))[:14].translate(_OURS).decode()


def new_ids(count: int) -> list[str]:
    """As many ids of this moment, at a sixth of the price; within it they have no order."""
    moment = _moment()
    # Drawn at once and used at once: bytes kept for later would be used twice after a fork.
    text = b2a_base64(os.urandom(12 * count)).translate(_OURS).decode()
    return [moment + text[start : start + 14] for start in range(0, 16 * count, 16)]


def nonce() -> str:
    """66 random bits in 11 characters: names one request among those that could be confused."""
    return b2a_base64(os.urandom(9))[:11].translate(_OURS).decode()


def _moment() -> str:
    bits = _V | time.time_ns() // 1_000_000
    pairs = _PAIRS
    return pairs[bits >> 36] + pairs[bits >> 24 & 4095] + pairs[bits >> 12 & 4095] + pairs[bits & 4095]
