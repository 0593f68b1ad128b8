"""How a handler is run: the frozen options of `@hive.handler(...)`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from taskhive import units
from taskhive.errors import ConfigurationError
from taskhive.jobs import LimitHits
from taskhive.options import Duration, Size
from taskhive.retries import Limits

ISOLATIONS = ("process", "fresh", "thread")
MAX_WEIGHT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The defaults of every handler; what is given is checked when it is made."""

    timeout: Duration | Sequence[Duration] | None = 60.0
    """Several: after an attempt that passed one, the next attempt gets the next."""
    soft_timeout: Duration | None = None
    cpu_timeout: Duration | Sequence[Duration] | None = None
    memory: Size | Sequence[Size] | None = None
    max_retries: int = 10
    max_timeouts: int = 3
    max_stalls: int = 3
    max_crashes: int = 1
    min_backoff: Duration = 2.0
    max_backoff: Duration = 300.0
    jitter: Literal["full", "none"] = "full"
    backoff: Callable[[int, BaseException], float] | None = None
    permanent: tuple[type[BaseException], ...] = ()
    isolation: Literal["process", "fresh", "thread"] = "process"
    weight: float = 1.0
    priority: int = 100
    max_concurrency: int | None = None
    global_concurrency: int | None = None
    result_ttl: Duration | None = 3600.0
    failure_ttl: Duration | None = 7 * 86400.0
    max_jobs_per_child: int | None = None
    max_memory_per_child: Size | None = None
    codec: Literal["json", "pickle"] = "json"

    def __post_init__(self) -> None:
        checks: dict[str, Callable[[Any, str], Any]] = {
            "timeout": _ladder(_limit_seconds),
            "soft_timeout": _optional_seconds,
            "cpu_timeout": _ladder(_limit_seconds),
            "memory": _ladder(units.size),
            "weight": _weight,
            "max_concurrency": _optional_count,
            "global_concurrency": _optional_count,
            "max_jobs_per_child": _optional_count,
            "max_memory_per_child": _optional_size,
            "max_retries": units.whole,
            "max_timeouts": units.whole,
            "max_stalls": units.whole,
            "max_crashes": units.whole,
            "min_backoff": units.seconds,
            "max_backoff": units.seconds,
            "result_ttl": _optional_ttl,
            "failure_ttl": _optional_ttl,
        }
        for name, check in checks.items():
            object.__setattr__(self, name, check(getattr(self, name), name))
        units.whole(self.priority, "priority", most=255)
        _one_of("jitter", self.jitter, ("full", "none"))
        _one_of("codec", self.codec, ("json", "pickle"))
        _one_of("isolation", self.isolation, ISOLATIONS)
        least: Any = self.min_backoff
        if least > self.max_backoff:
            raise ConfigurationError(
                "min_backoff", f"{least} is over max_backoff={self.max_backoff}", "Make it smaller"
            )
        if self.backoff is not None and not callable(self.backoff):
            raise ConfigurationError("backoff", "not callable", "Give a function (attempt, error)")
        kinds = self.permanent if isinstance(self.permanent, tuple) else (self.permanent,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise ConfigurationError(
                "permanent", f"{self.permanent!r} is no tuple of exception classes", "Give (ValueError,)"
            )
        object.__setattr__(self, "permanent", kinds)

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> HandlerOptions:
        """From keywords; an unknown one is an error that names those there are."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(options.keys() - set(known))
        if unknown:
            raise ConfigurationError(
                unknown[0], "there is no such handler option", f"Known are: name, {', '.join(known)}"
            )
        return cls(**options)

    def portable(self) -> dict[str, Any]:
        """What the supervisor needs of them, as JSON; functions stay where they are."""
        here = ("backoff", "permanent")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in here}

    def at(self, hits: LimitHits) -> HandlerOptions:
        """With one value for each limit: of several the next after each time it was passed."""
        changes = {}
        for name, times in (
            ("timeout", hits.timeout),
            ("cpu_timeout", hits.cpu),
            ("memory", hits.memory),
        ):
            steps = getattr(self, name)
            if isinstance(steps, tuple):
                changes[name] = steps[min(times, len(steps) - 1)]
        return replace(self, **changes) if changes else self

    def limits(self) -> Limits:
        """How often a job may be put back, and how long it then waits."""
        return Limits(
            max_retries=self.max_retries,
            max_timeouts=self.max_timeouts,
            max_stalls=self.max_stalls,
            max_crashes=self.max_crashes,
            min_backoff=self.min_backoff,  # type: ignore[arg-type]
            max_backoff=self.max_backoff,  # type: ignore[arg-type]
            jitter=self.jitter,
        )


def _ladder(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """One value, None, or several that rise."""

    def checked(value: Any, field: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            return check(value, field)
        steps = tuple(check(one, field) for one in value)
        if not steps or any(a >= b for a, b in itertools.pairwise(steps)):
            raise ConfigurationError(
                field,
                f"{value!r} does not rise",
                "Give one value, or several of which each is larger than the one before",
            )
        return steps

    return checked


def _limit_seconds(value: Any, field: str) -> float:
    return units.seconds(value, field, least=0.001)


def _weight(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_WEIGHT:
        raise ConfigurationError(
            field,
            f"{value!r} is no share of the cores",
            f"Give a number above 0, at most {MAX_WEIGHT}: 2 for two cores, 0.5 for half of one",
        )
    return float(value)


def _optional_count(value: Any, field: str) -> int | None:
    return None if value is None else units.whole(value, field, least=1)


def _optional_size(value: Any, field: str) -> int | None:
    return None if value is None else units.size(value, field)


def _optional_seconds(value: Any, field: str) -> float | None:
    return None if value is None else units.seconds(value, field, least=0.001)


def _optional_ttl(value: Any, field: str) -> float | None:
    return None if value is None else units.seconds(value, field)


def _one_of(field: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(field, f"{value!r} is none of its values", f"Use one of {allowed}")


FAILURE_HANDLER = HandlerOptions(max_retries=100, min_backoff=10.0, max_backoff=7200.0)
"""Failure handlers are retried for days: they are the last to know."""
