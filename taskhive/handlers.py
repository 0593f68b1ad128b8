"""Registered functions: what a worker may call, by the queue that decides it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar

from taskhive import units
from taskhive.errors import ConfigurationError
from taskhive.handler_options import FAILURE_HANDLER, HandlerOptions
from taskhive.units import LANE_SUFFIX

P = ParamSpec("P")
R = TypeVar("R")


class Handler(Generic[P, R]):
    """A plain function that also has a queue."""

    def __init__(self, hive: Any, function: Callable[P, R], name: str, options: HandlerOptions) -> None:
        functools.update_wrapper(self, function)
        self._hive = hive
        self.function = function
        self.name = name
        self.options_given = options
        self.wants_job = _takes_job(function)
        self.is_failure_handler = name.endswith(LANE_SUFFIX)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now, with no queue."""
        return self.function(*args, **kwargs)

    @property
    def queue(self) -> Any:
        """Its queue."""
        return self._hive.queue(self.name)

    def dispatch(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Write one job; as `queue.dispatch`."""
        return self.queue.dispatch(*args, **kwargs)

    def dispatch_many(self, items: Iterable[Any]) -> Any:
        """Write one job for each item; as `queue.dispatch_many`."""
        return self.queue.dispatch_many(items)

    def options(self, **options: Any) -> Any:
        """Its queue with options for the next dispatch; as `queue.options`."""
        return self.queue.options(**options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """A checked call for later; as `queue.bind`."""
        return self.queue.bind(*args, **kwargs)

    def on_failure(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Register what is called with a `Failure` when a job of this handler is given up."""
        if self.is_failure_handler:
            raise ConfigurationError(
                "on_failure", "a failure handler has none of its own", "Its failed jobs stay in its lane"
            )
        made = HandlerOptions.given({**FAILURE_HANDLER.portable(), **options})

        def register(function: Callable[..., Any]) -> Any:
            return self._hive._register(function, self.name + LANE_SUFFIX, made)

        return register if function is None else register(function)

    def __repr__(self) -> str:
        return f"Handler({self.name!r})"


class Registry:
    """The handlers of one hive, by queue."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler[Any, Any]] = {}
        self.child_starts: list[Callable[[], Any]] = []

    def add(self, handler: Handler[Any, Any]) -> None:
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


def _where(handler: Handler[Any, Any]) -> str:
    code = getattr(inspect.unwrap(handler.function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(handler.function)
