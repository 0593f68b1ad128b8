"""TaskHive: a Redis- and Valkey-backed, multiprocess runner for CPU-bound Python jobs."""

from __future__ import annotations

from taskhive.aio import AsyncHive
from taskhive.context import current_job
from taskhive.errors import (
    ConfigurationError,
    HandlerError,
    JobActive,
    LeaseLost,
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
    Retry,
    ServerError,
    ServerRefused,
    SoftTimeout,
    TaskHiveError,
)
from taskhive.handler_options import HandlerOptions
from taskhive.handlers import Handler
from taskhive.hive import Hive, Job, Lease, Queue
from taskhive.jobs import JobInfo, JobState, QueueStats

__all__ = [
    "AsyncHive",
    "ConfigurationError",
    "Handler",
    "HandlerError",
    "HandlerOptions",
    "Hive",
    "Job",
    "JobActive",
    "JobInfo",
    "JobState",
    "Lease",
    "LeaseLost",
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
    "Retry",
    "ServerError",
    "ServerRefused",
    "SoftTimeout",
    "TaskHiveError",
    "current_job",
]
