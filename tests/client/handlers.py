"""What the workers of these tests run."""

from __future__ import annotations

import os
import time
from typing import Any

from taskhive import Hive, PermanentError, WouldDeadlock, current_job

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


@hive.handler(max_retries=0)
def counts(to: int) -> int:
    for number in current_job().track(range(to)):
        assert number >= 0
    return to
