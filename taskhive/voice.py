"""What one attempt says of itself: its output, its progress, and whether it was asked to stop."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from taskhive.wire import Kind, json_frame

if TYPE_CHECKING:
    from taskhive.mouth import Mouth

MAX_OUTPUT = 1024 * 1024
"""Bytes of output that one attempt may send; the rest is counted and dropped."""


class Voice:
    """Speaks for one attempt through the mouth of its child."""

    __slots__ = ("_dropped", "_mouth", "_printed", "number")

    def __init__(self, mouth: Mouth, number: int) -> None:
        self.number = number
        self._mouth = mouth
        self._printed = 0
        self._dropped = 0

    def print(self, line: str) -> None:
        """Pass on one line of output."""
        self._printed += len(line) + 1
        if self._printed > MAX_OUTPUT:
            self._dropped += len(line) + 1
            return
        self._mouth.send(json_frame(Kind.OUTPUT, [self.number, line]))

    def progress(self, progress: dict[str, Any]) -> None:
        """Say how far the attempt is."""
        self._mouth.check_process("progress()")
        try:
            data = json_frame(Kind.PROGRESS, [self.number, progress])
        except (TypeError, ValueError) as error:
            raise TypeError(f"progress takes numbers, and a note of JSON: {error}") from error
        if len(data) > 4000:
            raise ValueError("a note of progress may have 3,900 bytes at most: store what is longer")
        self._mouth.send(data)

    def is_cancelled(self) -> bool:
        """Whether somebody asked the attempt to stop."""
        return self._mouth.is_cancelled(self.number)

    def end(self) -> None:
        """It is over; say what was not passed on."""
        self._mouth.cancelled.discard(self.number)
        if self._dropped:
            line = f"({self._dropped:,} more bytes of output were dropped)"
            self._mouth.send(json_frame(Kind.OUTPUT, [self.number, line]))


own: ContextVar[Voice | None] = ContextVar("taskhive_voice", default=None)
"""Of attempts that share a child each has its own, in the context of its thread or task."""
