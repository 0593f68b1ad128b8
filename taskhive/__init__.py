"""TaskHive: a Redis- and Valkey-backed, multiprocess runner for CPU-bound Python jobs.

What is exported is imported when it is first asked for: a command must have begun to listen to Ctrl-C
before it waits for whole libraries, and a program that only dispatches needs half of them.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # what type checkers take for true; `typing` would be another library to wait for
if TYPE_CHECKING:
    from taskhive.aio import AsyncHive
    from taskhive.context import Failure, current_job
    from taskhive.errors import (
        ConfigurationError,
        HandlerError,
        JobActive,
        JobCancelled,
        JobCrashed,
        JobFailed,
        JobKilled,
        JobStalled,
        JobTimeout,
        LeaseLost,
        LockLost,
        NoCurrentJob,
        NoServer,
        NotDurable,
        NotEncodable,
        PartialDispatch,
        PayloadError,
        PayloadTooLarge,
        PermanentError,
        QueueFull,
        RedisUnavailable,
        RemoteError,
        ResultGone,
        ResultTimeout,
        Retry,
        ServerError,
        ServerRefused,
        SoftTimeout,
        TaskHiveError,
        WouldDeadlock,
    )
    from taskhive.executor import Executor
    from taskhive.handler_options import HandlerOptions
    from taskhive.handlers import Handler
    from taskhive.hive import Hive, Job, Lease, Queue
    from taskhive.jobs import JobInfo, JobState, QueueStats

__all__ = [
    "AsyncHive",
    "ConfigurationError",
    "Executor",
    "Failure",
    "Handler",
    "HandlerError",
    "HandlerOptions",
    "Hive",
    "Job",
    "JobActive",
    "JobCancelled",
    "JobCrashed",
    "JobFailed",
    "JobInfo",
    "JobKilled",
    "JobStalled",
    "JobState",
    "JobTimeout",
    "Lease",
    "LeaseLost",
    "LockLost",
    "NoCurrentJob",
    "NoServer",
    "NotDurable",
    "NotEncodable",
    "PartialDispatch",
    "PayloadError",
    "PayloadTooLarge",
    "PermanentError",
    "Queue",
    "QueueFull",
    "QueueStats",
    "RedisUnavailable",
    "RemoteError",
    "ResultGone",
    "ResultTimeout",
    "Retry",
    "ServerError",
    "ServerRefused",
    "SoftTimeout",
    "TaskHiveError",
    "WouldDeadlock",
    "current_job",
]

_HOMES = {
    "AsyncHive": "aio",
    "Executor": "executor",
    "Failure": "context",
    "Handler": "handlers",
    "HandlerOptions": "handler_options",
    "Hive": "hive",
    "Job": "hive",
    "JobInfo": "jobs",
    "JobState": "jobs",
    "Lease": "hive",
    "Queue": "hive",
    "QueueStats": "jobs",
    "current_job": "context",
}
"""The modules of what is no exception."""

if not TYPE_CHECKING:  # or they would find whatever name is asked for

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
