"""The exceptions of TaskHive, all under one root.

    TaskHiveError
    ├── ConfigurationError      an option, id, name, URL or time is wrong (also a ValueError)
    ├── PayloadError            arguments or a result that cannot travel
    │   ├── NotEncodable            ... because of one value, whose path it names
    │   ├── PayloadTooLarge         ... because of their size
    │   └── BadPayload              ... because they are not what TaskHive writes
    │       └── BadSignature            ... or were not signed for their place by who has the secret
    ├── QueueFull               nothing was dispatched: depth cap or server memory
    ├── PartialDispatch         a bulk dispatch stopped midway
    ├── NotDurable              dispatched, but disk or replicas did not confirm in time
    ├── LockLost                the lock is not ours any more: it lapsed
    ├── LeaseLost               the lease is not ours any more: lapsed, taken over, settled
    ├── JobActive               refused while the job runs
    ├── PermanentError          raised by a handler: no retry will help
    ├── Retry                   raised by a handler: again, at a time it names
    ├── JobFailed               a job whose result was asked for has none, and why
    │   ├── JobTimeout              ... it passed its limit of time, and was killed
    │   ├── JobKilled               ... it passed its limit of memory, and was killed
    │   ├── JobCrashed              ... its process died
    │   ├── JobStalled              ... its worker was lost, too often
    │   └── JobCancelled            ... somebody cancelled it, or it expired
    ├── RemoteError             an exception of a handler whose class is not known here
    ├── ResultGone              the job had ended, and its record's time to live has passed
    ├── ResultTimeout           it did not end within the time given (also a TimeoutError)
    ├── WouldDeadlock           a handler waited for a job
    ├── NoCurrentJob            current_job() was called where no handler runs
    ├── HandlerError            handlers that cannot be served: import, name, option
    └── ServerError             about the server rather than about a job
        ├── RedisUnavailable        it did not answer in time; the call may be repeated
        ├── ServerRefused           it answered no: authentication, permissions, protocol version
        └── NoServer                no embedded server could be started

    SoftTimeout (a BaseException)   raised in a handler whose soft limit has passed

Facts are attributes, so that a program need not parse a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TaskHiveError(Exception):
    """Root of everything TaskHive raises on purpose."""


class ConfigurationError(TaskHiveError, ValueError):
    """A value given by the user is wrong; the message names the field and the remedy."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}. {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class PayloadError(TaskHiveError):
    """Arguments or a result that cannot travel."""


class NotEncodable(PayloadError, TypeError):
    """One value has no JSON form; `path` says where it is, as in `args[1]['when']`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class PayloadTooLarge(PayloadError, ValueError):
    """The encoded form is over the limit."""

    def __init__(self, size: int, limit: int, what: str, remedy: str) -> None:
        super().__init__(f"{what} takes {size:,} bytes, the limit is {limit:,}. {remedy}")
        self.size = size
        self.limit = limit


class BadPayload(PayloadError):
    """Bytes that are no payload of ours: corrupted, forged, or of an unknown codec."""


class BadSignature(BadPayload):
    """Not signed by a key of this ring, or not for this place; nothing of it was parsed."""


class QueueFull(TaskHiveError):
    """Nothing was dispatched: the queue's depth cap or the server's memory is reached."""

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(f"queue {queue!r} takes no more jobs: {reason}")
        self.queue = queue
        self.reason = reason


class PartialDispatch(TaskHiveError):
    """A bulk dispatch stopped midway.

    `jobs` are those acknowledged; `errors` maps the index of an item to what stopped it. The
    items of a chunk whose reply never came may be dispatched or not; `errors` holds them too.
    """

    def __init__(self, jobs: Sequence[Any], errors: dict[int, Exception]) -> None:
        first = next(iter(errors.values()))
        super().__init__(f"{len(jobs)} jobs dispatched, {len(errors)} not: {first}")
        self.jobs = list(jobs)
        self.errors = errors


class NotDurable(TaskHiveError):
    """The job is dispatched, but neither disk nor a replica confirmed it in time."""

    def __init__(self, jobs: Sequence[Any], local: int, replicas: int, advice: str) -> None:
        super().__init__(
            f"{len(jobs)} dispatched, but not confirmed durable "
            f"(disk: {local}, replicas: {replicas}). {advice}"
        )
        self.jobs = list(jobs)
        self.local = local
        self.replicas = replicas


class LeaseLost(TaskHiveError):
    """The lease is not ours any more; nothing was changed."""

    def __init__(self, queue: str, job_id: str, token: str, why: str) -> None:
        super().__init__(f"lease on {queue}/{job_id} is lost: {why}")
        self.queue = queue
        self.job_id = job_id
        self.token = token


class LockLost(TaskHiveError):
    """The lock is not ours any more: somebody else may hold it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"lock {name!r} is lost: {why}")
        self.name = name


