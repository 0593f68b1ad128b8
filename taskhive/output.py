"""Standard output and error as lines, so that each can be told apart and sent on."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from threading import get_ident
from typing import Any

MAX_LINE = 8192


class Lines(io.TextIOBase):
    """A text stream that hands whole lines to a sink; without one it writes to its descriptor.

    It stands in place of sys.stdout and sys.stderr before the user's modules are imported: what
    keeps a reference to the stream then, as logging does, goes on writing to the right place.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._parts: dict[int, str] = {}
        """By thread: lines of attempts that share a child must not run into each other."""
        self.sink: Callable[[int, str], None] | None = None
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        """Take text; whole lines go on at once."""
        if self.sink is None:
            os.write(self._descriptor, text.encode(errors="backslashreplace"))
            return len(text)
        length = len(text)
        me = get_ident()
        text = self._parts.pop(me, "") + text
        *lines, part = text.split("\n")
        while len(part) > MAX_LINE:
            lines.append(part[:MAX_LINE])
            part = part[MAX_LINE:]
        if part:
            self._parts[me] = part
        for line in lines:
            self.sink(self._descriptor, line)
        return length

    def end(self, thread: int | None = None) -> None:
        """Hand on what has no line end yet, of one thread or of all: the attempt is over."""
        for one in list(self._parts) if thread is None else [thread]:
            part = self._parts.pop(one, "")
            if part and self.sink is not None:
                self.sink(self._descriptor, part)

    def flush(self) -> None:
        """Nothing is held back but an unfinished line."""

    def fileno(self) -> int:
        """The real descriptor, for subprocesses."""
        return self._descriptor

    def isatty(self) -> bool:
        """Never: it is read by a worker."""
        return False

    def writable(self) -> bool:
        """Always."""
        return True


class _Bytes(io.RawIOBase):
    """The `.buffer` of the stream, for programs that print bytes."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def write(self, data: Any) -> int:
        text = bytes(data).decode(errors="backslashreplace")
        self._lines.write(text)
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._lines.fileno()
