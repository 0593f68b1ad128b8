"""Ends of very short attempts that a child has not sent yet, in memory it shares with the supervisor.

A child that sent the end of each attempt of a few microseconds would spend most of its time on telling.
So it sends them together; and lest they be lost with a child that dies in between, they lie here until
they are sent, where the supervisor finds them. Whatever is found is read as a stranger's frames are.
"""

from __future__ import annotations

import mmap
import os
import struct

from taskhive.wire import BadFrame, Kind, Reader

SIZE = 256 * 1024
_USED = struct.Struct("=Q")


class Outbox:
    """The child's side: a few frames, whole at every moment."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._used = 0
        os.close(descriptor)

    def put(self, data: bytes) -> bool:
        """Keep a frame; False if it does not fit."""
        start = _USED.size + self._used
        if start + len(data) > SIZE:
            return False
        self._memory[start : start + len(data)] = data
        # In this order: what is counted is there, whenever the kill comes.
        self._used += len(data)
        _USED.pack_into(self._memory, 0, self._used)
        return True

    def contents(self) -> bytes:
        """All frames that wait."""
        return self._memory[_USED.size : _USED.size + self._used]

    def clear(self) -> None:
        """They were sent."""
        self._used = 0
        _USED.pack_into(self._memory, 0, 0)


def make() -> int:
    """A descriptor of such memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("taskhive-outbox")
    else:
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="taskhive-outbox-")
        os.unlink(path)
    os.ftruncate(descriptor, SIZE)
    return descriptor


def read(descriptor: int) -> list[tuple[Kind, bytes]]:
    """What lies there; of what is no frame, all that came before it."""
    used = _USED.unpack(os.pread(descriptor, _USED.size, 0).ljust(_USED.size, b"\0"))[0]
    frames: list[tuple[Kind, bytes]] = []
    if 0 < used <= SIZE - _USED.size:
        try:
            frames.extend(Reader().feed(os.pread(descriptor, used, _USED.size)))
        except BadFrame:
            pass  # what can be read counts; the child is dead, or says the same by its socket
    return frames
