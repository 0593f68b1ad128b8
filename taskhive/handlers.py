"""Registered functions: what a worker may call, by the queue that decides it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from taskhive import units
from taskhive.errors import ConfigurationError
from taskhive.handler_options import FAILURE_HANDLER, HandlerOptions
from taskhive.units import LANE_SUFFIX

if TYPE_CHECKING:
    from taskhive.aio import AsyncBoundCall, AsyncJob, AsyncQueue
    from taskhive.hive import BoundCall, Job, Queue

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class Handler(Generic[P, C, R]):
    """A plain function that also has a queue.

    `P` are its parameters, `C` is what a plain call returns, `R` what a job of it results in: the same,
    but for a coroutine function.
    """

    def __init__(self, hive: Any, function: Callable[P, C], name: str, options: HandlerOptions) -> None:
        functools.update_wrapper(self, function)
        self._hive = hive
        self.function = function
        self.name = name
        self.options_given = options
        self.wants_job = _takes_job(function)
        self.is_failure_handler = name.endswith(LANE_SUFFIX)
        self.max_result = 0
        """What its results may take, where that is more than the worker's own limit."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Call the function, here and now, with no queue."""
        return self.function(*args, **kwargs)

    @property
    def queue(self) -> Queue:
        """Its queue."""
        mine = self._hive.queue(self.name)
        is_data = self.options_given.codec == "json"
        return mine if is_data else mine.options(codec=self.options_given.codec)  # type: ignore[no-any-return]

    def dispatch(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Write one job; as `queue.dispatch`."""
        return self.queue.dispatch(*args, **kwargs)

    def dispatch_many(self, items: Iterable[Any]) -> list[Job[R]]:
        """Write one job for each item; as `queue.dispatch_many`."""
        return self.queue.dispatch_many(items)

    def options(self, **options: Any) -> Dispatches[P, R]:
        """Its queue with options for the next dispatch; as `queue.options`."""
        return self.queue.options(**options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall:
        """A checked call for later; as `queue.bind`."""
        return self.queue.bind(*args, **kwargs)

    def on_failure(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Register what is called with a `Failure` when a job of this handler is given up."""
        if self.is_failure_handler:
            raise ConfigurationError(
                "on_failure", "a failure handler has none of its own", "Its failed jobs stay in its lane"
            )
        # It is given the arguments of the job that failed, in the form they had.
        mine = {"codec": self.options_given.codec, **options}
        made = HandlerOptions.given({**FAILURE_HANDLER.portable(), **mine})

        def register(function: Callable[..., Any]) -> Any:
            return self._hive._register(function, self.name + LANE_SUFFIX, made)

        return register if function is None else register(function)

    def __repr__(self) -> str:
        return f"Handler({self.name!r})"


class AsyncHandler(Handler[P, C, R]):
    """A handler of an `AsyncHive`: what asks the server is awaited."""

    if TYPE_CHECKING:

        @property
        def queue(self) -> AsyncQueue:  # type: ignore[override]
            """Its queue."""

        async def dispatch(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> AsyncJob[R]:
            """Write one job; as `queue.dispatch`."""

        async def dispatch_many(  # type: ignore[override]
            self, items: Iterable[Any]
        ) -> list[AsyncJob[R]]:
            """Write one job for each item; as `queue.dispatch_many`."""

        def options(self, **options: Any) -> AsyncDispatches[P, R]:  # type: ignore[override]
            """Its queue with options for the next dispatch; as `queue.options`."""

        def bind(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> AsyncBoundCall:
            """A checked call for later; as `queue.bind`."""


class Dispatches(Protocol[P, R]):
    """A queue that knows what its handler takes and returns."""

    def dispatch(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Write one job."""

    def dispatch_many(self, items: Iterable[Any]) -> list[Job[R]]:
        """Write one job for each item."""

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall:
        """A checked call for later."""

    def options(self, **options: Any) -> Dispatches[P, R]:
        """With more options."""


class AsyncDispatches(Protocol[P, R]):
    """The same for an `AsyncHive`."""

    async def dispatch(self, *args: P.args, **kwargs: P.kwargs) -> AsyncJob[R]:
        """Write one job."""

    async def dispatch_many(self, items: Iterable[Any]) -> list[AsyncJob[R]]:
        """Write one job for each item."""

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> AsyncBoundCall:
        """A checked call for later."""

    def options(self, **options: Any) -> AsyncDispatches[P, R]:
        """With more options."""


class Registers(Protocol):
    """What `@hive.handler(...)` decorates with."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Handler[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R, R]: ...


class AsyncRegisters(Protocol):
    """The same for an `AsyncHive`."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncHandler[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncHandler[P, R, R]: ...


class Registry:
    """The handlers of one hive, by queue."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler[Any, Any, Any]] = {}
        self.child_starts: list[Callable[[], Any]] = []

    def add(self, handler: Handler[Any, Any, Any]) -> None:
        """Take a handler in; a queue has one."""
        known = self.handlers.get(handler.name)
        if known is not None and known.function is not handler.function:
            raise ConfigurationError(
                "name",
                f"two handlers for the queue {handler.name!r} ({_where(known)} and {_where(handler)})",
                "Give one of them another name: @hive.handler(name=...)",
            )
        self.handlers[handler.name] = handler


def handler_name(function: Callable[..., Any], name: Any, queue: Any) -> str:
    """The queue of a handler: `name`, or `queue`, which is the same, or the function's own name."""
    if name is not None and queue is not None and name != queue:
        raise ConfigurationError("queue", "given together with another name", "Give one of them")
    chosen = name if name is not None else queue
    chosen = units.queue_name(getattr(function, "__name__", "") if chosen is None else chosen)
    if chosen.endswith(LANE_SUFFIX):
        raise ConfigurationError(
            "name", f"{LANE_SUFFIX!r} is the ending of fail lanes", "Use @handler.on_failure"
        )
    return chosen


def checked_function(function: Any) -> Callable[..., Any]:
    """A function that can be a handler."""
    if not callable(function):
        raise ConfigurationError("handler", f"{function!r} is not a function", "Decorate a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            "handler", f"{function.__name__} is a generator and would not run", "Return its values"
        )
    return function  # type: ignore[no-any-return]


def _takes_job(function: Callable[..., Any]) -> bool:
    try:
        return "job" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _where(handler: Handler[Any, Any, Any]) -> str:
    code = getattr(inspect.unwrap(handler.function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(handler.function)
