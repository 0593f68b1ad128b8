"""What the command line of a worker says, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How one worker runs."""

    files: tuple[str, ...]
    url: str | None = None
    concurrency: int | None = 1
    """How many slots may be busy; None: as many as the machine can take."""
    least: int = 1
    most: int | None = None
    """What it may be then; None: many times the cores."""
    target_cpu: float = 0.9
    """How much of the granted cores is to be in use then."""
    memory: int | None = None
    """Bytes that all attempts together may take, by what their handlers took before."""
    queue: str | None = None
    grace: float = 30.0
    lease: float = 15.0
    reload: bool = False
    name: str = ""
