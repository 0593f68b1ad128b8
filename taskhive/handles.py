"""What the blocking and the asyncio client objects have in common: everything but I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Generic, Self, TypeVar

from taskhive import codec, context, relay, units
from taskhive.core import BoundJob, Core, HiveSettings
from taskhive.effects import Flow
from taskhive.errors import ConfigurationError, LeaseLost, WouldDeadlock
from taskhive.exceptions import checked_class
from taskhive.handler_options import HandlerOptions
from taskhive.handlers import Handler, Registry, checked_function, handler_name
from taskhive.jobs import Fetched, Standing
from taskhive.options import UNSET, JobOptions
from taskhive.parcels import Answer, Item, Leased, Renewal, Settle
from taskhive.results import value_of
from taskhive.retries import Counts
from taskhive.signing import is_sealed

H = TypeVar("H", bound="HiveBase")
Q = TypeVar("Q", bound="QueueBase[Any]")
X = TypeVar("X", bound=Exception)


class HiveBase:
    """Settings, read once; see `Hive`."""

    _handler_class: type[Handler[Any, Any, Any]] = Handler

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str | None = None,
        client: Any = None,
        client_options: Mapping[str, Any] | None = None,
        connect_timeout: float = 10.0,
        id_factory: Callable[[], str] | None = None,
        max_payload: int | str = codec.MAX_PAYLOAD,
        max_result: int | str = codec.MAX_RESULT,
        secret: str | bytes | Iterable[str | bytes] | None = None,
    ) -> None:
        self._core = Core(
            url,
            prefix=prefix,
            client=client,
            client_options=client_options,
            connect_timeout=connect_timeout,
            id_factory=id_factory,
            max_payload=max_payload,
            max_result=max_result,
            secret=secret,
        )
        self._registry = Registry()
        self._before_waiting: Callable[[], Any] | None = None
        """What a test wants to be done first."""
        self._listeners: MutableMapping[Any, Any] = {}
        """Who waits for ends: by process in a `Hive`, by event loop in an `AsyncHive`."""

    def _handler(
        self, function: Any = None, *, name: str | None = None, queue: str | None = None, **options: Any
    ) -> Any:
        """Register a function as the handler of a queue; with options, or bare as a decorator."""
        made = HandlerOptions.given(options)

        def register(function: Any) -> Any:
            checked = checked_function(function)
            return self._register(checked, handler_name(checked, name, queue), made)

        return register if function is None else register(function)

    def _register(self, function: Any, name: str, options: HandlerOptions) -> Handler[Any, Any, Any]:
        made = self._handler_class(self, function, name, options)
        self._registry.add(made)
        return made

    def accept_calls(self, queue: str = "calls", **options: Any) -> None:
        """Let the worker of this file serve an `Executor` on a queue; needs a secret.

        Whoever holds the secret can have any function run by it.
        """
        from taskhive import called  # it is made of a hive itself

        called.register(self, units.queue_name(queue), options)

    def on_child_start(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Register a function that each new child calls before its first job."""
        self._registry.child_starts.append(checked_function(function))
        return function

    def register_exception(self, kind: type[X]) -> type[X]:
        """Let `result()` raise this class where a handler raised it; also as a decorator.

        Built-in exceptions are known. Of any other class a record holds only the name, and nothing is
        imported because a record names it, so this program has to say which ones it knows.
        """
        checked = checked_class(kind)
        self._core.exceptions[f"{checked.__module__}.{checked.__qualname__}"] = checked
        return kind

    @staticmethod
    def _may_wait() -> None:
        if relay.installed is not None or context.is_running():
            raise WouldDeadlock(
                "a handler that waits for a job holds the child that could run it. Dispatch the next "
                "step from here, or wait in the program that dispatched this one"
            )

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        return self._core.prefix

    @property
    def settings(self) -> HiveSettings:
        """What this hive was told, and the defaults for the rest."""
        return self._core.settings()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.target}, prefix={self.prefix!r})"


class QueueBase(Generic[H]):
    """A name, and the options for the next dispatches."""

    def __init__(self, hive: H, name: str, options: JobOptions, visibility: float) -> None:
        self._hive = hive
        self._core = hive._core
        self._options = options
        self._visibility = units.seconds(visibility, "visibility", least=0.001)
        self.name = units.queue_name(name)

    def options(self, **options: Any) -> Self:
        """The same queue with options for what is dispatched through it; may be chained."""
        return type(self)(self._hive, self.name, self._options.but(**options), self._visibility)

    def _many(self, items: list[Any]) -> tuple[list[BoundJob], Flow[list[Answer]]]:
        durable = self._options.durable is True
        made = self._core.many(self._options, items, self.name)
        bound = [BoundJob(self.name, item, durable) for item in made]
        return bound, self._core.commands.dispatch(self.name, made, durable)

    def _lease_flow(self, visibility: float | None, wait: float | None) -> Flow[Leased | None]:
        length = self._visibility
        if visibility is not None:
            length = units.seconds(visibility, "visibility", least=0.001)
        if wait is not None:
            wait = units.seconds(wait, "wait")
        return self._core.lease(self.name, max(1, round(length * 1000)), wait)

    def _configure_flow(self, max_depth: Any, events: Any) -> Flow[None]:
        words = {}
        if max_depth is not UNSET:
            if max_depth is not None:
                units.whole(max_depth, "max_depth", least=1)
            words["depth"] = "" if max_depth is None else str(max_depth)
        if events is not UNSET:
            words["events"] = "" if units.flag(events, "events") else "0"
        if not words:
            raise ConfigurationError("configure", "nothing is given", "Give max_depth, or events")
        return self._core.commands.configure(self.name, **words)

    def _cancel_flow(self, job_id: str, cooperative: Any, grace: Any) -> Flow[bool]:
        return cancel_flow(self._core, self.name, job_id, cooperative, grace)

    def _destroy_flow(self) -> Flow[int]:
        if self._core.commands.keys(self.name).is_lane:
            raise ConfigurationError(
                "queue", f"{self.name!r} is a fail lane", "Destroy its queue, or purge the lane"
            )
        return self._core.commands.destroy(self.name)

    def __repr__(self) -> str:
        given = self._options.given()
        return f"{type(self).__name__}({self.name!r}{''.join(f', {k}={v!r}' for k, v in given.items())})"


