"""How an attempt can end, as the pool reports it.

Not frozen, though nothing changes them: freezing doubles the price of making one, and there is one for
every job.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskhive.blackbox import BlackBox
from taskhive.slot import Attempt


@dataclass(slots=True)
class Costs:
    """What an attempt took."""

    wall: float
    cpu: float
    peak_memory: int


@dataclass(slots=True)
class Finished:
    """The handler returned; the result is bytes to us."""

    attempt: Attempt
    result: bytes
    costs: Costs


@dataclass(slots=True)
class Raised:
    """The handler raised; its child wrote the record of the exception, which is bytes to us."""

    attempt: Attempt
    kind: str
    record: bytes
    after: float | None
    at: float | None
    costs: Costs


@dataclass(slots=True)
class Ended:
    """The child is gone: killed by us for the attempt's verdict, or by itself."""

    attempt: Attempt
    box: BlackBox


Outcome = Finished | Raised | Ended
