"""A lock by name that programs share, for things of their own: queues need none.

It is held for `ttl` seconds at a time and renewed every third of them for as long as its holder lives
and its program can run; so a holder that dies lets go by itself. Only who holds it can give it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from taskhive import units
from taskhive.effects import Flow
from taskhive.errors import ConfigurationError, LockLost, ServerError
from taskhive.ids import nonce

if TYPE_CHECKING:
    from taskhive.aio import AsyncHive  # noqa: F401 -- named by a base class below
    from taskhive.handles import HiveBase
    from taskhive.hive import Hive  # noqa: F401

H = TypeVar("H", bound="HiveBase")


class LockBase(Generic[H]):
    """A name, and the token of the one time it is held."""

    def __init__(self, hive: H, name: str, ttl: float) -> None:
        self._hive = hive
        self._token: str | None = None
        self._until = 0.0
        self.name = units.queue_name(name)
        self.ttl = units.seconds(ttl, "ttl", least=0.001)

    @property
    def held(self) -> bool:
        """Whether it is ours still, as far as can be told without asking."""
        return self._token is not None and time.monotonic() < self._until

    def _taking(self, wait: float | None) -> Flow[float | None]:
        if self._token is not None:
            raise ConfigurationError("lock", f"{self.name!r} is held through this object", "Release it")
        wait = None if wait is None else units.seconds(wait, "wait")
        self._fresh = f"t{nonce()}"
        return self._hive._core.commands.lock(self.name, self._fresh, self._ms, wait)

    def _taken(self, asked: float | None) -> str | None:
        """Our token, if the lock is ours, with the moment until which it can be trusted."""
        if asked is not None:
            self._token, self._until = self._fresh, asked + self.ttl
        return self._token

    @property
    def _ms(self) -> int:
        return max(1, round(self.ttl * 1000))

    def _keeping(self, token: str) -> Flow[bool]:
        return self._hive._core.commands.keep_lock(self.name, token, self._ms)

    def _kept(self, asked: float, is_ours: bool) -> bool:
        self._until = asked + self.ttl if is_ours else 0.0
        return is_ours

    def _freeing(self) -> Flow[bool]:
        token, self._token = self._token, None
        if token is None:
            raise LockLost(self.name, "it is not held through this object")
        return self._hive._core.commands.unlock(self.name, token)

    def _freed(self, was_ours: bool) -> None:
        if not was_ours:
            raise LockLost(self.name, f"it could not be renewed within {self.ttl:g} s, and lapsed")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, ttl={self.ttl:g})"


class Lock(LockBase["Hive"]):
    """A lock for blocking programs: `with hive.lock("name"):`. A thread renews it meanwhile."""

    def acquire(self, wait: float | None = None) -> bool:
        """Take it, waiting so many seconds for it, or for ever; False if it did not come free."""
        token = self._taken(self._hive._run(self._taking(wait)))
        if token is None:
            return False
        self._done = threading.Event()
        words = (weakref.ref(self), token, self.ttl / 3, self._done)
        threading.Thread(target=_renew, args=words, daemon=True).start()
        return True

    def release(self) -> None:
        """Give it back; raises `LockLost` if it was not ours any more."""
        flow = self._freeing()
        self._done.set()
        self._freed(self._hive._run(flow))

    def _renewed(self, token: str) -> bool:
        asked = time.monotonic()
        # Away for now: what is not renewed in time lapses, which `held` and `release` tell.
        with contextlib.suppress(ServerError):
            return self._kept(asked, self._hive._run(self._keeping(token)))
        return True

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class AsyncLock(LockBase["AsyncHive"]):
    """A lock for asyncio: `async with hive.lock("name"):`. A task renews it meanwhile."""

    _task: asyncio.Task[Any]

    async def acquire(self, wait: float | None = None) -> bool:
        """Take it, waiting so many seconds for it, or for ever; False if it did not come free."""
        token = self._taken(await self._hive._run(self._taking(wait)))
        if token is None:
            return False
        work = _renew_async(weakref.ref(self), token, self.ttl / 3)
        self._task = asyncio.get_running_loop().create_task(work)
        return True

    async def release(self) -> None:
        """Give it back; raises `LockLost` if it was not ours any more."""
        flow = self._freeing()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._freed(await self._hive._run(flow))

    async def _renewed(self, token: str) -> bool:
        asked = time.monotonic()
        with contextlib.suppress(ServerError):
            return self._kept(asked, await self._hive._run(self._keeping(token)))
        return True

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()


# Whoever renews does not keep the lock alive: one that nobody refers to any more lapses.


def _renew(lock: weakref.ref[Lock], token: str, every: float, done: threading.Event) -> None:
    while not done.wait(every):
        held = lock()
        if held is None or not held._renewed(token):
            return
        del held


async def _renew_async(lock: weakref.ref[AsyncLock], token: str, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        held = lock()
        if held is None or not await held._renewed(token):
            return
        del held
