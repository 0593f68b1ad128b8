"""What is kept of an attempt that was killed or crashed: where it was, what it cost, what it said."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass, field
from typing import Any

MAX_STACK = 32 * 1024
MAX_OUTPUT_LINES = 20


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
            "wall": round(self.wall, 3),
            "cpu": round(self.cpu, 3),
            "peak_memory": self.peak_memory,
            "progress": self.progress,
            "output": self.output[-MAX_OUTPUT_LINES:],
        }


def read_stack(memory: int) -> str:
    """What faulthandler wrote, or why there is nothing: said, never guessed."""
    size = os.fstat(memory).st_size
    text = os.pread(memory, min(size, MAX_STACK), 0).decode(errors="backslashreplace")
    return text or "(no stack: the handler blocked signals or closed descriptors, or it was too sudden)"


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


def encode(
    type_name: str,
    message: str,
    traceback: str,
    box: BlackBox | None,
    exception: dict[str, Any] | None = None,
) -> bytes:
    """An error record with its black box, and the exception as its child wrote it down."""
    words: dict[str, Any] = {"type": type_name[:200], "message": message[:16384]}
    if traceback:
        words["traceback"] = traceback[:20000]
    if box is not None:
        words["black_box"] = box.portable()
    if exception is not None:
        words["exception"] = exception
    return json.dumps(words).encode()
