"""The handlers of `python -m taskhive demo`: one that works, and three that get into trouble."""

from __future__ import annotations

import ctypes
import re
import time

from taskhive import Hive, current_job

hive = Hive()


@hive.handler(timeout=60)
def primes(below: int) -> int:
    """Count primes, and say how far it is."""
    found = 0
    for n in current_job().track(range(below)):
        if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)):
            found += 1
    return found


@hive.handler(timeout=2, max_timeouts=0)
def runaway(text: str) -> bool:
    """A regular expression that would not be done in a lifetime, and holds the GIL all the while."""
    print(f"matching {text[:12]}...")  # noqa: T201 -- kept with the attempt, shown in its black box
    return re.fullmatch(r"(a+)+b", text) is not None


@hive.handler(max_crashes=0)
def broken(address: int) -> str:
    """Reads memory that is not there, as a bug in a C extension would."""
    return repr(ctypes.string_at(address))


@hive.handler(min_backoff=0.5, max_backoff=1, jitter="none")
def flaky(name: str) -> str:
    """Fails twice, then recovers."""
    if current_job().attempt < 3:
        raise ConnectionError(f"{name} did not answer")
    time.sleep(0.2)
    return f"{name} answered"
