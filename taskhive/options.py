"""What one dispatch may ask for: the frozen value behind `queue.options(...)`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from taskhive import codec, units
from taskhive.errors import ConfigurationError

Duration = float | int | timedelta
Moment = float | int | datetime
Size = int | str

# A number below this is a duration, above it a wall time: 2001 has long passed.
_FIRST_MOMENT = 1e9
_KEEP_FOR_EVER = -1

_RUN_AT_UPDATES = {True: "set", False: "keep", "if_later": "later", "if_earlier": "earlier"}


def _optional(check: Callable[..., Any], **limits: Any) -> Callable[[Any, str], Any]:
    return lambda value, field: None if value is None else check(value, field, **limits)


def _choice(*allowed: Any) -> Callable[[Any, str], Any]:
    def check(value: Any, field: str) -> Any:
        # By type too: 1 == True, and "no boolean strings" is worth nothing if 1 passes.
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise ConfigurationError(field, f"{value!r} is none of its values", f"Use one of {allowed}")
        return value

    return check


def _expires(value: Any, field: str) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= _FIRST_MOMENT:
        return units.moment(value, field)
    return units.moment(value, field) if isinstance(value, datetime) else units.seconds(value, field)


def _nothing_to_check(value: Any, field: str) -> Any:
    return value


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "id": lambda value, field: units.job_id(value),
    "delay": units.seconds,
    "run_at": units.moment,
    "expires": _expires,
    "priority": lambda value, field: units.whole(value, field, most=255),
    "timeout": _optional(units.seconds, least=0.001),
    "soft_timeout": _optional(units.seconds, least=0.001),
    "cpu_timeout": _optional(units.seconds, least=0.001),
    "memory": _optional(units.size),
    "max_retries": units.whole,
    "max_timeouts": units.whole,
    "max_stalls": units.whole,
    "max_crashes": units.whole,
    "min_backoff": units.seconds,
    "max_backoff": units.seconds,
    "jitter": _choice("full", "none"),
    "result_ttl": _optional(units.seconds),
    "failure_ttl": _optional(units.seconds),
    "strict": units.flag,
    "durable": units.flag,
    "update_data": units.flag,
    "update_run_at": _choice(True, False, "if_later", "if_earlier"),
    "update_options": units.flag,
    "reset_counts": units.flag,
    "codec": _choice(*codec.CODECS),
    "unique": units.flag,
    "on_conflict": _choice("update", "join"),
}


class _Unset:
    """Told apart from None, which means "no limit"."""

    def __repr__(self) -> str:
        return "..."

    def __copy__(self) -> _Unset:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> _Unset:
        return self

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What `options(...)` may name; what is not named is left to the handler or the default."""

    id: str = UNSET
    delay: Duration = UNSET
    run_at: Moment = UNSET
    expires: Duration | Moment = UNSET
    priority: int = UNSET
    timeout: Duration | None = UNSET
    soft_timeout: Duration | None = UNSET
    cpu_timeout: Duration | None = UNSET
    memory: Size | None = UNSET
    max_retries: int = UNSET
    max_timeouts: int = UNSET
    max_stalls: int = UNSET
    max_crashes: int = UNSET
    min_backoff: Duration = UNSET
    max_backoff: Duration = UNSET
    jitter: Literal["full", "none"] = UNSET
    result_ttl: Duration | None = UNSET
    failure_ttl: Duration | None = UNSET
    strict: bool = UNSET
    durable: bool = UNSET
    update_data: bool = UNSET
    update_run_at: bool | Literal["if_later", "if_earlier"] = UNSET
    update_options: bool = UNSET
    reset_counts: bool = UNSET
    codec: Literal["json", "raw", "pickle"] = UNSET
    unique: bool = UNSET
    on_conflict: Literal["update", "join"] = UNSET

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if value is not UNSET:
                object.__setattr__(self, name, check(value, name))
        if self.delay is not UNSET and self.run_at is not UNSET:
            raise ConfigurationError("delay", "given together with run_at", "Give one of them")
        least: Any = self.min_backoff
        most: Any = self.max_backoff
        if least is not UNSET and most is not UNSET and least > most:
            raise ConfigurationError(
                "min_backoff", f"{least} is over max_backoff={most}", "Make it the smaller one"
            )
        if self.unique is True and self.codec == "pickle":
            raise ConfigurationError(
                "unique", "equal arguments need not have equal pickles", "Give an id of your own"
            )
        if self.unique is True and self.id is not UNSET:
            raise ConfigurationError("unique", "given together with id", "Give one of them")

    def but(self, **changes: Any) -> JobOptions:
        """These options with some replaced; `delay` and `run_at` replace each other."""
        unknown = changes.keys() - _CHECKS.keys()
        if unknown:
            raise ConfigurationError(
                sorted(unknown)[0], "there is no such option", f"Known are: {', '.join(_CHECKS)}"
            )
        for one, other in (("delay", "run_at"), ("run_at", "delay")):
            if one in changes and other not in changes:
                changes[other] = UNSET
        return replace(self, **changes)

    def given(self) -> dict[str, Any]:
        """Only what was named."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not UNSET}

    def __repr__(self) -> str:
        return f"JobOptions({', '.join(f'{k}={v!r}' for k, v in self.given().items())})"

    def stored(self) -> dict[str, Any]:
        """What goes with the job and beats its handler's options."""
        return {name: value for name in _STORED if (value := getattr(self, name)) is not UNSET}


