"""What the command line of a worker says, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How one worker runs."""

    files: tuple[str, ...]
    url: str | None = None
    concurrency: int = 1
    why: str = "asked for"
    """Why so many children."""
    queue: str | None = None
    grace: float = 30.0
    lease: float = 15.0
    reload: bool = False
    name: str = ""
