"""What is kept of an attempt that was killed or crashed: where it was, what it cost, what it said."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import sysconfig
from dataclasses import dataclass, field
from typing import Any

MAX_STACK = 32 * 1024
MAX_OUTPUT = 16 * 1024
MAX_RECORD = 128 * 1024
MAX_MESSAGE = 16 * 1024
NO_STACK = "(no stack: the handler blocked signals or closed descriptors, or it was too sudden)"
MAX_FRAMES = 100
"""Of one thread, as many as faulthandler writes."""
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
# What calls the handler is no news; neither is how Python began.
_HERE = re.escape(os.path.dirname(os.path.abspath(__file__)))
_OURS = re.compile(
    rf'^  File "(?:{_HERE}/(?:child|company|errand|mouth|zygote|fresh)\.py|<frozen runpy>)"'
)
_LIBRARIES = (
    "<frozen ",
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
)
"""Where nobody looks for a mistake of their own."""


@dataclass(slots=True)
class BlackBox:
    """The facts about one ended attempt, as told from outside."""

    verdict: str
    signal: str | None = None
    exit_code: int | None = None
    stack: str = ""
    wall: float = 0.0
    cpu: float = 0.0
    peak_memory: int = 0
    progress: Any = None
    output: list[str] = field(default_factory=list)

    def portable(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "verdict": self.verdict,
            "signal": self.signal,
            "exit_code": self.exit_code,
            "stack": self.stack,
            "wall": round(self.wall, 6),
            "cpu": round(self.cpu, 6),
            "peak_memory": self.peak_memory,
            "progress": self.progress,
            "output": last_lines(self.output),
        }

    def where(self) -> str | None:
        """The innermost line of the user's own, of the thread that ran the handler or that crashed."""
        # Threads are written newest first: the main one is the last, unless another one is current.
        threads = self.stack.split("\n\n")[::-1]
        threads.sort(key=lambda one: not one.startswith("Current thread"))
        frames = [found for thread in threads for found in _FRAME.finditer(thread)]
        found = next((one for one in frames if not one["file"].startswith(_LIBRARIES)), None)
        found = found or next(iter(frames), None)
        return f"{os.path.basename(found['file'])}:{found['line']}" if found else None


def last_lines(lines: list[str]) -> list[str]:
    """The end of an output, as much as is kept with an attempt."""
    kept: list[str] = []
    room = MAX_OUTPUT
    for line in reversed(lines):
        room -= len(json.dumps(line)) + 2  # as it will be written: a control character takes six
        if room < 0:
            break
        kept.append(line)
    return kept[::-1]


def stack_size(memory: int) -> int:
    """How much faulthandler wrote; 0 until that is whole.

    It writes word by word, and on a full machine it may be put to sleep between any two. The main
    thread is the last one, and its outermost frame is how Python began; of a deeper one there are so
    many frames, and then dots, or in Python 3.13 nothing.
    """
    size = os.fstat(memory).st_size
    text = os.pread(memory, size, 0)
    if text.endswith((b" in _run_module_as_main\n", b"  ...\n")):
        return size
    last = text.rpartition(b" first):\n")[2]
    is_full = last.endswith(b"\n") and last.count(b"\n") >= MAX_FRAMES
    return size if is_full and sys.version_info[:2] == (3, 13) else 0


def read_stack(memory: int) -> str:
    """What faulthandler wrote, or why there is nothing: said, never guessed."""
    size = os.fstat(memory).st_size
    text = os.pread(memory, min(size, MAX_STACK), 0).decode(errors="backslashreplace")
    lines = [line for line in text.splitlines() if not _OURS.match(line)]
    return "\n".join(lines) or NO_STACK


def exit_verdict(code: int) -> tuple[str, str | None]:
    """What an exit that nobody ordered is called, and its signal."""
    if code >= 0:
        return f"os._exit({code})", None
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name == "SIGSEGV":
        return "segfault", name
    return "killed from outside" if name in ("SIGKILL", "SIGTERM") else "crashed", name


def encode(type_name: str, message: str, box: BlackBox, retries_left: int) -> bytes:
    """The error record of an attempt that could not write its own."""
    words = {
        "type": type_name,
        "message": message[:MAX_MESSAGE],
        "black_box": box.portable(),
        "retries_left": retries_left,
    }
    return json.dumps(words).encode()


def with_box(record: bytes, box: BlackBox, retries_left: int) -> tuple[str, bytes]:
    """A child's own error record with what is known from outside; and the error in a few words.

    The record is a hostile child's until it was read: what is too long or no object is replaced.
    """
    try:
        words = json.loads(record) if len(record) <= MAX_RECORD else None
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, dict):
        words = {"type": "Unreadable", "message": f"its record of {len(record)} bytes is none"}
    words["black_box"] = box.portable()
    words["retries_left"] = retries_left
    summary = f"{words.get('type')}: {words.get('message')}"
    return summary[:1000], json.dumps(words).encode()
