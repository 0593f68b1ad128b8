"""The handler behind `hive.accept_calls`: it runs the functions that an Executor sends.

`taskhive.called:NAME` names a hive that serves the queue NAME and nothing else, for
`python -m taskhive --calls`.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from taskhive.handler_options import HandlerOptions
from taskhive.hive import Hive
from taskhive.units import size

MAX_CALL = size("64MiB", "max_call")
"""Bytes of a call and of its result: an Executor's take more than a job's."""
_MAX_FUNCTIONS = 256

OPTIONS: dict[str, Any] = {
    # As in a pool of processes: a call runs until it is done, and once.
    "timeout": None,
    "max_retries": 0,
    "max_timeouts": 0,
    "max_stalls": 0,
    "max_crashes": 0,
    "result_ttl": 600.0,
    "failure_ttl": 600.0,
    "codec": "pickle",
}

_functions: OrderedDict[bytes, Callable[..., Any]] = OrderedDict()
_initialized: set[bytes] = set()


def run_calls(
    function: bytes,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    initializer: bytes | None = None,
    is_chunk: bool = False,
) -> Any:
    """Call a function; its result.

    For a chunk of a `map` the arguments are columns: the first of each call, the second of each, and so
    on, since a few long tuples are read and written faster than many short ones.
    """
    if initializer is not None:
        _initialize(initializer)
    run = _function(function)
    if not is_chunk:
        return run(*args, **kwargs)
    results = list(map(run, *args))
    if len(results) < len(args[0]):
        # To `map` it is the end of its input, and the calls behind it would be lost without a word.
        raise RuntimeError("the function raised StopIteration")
    return results


def _function(data: bytes) -> Callable[..., Any]:
    """The function in a pickle, read once for any number of calls."""
    known = _functions.get(data)
    if known is None:
        known = _functions[data] = pickle.loads(data)  # it came inside a signed envelope
        if len(_functions) > _MAX_FUNCTIONS:
            _functions.popitem(last=False)
    return known


def _initialize(data: bytes) -> None:
    digest = hashlib.sha256(data).digest()
    if digest not in _initialized:
        function, args = pickle.loads(data)
        function(*args)
        _initialized.add(digest)


def register(hive: Any, queue: str, options: dict[str, Any]) -> Any:
    """Make a hive serve a queue of calls."""
    handler = hive._register(run_calls, queue, HandlerOptions.given({**OPTIONS, **options}))
    handler.max_result = MAX_CALL
    return handler


def __getattr__(name: str) -> Hive:
    if name.startswith("__"):
        raise AttributeError(name)
    hive = Hive(max_result=MAX_CALL)
    register(hive, name, {})
    return hive
