"""One attempt as its child sees it: from the frame that ordered it to the frame that tells its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taskhive import calls, frames
from taskhive.context import CurrentJob
from taskhive.handlers import Handler
from taskhive.mouth import Mouth
from taskhive.raising import tell
from taskhive.retries import Counts
from taskhive.voice import Voice
from taskhive.wire import Kind, read_json


@dataclass(frozen=True, slots=True)
class House:
    """What all errands of a child have in common."""

    mouth: Mouth
    handlers: Mapping[str, Handler[Any, Any, Any]]
    worker: str
    max_result: int


class Errand:
    """Decodes the arguments, calls, and holds the outcome as bytes; where it runs is its caller's."""

    def __init__(self, house: House, body: bytes) -> None:
        header, self._payload = read_json(body)
        self.number, queue, job_id, fence, attempt, counts, self._extra = header
        self._house = house
        self.handler = house.handlers[queue]
        self.voice = Voice(house.mouth, self.number)
        self.job = CurrentJob(
            job_id,
            queue,
            attempt,
            fence,
            Counts(*counts),
            house.worker,
            self.voice.progress,
            self.voice.is_cancelled,
        )
        self.is_spent = False
        """Memory or stack ran out once: what is left of the process is not to be trusted."""
        self._is_called = False
        self._kind = Kind.FINISHED
        self._data = b""

    def call(self) -> Any:
        """What the handler returns; a coroutine is for the caller to await."""
        args, kwargs = calls.decode(self.handler, self.job.id, self._payload, self._extra)
        args, kwargs = calls.given(self.handler, args, kwargs, self.job, self._extra)
        return self.handler.function(*args, **kwargs)

    def returned(self, result: Any) -> None:
        """The handler is done with this; raises if it cannot travel."""
        self._is_called = True
        self._data = calls.encode(self.handler, self.job.id, result, self._house.max_result)

    def raised(self, error: BaseException, caller: str) -> None:
        """It was not; `caller` is the file that called it, whose frames are no news."""
        self._kind = Kind.RAISED
        self.is_spent = isinstance(error, (MemoryError, RecursionError))
        job = self.job
        self._data = frames.raised(
            *tell(self.handler, job.id, error, job.attempt, self._is_called, {__file__, caller})
        )

    def end(self) -> None:
        """Say the last of what it held back."""
        self.job.flush()
        self.voice.end()

    def frame(self, wall: float, cpu: float, peak: int, spent: bool) -> bytes:
        """Its end, as it is told."""
        return frames.over(self._kind, self.number, wall, cpu, peak, spent or self.is_spent, self._data)
