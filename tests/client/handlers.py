"""What the workers of these tests run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from taskhive import Hive, PermanentError, WouldDeadlock, current_job
from taskhive.context import Failure

hive = Hive()


class OwnError(Exception):
    """A class of the user's own."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@hive.handler
def add(a: int, b: int = 0) -> int:
    return a + b


@hive.handler
def echo(value: Any = None) -> Any:
    return value


@hive.handler(max_retries=0)
def fails(how: str) -> None:
    match how:
        case "built-in":
            inner(int("3"))
        case "own":
            raise OwnError(7)
        case "permanent":
            raise PermanentError("no")
        case "group":
            raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])
        case "not-json":
            hive_result()


def inner(number: int) -> None:
    try:
        dict[str, int]()["missing"]
    except KeyError as error:
        made = ValueError(f"bad number {number}")
        made.add_note("seen in a test")
        raise made from error


def hive_result() -> None:
    raise TypeError(object())


@hive.handler(timeout=0.3, max_timeouts=0)
def hangs() -> None:
    time.sleep(60)


@hive.handler(max_crashes=0)
def crashes() -> None:
    print("last words")
    os._exit(3)


@hive.handler
def sleeps(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


@hive.handler(max_retries=0)
def waits() -> str:
    job = hive.queue("add").dispatch(1, 2)
    try:
        job.result(timeout=5)
    except WouldDeadlock:
        return "refused"
    return "waited"


hive.accept_calls("calls")
hive.accept_calls("long-calls")


@hive.handler(codec="pickle", max_retries=0)
def doubled(values: set[int]) -> set[int]:
    if not values:
        raise OwnError(9)
    return {2 * value for value in values}


@doubled.on_failure
def doubled_failed(failure: Failure) -> None:
    marks = hive.queue("marks")
    marks.options(id=f"failed-{failure.job_id}").dispatch(sorted(failure.args[0]), failure.error.type)


@hive.handler
def marked(word: str) -> None:
    hive.queue("words").dispatch(word)


@hive.handler
def surroundings() -> str:
    """All that a handler can read of the processes above it without asking them."""
    found = [repr(dict(os.environ))]
    pid = os.getpid()
    while pid > 1:
        for name in ("cmdline", "environ"):
            try:
                found.append(Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
            except OSError:
                break
        status = Path(f"/proc/{pid}/status").read_text()
        if "supervisor" in status:  # its own environment is where the secret was put
            break
        pid = int(status.partition("PPid:")[2].split()[0])
    return "\n".join(found)


@hive.handler(max_retries=0)
def counts(to: int) -> int:
    for _ in current_job().track(range(to), note={"of": to}):
        pass
    return to


@hive.handler(max_retries=0, timeout=60)
def stops(folder: str) -> str:
    """Tells that it runs, and goes on until it is asked to stop."""
    job = current_job()
    job.progress(1, total=2)
    Path(folder, job.id).touch()
    while not job.cancelled:
        time.sleep(0.005)
    return "asked"


@hive.handler(max_retries=1, min_backoff=0, max_backoff=0)
def flaky() -> str:
    if current_job().attempt == 1:
        raise ValueError("not yet")
    return "now"
