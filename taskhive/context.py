"""`current_job()`: what a handler can know of, and say about, the attempt it runs in."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from taskhive.errors import NoCurrentJob
from taskhive.jobs import ErrorInfo
from taskhive.retries import Counts

T = TypeVar("T")

_BETWEEN_PROGRESS = 0.1


@dataclass(slots=True)
class CurrentJob:
    """One running attempt."""

    id: str
    queue: str
    attempt: int
    fence: int
    """Grows with every lease of this queue: for systems that keep the highest they have seen."""
    counts: Counts = field(default_factory=Counts)
    worker: str = ""
    """Who runs it: name, process and a word of its own for each start."""
    _tell: Callable[[dict[str, Any]], None] = field(default=lambda progress: None, repr=False)
    _is_cancelled: Callable[[], bool] = field(default=lambda: False, repr=False)
    _next: float = 0.0
    _pending: tuple[float, float | None, Any] | None = None
    _held: bool = False
    _over: bool = False
    _problem: Exception | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def retries(self) -> int:
        """How often it was put back because the handler raised."""
        return self.counts.retries

    @property
    def timeouts(self) -> int:
        """How often because a limit was passed."""
        return self.counts.timeouts

    @property
    def stalls(self) -> int:
        """How often because its worker was lost."""
        return self.counts.stalls

    @property
    def crashes(self) -> int:
        """How often because its process died."""
        return self.counts.crashes

    @property
    def cancelled(self) -> bool:
        """Whether somebody has asked this attempt to end by itself."""
        return self._is_cancelled()

    def progress(self, done: float, total: float | None = None, note: Any = None) -> None:
        """Say how far it is; sent at most ten times a second, the last one always."""
        self._pending = (done, total, note)
        if monotonic() < self._next:
            if not self._held:
                # Somebody has to say it if this call was the last for a while.
                self._held = True
                _later(self)
            return
        if self._problem is not None:
            problem, self._problem = self._problem, None
            raise problem
        self._say()

    def _say(self, is_last: bool = False) -> None:
        with self._lock:
            pending, self._pending = self._pending, None
            self._held, was_over = False, self._over
            self._over = was_over or is_last
            if pending is None or was_over:
                return
            self._next = monotonic() + _BETWEEN_PROGRESS
            done, total, note = pending
            self._tell({"done": done, "total": total, "note": note})

    def track(self, items: Iterable[T], total: float | None = None, note: Any = None) -> Iterator[T]:
        """Pass items through, saying how many are done."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        for done, item in enumerate(items, 1):
            yield item
            self.progress(done, total, note)

    def flush(self) -> None:
        """Send what was held back, and nothing after it; for the child, when the attempt is over."""
        self._say(is_last=True)


_speakers: dict[int, queue.SimpleQueue[CurrentJob]] = {}


def _later(job: CurrentJob) -> None:
    """Have what is held back said when its time has come, by a thread that is made at first need."""
    waiting = _speakers.get(os.getpid())
    if waiting is None:
        waiting = _speakers.setdefault(os.getpid(), queue.SimpleQueue())
        threading.Thread(target=_speak, args=(waiting,), name="taskhive-progress", daemon=True).start()
    waiting.put(job)


def _speak(waiting: queue.SimpleQueue[CurrentJob]) -> None:
    while True:
        job = waiting.get()
        time.sleep(max(0.0, job._next - monotonic()))
        try:
            job._say()
        except (TypeError, ValueError) as error:  # a note that is no JSON: the next call is told
            job._problem = error


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failure handler is given: the job that was given up, and why."""

    job_id: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: ErrorInfo
    kind: str
    counts: Counts
    black_box: dict[str, Any] | None = None


_current: CurrentJob | None = None
_own: ContextVar[CurrentJob | None] = ContextVar("taskhive_job", default=None)
"""Of attempts that share a process each has its own, in the context of its thread or task."""


def current_job() -> CurrentJob:
    """The attempt this handler runs in, from any of its threads."""
    job = _own.get() or _current
    if job is None:
        raise NoCurrentJob(
            "no handler runs here: current_job() is for handlers run by a worker, and with "
            'isolation="thread" for the thread or task of the handler itself: hand it on to others'
        )
    return job


def is_running() -> bool:
    """Whether this process runs an attempt."""
    return _current is not None or _own.get() is not None


def set_current(job: CurrentJob | None) -> None:
    """Enter or leave the one attempt of this process; for the child alone."""
    global _current
    _current = job


def set_own(job: CurrentJob) -> None:
    """Enter an attempt in the context of this thread or task, which ends with it."""
    _own.set(job)