class BoundBase(Generic[Q]):
    """A dispatch that was not made yet. Its arguments are checked already."""

    def __init__(self, queue: Q, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._queue = queue
        self._args = args
        self._kwargs = kwargs
        self._bound()

    def _bound(self) -> BoundJob:
        """Encoded anew for each dispatch: each is a job of its own."""
        options = self._queue._options
        item = self._queue._core.item(options, self._args, self._kwargs, self._queue.name)
        return BoundJob(self._queue.name, item, options.durable is True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._queue!r}, {self._args!r}, {self._kwargs!r})"


def bound_jobs(calls: Any, kind: type[BoundBase[Any]]) -> list[BoundJob]:
    """The calls of a `dispatch_many`, checked."""
    bound = []
    for call in calls:
        if not isinstance(call, kind):
            raise ConfigurationError(
                "calls", f"{type(call).__name__} is no bound call", "Make them with queue.bind(...)"
            )
        bound.append(call._bound())
    return bound


class JobBase(Generic[H]):
    """A handle on one job: an id and nothing that grows."""

    __slots__ = ("_end", "_generation", "_hive", "created", "id", "queue")

    def __init__(self, hive: H, queue: str, id: str, generation: int | None, created: bool) -> None:
        self._hive = hive
        self._generation = generation
        self._end: Fetched | None = None
        self.id = id
        self.queue = queue
        self.created = created
        """Whether this dispatch made a run, rather than changing one that waited already."""

    @classmethod
    def _of(cls, hive: H, queue: str, item: Item, answer: Answer) -> Self:
        return cls(hive, queue, item.id, answer.generation, answer.created)

    @classmethod
    def _all_of(cls, hive: H, bound: list[BoundJob], answers: list[Any]) -> list[Self]:
        pairs = zip(bound, answers, strict=False)
        return [cls._of(hive, one.queue, one.item, got) for one, got in pairs if got is not None]

    def _cancel_flow(self, cooperative: Any, grace: Any) -> Flow[bool]:
        return cancel_flow(self._hive._core, self.queue, self.id, cooperative, grace)

    def _remember(self, end: Fetched) -> None:
        # A handle ends once. One that means "the newest run" may end again with another.
        if self._generation is not None and end.standing is Standing.ENDED:
            self._end = end

    def _value(self, end: Fetched) -> Any:
        core = self._hive._core
        return value_of(self.queue, self.id, end, core.exceptions, core.ring)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue}/{self.id})"


def cancel_flow(core: Core, queue: str, job_id: str, cooperative: Any, grace: Any) -> Flow[bool]:
    """A cancel, its options checked."""
    asked, seconds = units.flag(cooperative, "cooperative"), units.seconds(grace, "grace")
    if asked and seconds:
        raise ConfigurationError("grace", "nobody is killed by a cooperative cancel", "Give one of them")
    return core.commands.cancel(queue, job_id, asked, seconds)


class LeaseBase(Generic[H]):
    """A job taken by hand, and the ways it can end."""

    def __init__(self, hive: H, queue: str, job: Leased) -> None:
        self._hive = hive
        self._core = hive._core
        self._job = job
        self._settled = False
        self.queue = queue
        self.id = job.id
        self.token = job.token
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.sealed = is_sealed(job.payload)
        """The arguments are a signed pickle, which only a worker's child opens."""
        if not self.sealed:
            self.args, self.kwargs = self._core.opened(queue, job)
        self.tries = job.attempts + 1
        self.cancelled = False
        """Set by `extend` when somebody has cancelled the job."""

    @property
    def data(self) -> Any:
        """The one positional argument of a job that has just one."""
        if len(self.args) != 1 or self.kwargs:
            raise ConfigurationError(
                "data", f"{self.id} was not dispatched with one argument", "Use .args and .kwargs"
            )
        return self.args[0]

    @property
    def counts(self) -> Counts:
        """How often it was put back, by cause."""
        return self._job.counts

    def _released(self, delay: float | None) -> Settle:
        wait = -1 if delay is None else round(units.seconds(delay, "delay") * 1000)
        return Settle(self.id, self.token, "release", delay_ms=wait)

    def _renewal(self, seconds: float) -> Flow[int]:
        length = units.seconds(seconds, "seconds", least=0.001)
        renewal = Renewal(self.id, self.token)
        return self._core.commands.renew(self.queue, renewal, max(1, round(length * 1000)))

    def _renewed(self, answer: int) -> None:
        if answer == 0:
            raise self._lost()
        self.cancelled = answer >= 2

    def _answered(self, answer: str) -> None:
        if answer == "STALE":
            raise self._lost()
        self._settled = True

    def _lost(self) -> LeaseLost:
        why = "it lapsed, was settled otherwise, or is somebody else's"
        return LeaseLost(self.queue, self.id, self.token, why)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue}/{self.id}, token={self.token})"