_STORED = (
    "timeout",
    "soft_timeout",
    "cpu_timeout",
    "memory",
    "max_retries",
    "max_timeouts",
    "max_stalls",
    "max_crashes",
    "min_backoff",
    "max_backoff",
    "jitter",
    "result_ttl",
    "failure_ttl",
    "strict",
)

PLAIN = JobOptions()


def spec(options: JobOptions, request: str | None) -> str:
    """The third argument of a dispatched job, as dispatch.lua reads it.

    `request` is the dispatch's nonce where the id is the user's own; a generated id is one already.
    """
    stored = options.stored()
    words: dict[str, Any] = {}
    if options.delay is not UNSET and options.delay > 0:  # type: ignore[operator]
        words["delay"] = _ms(options.delay)
    if options.run_at is not UNSET:
        words["at"] = _ms(options.run_at)
    if options.expires is not UNSET:
        relative = options.expires < _FIRST_MOMENT  # type: ignore[operator]
        words["lasts" if relative else "x"] = _ms(options.expires)
    if options.priority is not UNSET:
        words["p"] = options.priority
    if stored:
        words["o"] = json.dumps(stored, separators=(",", ":"))
    if options.max_stalls is not UNSET:
        words["m"] = options.max_stalls
    for name, key in (("result_ttl", "y"), ("failure_ttl", "f")):
        if name in stored:
            words[key] = _KEEP_FOR_EVER if stored[name] is None else _ms(stored[name])
    if request is not None:
        words["q"] = request
        words.update(_updates(options))
    return json.dumps(words, separators=(",", ":")) if words else ""


def _updates(options: JobOptions) -> dict[str, Any]:
    """What a dispatch does to a run of its id that waits already."""
    if options.unique is True or options.on_conflict == "join":
        return {"join": True}
    data = options.update_data if options.update_data is not UNSET else True
    timed = options.delay is not UNSET or options.run_at is not UNSET
    when = options.update_run_at if options.update_run_at is not UNSET else timed
    counts = options.reset_counts if options.reset_counts is not UNSET else data
    stored = options.update_options if options.update_options is not UNSET else data
    words: dict[str, Any] = {"ur": _RUN_AT_UPDATES[when]}
    words.update({key: True for key, on in (("ud", data), ("rs", counts), ("uo", stored)) if on})
    return words


def read_stored(text: str) -> dict[str, Any]:
    """The options stored with a job, from a record that anybody may have written."""
    try:
        words = json.loads(text)
        if not isinstance(words, Mapping):
            return {}
        return JobOptions(**{k: words[k] for k in _STORED if k in words}).stored()
    except (ValueError, TypeError, RecursionError):
        return {}


def _ms(value: Any) -> int:
    # Rounded up: a job must not start before its time.
    return -int(-value * 1000 // 1)
