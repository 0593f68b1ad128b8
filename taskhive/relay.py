"""A hive inside a handler: its calls go to the supervisor, which has the connection.

A child has no connection and no credentials. What it may ask for is a list of operations by name;
their arguments are checked by the supervisor, and nothing a child says reaches the server unchecked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

from taskhive.effects import Flow, T
from taskhive.parcels import Item, Renewal, Settle

_NAMES = """
dispatch lease settle renew state info progress attempts fetch cancel remove revive
stats page matching configure purge sweep destroy queues lock keep_lock unlock events
costs workers handlers
"""
OPERATIONS = frozenset(_NAMES.split())


class Relay:
    """Stands in for `Commands`: every operation becomes a question to the supervisor."""

    def __init__(self, ask: Callable[[str, list[Any]], Any]) -> None:
        self._ask = ask
        self.session = self

    def __getattr__(self, name: str) -> Callable[..., Flow[Any]]:
        if name not in OPERATIONS:
            raise AttributeError(name)

        def flow(*args: Any, **kwargs: Any) -> Flow[Any]:
            return self._ask(name, [_portable(arg) for arg in args] + [kwargs])
            yield  # a generator, as the operations of Commands are

        return flow

    def command(self, key: Any, *words: bytes, patience: float | None = None) -> Flow[Any]:
        """A ping is answered by the round trip itself."""
        return self._ask("queues", [{}])
        yield

    def keys(self, queue: str) -> Any:
        """What `destroy` wants to know of a queue's name."""
        from taskhive.keys import QueueKeys

        return QueueKeys("", queue)

    def run(self, flow: Flow[T]) -> T:
        """Act out a flow: it asks, and ends."""
        try:
            next(flow)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        raise RuntimeError("a relayed flow has no effects of its own")

    async def run_async(self, flow: Flow[T]) -> T:
        """The same for an AsyncHive, without holding up its loop."""
        return await asyncio.to_thread(self.run, flow)


def _portable(value: Any) -> Any:
    """An argument as JSON; bytes as text of the same code points."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, (Settle, Renewal)) and is_dataclass(value):
        return {name: _portable(field) for name, field in asdict(value).items()}
    if isinstance(value, (list, tuple)):
        return [_portable(one) for one in value]
    if isinstance(value, dict):
        return {name: _portable(one) for name, one in value.items()}
    return value


def items(values: Any) -> list[Item]:
    """The jobs of a relayed dispatch, from what a child said."""
    made = []
    for one in values:
        job_id, payload, spec = one
        made.append(Item(str(job_id), payload.encode("latin-1"), spec.encode("latin-1")))
    return made


def settle(words: Any) -> Settle:
    """A relayed settle."""
    told = {name: words[name].encode("latin-1") for name in ("body", "note")}
    return Settle(**{**words, **told})


def renewal(words: Any) -> Renewal:
    """A relayed renewal."""
    return Renewal(**{**words, "progress": words["progress"].encode("latin-1")})


installed: Relay | None = None


def install(relay: Relay) -> None:
    """From here on every hive of this process asks the supervisor."""
    global installed
    installed = relay