class JobActive(TaskHiveError):
    """Refused because the job is running; cancel it first."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(f"{queue}/{job_id} is active: cancel it first, or wait for its end")
        self.queue = queue
        self.job_id = job_id


class PermanentError(TaskHiveError):
    """Raise it in a handler to say that no retry will help."""


class Retry(TaskHiveError):
    """Raise it in a handler to be run again at a time of its own choice; counts as a retry."""

    def __init__(self, *, after: Any = None, at: Any = None, reason: str = "") -> None:
        from taskhive import units

        if (after is None) == (at is None):
            raise ConfigurationError("Retry", "needs one time", "Give after=seconds or at=a wall time")
        self.after = None if after is None else units.seconds(after, "after")
        self.at = None if at is None else units.moment(at, "at")
        when = f"after {self.after:g} s" if self.after is not None else f"at {self.at:.3f}"
        super().__init__(reason or f"the handler asked for a retry {when}")


class SoftTimeout(BaseException):
    """The soft limit has passed; the hard one follows. Not an Exception, so that few catch it."""


class JobFailed(TaskHiveError):
    """The job has no result. Raised by `result()` where no exception of the handler's tells why."""

    def __init__(
        self,
        kind: str,
        queue: str,
        job_id: str,
        message: str,
        *,
        error: Any = None,
        black_box: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{queue}/{job_id}: {message}")
        self.kind = kind
        self.queue = queue
        self.job_id = job_id
        self.message = message
        self.error = error
        self.black_box = black_box


class JobTimeout(JobFailed):
    """It passed its limit of time (`kind` is timeout) or of CPU time (cpu), and was killed."""


class JobKilled(JobFailed):
    """It passed its limit of memory, and was killed."""


class JobCrashed(JobFailed):
    """Its process died: a segfault, `os._exit`, a kill from outside."""


class JobStalled(JobFailed):
    """Its worker was lost while it ran, more often than `max_stalls` allows."""


class JobCancelled(JobFailed):
    """Somebody cancelled it, or it expired before it was started."""


class RemoteError(TaskHiveError):
    """An exception of a handler whose class is not known here; `register_exception` makes it known."""

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"{type_name}: {text}" if text else type_name)
        self.type_name = type_name
        self.text = text


class ResultGone(TaskHiveError):
    """The job was there and is not any more: its record's time to live has passed."""

    def __init__(self, queue: str, job_id: str) -> None:
        super().__init__(
            f"nothing is kept of {queue}/{job_id} any more: its time to live has passed, or it was "
            "deleted. A longer one: result_ttl and failure_ttl of the handler or of options(...)"
        )
        self.queue = queue
        self.job_id = job_id


class ResultTimeout(TaskHiveError, TimeoutError):
    """What was waited for did not end within the time given; it goes on."""

    def __init__(self, waiting: int, seconds: float) -> None:
        jobs = "the job has" if waiting == 1 else f"{waiting} jobs have"
        super().__init__(f"{jobs} not ended within {seconds:g} s")
        self.waiting = waiting
        self.seconds = seconds


class WouldDeadlock(TaskHiveError, RuntimeError):
    """A handler waited for another job: with all children waiting, none would be left to run it."""


class NoCurrentJob(TaskHiveError):
    """`current_job()` was called where no handler runs."""


class HandlerError(TaskHiveError):
    """Handlers that cannot be served; the message holds the user's own traceback if there is one."""


class ServerError(TaskHiveError):
    """About the server rather than about a job."""


class RedisUnavailable(ServerError):
    """The server did not answer in time. Every call of TaskHive may be repeated safely."""

    def __init__(self, where: str, seconds: float, last: BaseException | None) -> None:
        super().__init__(
            f"{where} did not answer within {seconds:.1f} s (last: {type(last).__name__}: {last}). "
            "Is it running and reachable? A longer patience: Hive(connect_timeout=...)"
        )
        self.where = where
        self.seconds = seconds


class ServerRefused(ServerError):
    """The server answered no: authentication, permissions, version or key layout."""


class NoServer(ServerError):
    """No embedded server could be started; the message says what was tried."""
