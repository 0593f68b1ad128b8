"""Events of a worker as lines: readable text, or JSON."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
import time
from typing import Any, TextIO

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_COLOURS = {"error": "31", "warning": "33", "info": "36", "output": "2"}
MAX_VALUE = 500


def clean(text: str) -> str:
    """One line of text that cannot pretend to be two, or to be another colour."""
    cut = text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."
    return _UNSAFE.sub(lambda match: f"\\x{ord(match[0]):02x}", cut)


class Log:
    """Writes one line per event."""

    def __init__(self, stream: TextIO | None = None, *, as_json: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._json = as_json
        self._is_terminal = not as_json and self._stream.isatty()

    def event(self, name: str, level: str = "info", **facts: Any) -> None:
        """One transition."""
        if self._json:
            line = json.dumps(
                {"time": round(time.time(), 3), "level": level, "event": name, **facts}, default=str
            )
        else:
            stamp = time.strftime("%H:%M:%S")
            words = " ".join(
                f"{key}={_shown(value)}" for key, value in facts.items() if value is not None
            )
            line = f"{stamp} {name} {words}".rstrip()
            if self._is_terminal:
                line = self._for_a_person(line, len(stamp) + 1, name, level)
        self._write(line)

    @staticmethod
    def _for_a_person(line: str, indent: int, name: str, level: str) -> str:
        """Folded to the window's width under the event's name, which is coloured."""
        width = shutil.get_terminal_size().columns
        folded = textwrap.fill(line, width, subsequent_indent=" " * (indent + 2), break_on_hyphens=False)
        return folded.replace(name, f"\x1b[{_COLOURS[level]}m{name}\x1b[0m", 1)

    def plain(self, text: str) -> None:
        """Several lines for a person; in JSON, one event."""
        if self._json:
            self.event("notice", text=text)
        else:
            self._write(text)

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads any more; the worker goes on


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = clean(str(value))
    return f'"{text}"' if " " in text or not text else text
