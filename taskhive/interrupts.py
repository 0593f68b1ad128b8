"""Ctrl-C while a command starts: it ends at once, without a word.

As an exception it would come out of whatever is being imported, as a traceback of somebody else's
lines, or be lost: the import system calls functions from where nothing can be raised. Before a command
has begun there is nothing to clean up, so the process simply ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def silence() -> None:
    """End at once from now on, unless whoever started us has Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """KeyboardInterrupt in here, for a command that has something to clean up; it goes no further."""
    is_silent = signal.getsignal(signal.SIGINT) is _leave
    try:
        if is_silent:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        if is_silent:
            signal.signal(signal.SIGINT, _leave)
