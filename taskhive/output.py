"""Standard output and error as lines, so that each can be told apart and sent on."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
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
        self._part = ""
        self.sink: Callable[[int, str], None] | None = None
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        """Take text; whole lines go on at once."""
        if self.sink is None:
            os.write(self._descriptor, text.encode(errors="backslashreplace"))
            return len(text)
        if "\n" not in text and len(self._part) + len(text) < MAX_LINE:
            self._part += text
            return len(text)
        *lines, self._part = (self._part + text).split("\n")
        while len(self._part) > MAX_LINE:
            lines.append(self._part[:MAX_LINE])
            self._part = self._part[MAX_LINE:]
        for line in lines:
            self.sink(self._descriptor, line)
        return len(text)

    def end(self) -> None:
        """Hand on what has no line end yet: the attempt is over."""
        part, self._part = self._part, ""
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
