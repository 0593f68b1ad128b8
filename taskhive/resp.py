"""Commands as the server reads them.

Not the client library's packer: the head of a script call (its digest and a score of key names) is
the same for every call on a queue, and is packed once.
"""

from __future__ import annotations

from collections.abc import Sequence

# What goes before a word, for the lengths most words have: formatting is half the cost of packing.
_HEADS = tuple(b"$%d\r\n" % size for size in range(1024))


def pack(*words: bytes) -> bytes:
    """One whole command."""
    return b"*%d\r\n%b" % (len(words), pack_words(words))


def pack_words(words: Sequence[bytes]) -> bytes:
    """Arguments without the count that goes before them."""
    parts: list[bytes] = []
    for word in words:
        size = len(word)
        parts += (_HEADS[size] if size < len(_HEADS) else b"$%d\r\n" % size, word, b"\r\n")
    return b"".join(parts)
