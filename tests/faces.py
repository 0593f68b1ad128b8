"""One face for both clients: an `AsyncHive` that can be called as if it were a `Hive`.

What is asked of it runs on an event loop in a thread of its own, so that a test written once can be
run with either. `unwrapped` objects are the real ones.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from types import TracebackType
from typing import Any

from taskhive import AsyncHive, aio
from taskhive.locks import AsyncLock

_WRAPPED = (
    AsyncHive,
    aio.AsyncQueue,
    aio.AsyncJob,
    aio.AsyncLease,
    aio.AsyncBoundCall,
    aio.AsyncDeadLetters,
    AsyncLock,
)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Any) -> Any:
        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class Face:
    """Any object of the asyncio client, called without await."""

    def __init__(self, loop: Loop, wrapped: Any) -> None:
        self._loop = loop
        self.wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.wrapped, name)
        if not callable(found):
            return self._seen(found)

        def call(*args: Any, **kwargs: Any) -> Any:
            got = found(*[unwrapped(arg) for arg in args], **kwargs)
            return self._seen(self._loop.run(got) if inspect.isawaitable(got) else got)

        return call

    def __enter__(self) -> Any:
        self._loop.run(self.wrapped.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self.wrapped.__aexit__(kind, error, trace))

    def _seen(self, value: Any) -> Any:
        if isinstance(value, _WRAPPED):
            return Face(self._loop, value)
        if isinstance(value, list) and value and isinstance(value[0], _WRAPPED):
            return [Face(self._loop, one) for one in value]
        return value


def unwrapped(value: Any) -> Any:
    if isinstance(value, Face):
        return value.wrapped
    return [unwrapped(one) for one in value] if type(value) is list else value
