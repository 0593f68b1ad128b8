"""Checked values: seconds, wall times, sizes, names, ids, from what users write."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

from taskhive.errors import ConfigurationError

LAST_MOMENT = 2**45 / 1000  # seconds; the year 3084, the last one that fits beside a priority byte
LANE_SUFFIX = ":fail"

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_ID = re.compile(r"^[A-Za-z0-9._:-]{1,200}\Z")
_QUEUE = re.compile(r"^[A-Za-z0-9._:-]{1,100}\Z")


def seconds(value: object, field: str, *, least: float = 0.0) -> float:
    """A duration: a number of seconds or a timedelta."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(
            field, f"{value!r} is not a duration", "Give seconds as a number, or a timedelta"
        )
    number = _float(value, field)
    if not (least <= number < LAST_MOMENT):
        raise ConfigurationError(field, f"{value!r} s is out of range", f"Give {least:g} s or more")
    return number


def moment(value: object, field: str) -> float:
    """A wall time: an aware datetime or POSIX seconds."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(
                field,
                f"{value!r} has no time zone",
                "Use an aware datetime, such as datetime.now(timezone.utc)",
            )
        value = value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(
            field, f"{value!r} is not a time", "Give an aware datetime, or POSIX seconds"
        )
    number = _float(value, field)
    if not (0 <= number < LAST_MOMENT):
        raise ConfigurationError(
            field, f"{value!r} is out of range", "Give POSIX seconds between 1970 and 3084"
        )
    return number


def _float(value: int | float, field: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError(field, f"{value!r} is not finite", "Give a finite number")
    return number


def whole(value: object, field: str, *, least: int = 0, most: int = 10**9) -> int:
    """An integer in a range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(
            field, f"{value!r} is not a whole number", f"Give an int from {least} to {most}"
        )
    if not least <= value <= most:
        raise ConfigurationError(
            field, f"{value} is out of range", f"Give an int from {least} to {most}"
        )
    return value


def size(value: object, field: str) -> int:
    """Bytes: an int, or a string such as "2GiB" or "500MB"."""
    if isinstance(value, str) and (match := _SIZE.match(value)):
        power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
        value = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(
            field, f"{value!r} is not a size", 'Give bytes as an int, or a string such as "2GiB"'
        )
    return value


def flag(value: object, field: str) -> bool:
    """A bool and nothing that only looks like one: the string "false" is true."""
    if not isinstance(value, bool):
        raise ConfigurationError(field, f"{value!r} is not a bool", "Give True or False")
    return value


def job_id(value: object) -> str:
    """An id as it may stand in a key, a log line and a URL."""
    if not isinstance(value, str) or not _ID.match(value):
        raise ConfigurationError(
            "id",
            f"{_shown(value)} is not an id",
            "Use 1 to 200 letters, digits and . _ : - (hash what does not fit)",
        )
    return value


def queue_name(value: object) -> str:
    """A queue's name, perhaps with the ending of its fail lane."""
    base = value.removesuffix(LANE_SUFFIX) if isinstance(value, str) else ""
    # The ending is not counted: a name that is as long as it may be has a fail lane too.
    if not isinstance(value, str) or not _QUEUE.match(base or value):
        raise ConfigurationError(
            "queue",
            f"{_shown(value)} is not a queue name",
            "Use 1 to 100 letters, digits and . _ : -",
        )
    if not base or base.endswith(LANE_SUFFIX):
        raise ConfigurationError(
            "queue", f"{value!r} has no queue to be the fail lane of", 'Name it "queue:fail"'
        )
    return value


def key_prefix(value: object) -> str:
    """What all keys begin with; braces would move them to other cluster slots."""
    if not isinstance(value, str) or not _QUEUE.match(value):
        raise ConfigurationError(
            "prefix", f"{_shown(value)} is not a prefix", "Use letters, digits and . _ : -"
        )
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
