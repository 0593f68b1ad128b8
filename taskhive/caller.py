"""Script calls: how one is named, addressed and answered."""

from __future__ import annotations

from typing import Any

from taskhive.effects import Flow
from taskhive.errors import ServerRefused
from taskhive.ids import nonce
from taskhive.keys import QueueKeys, queue_set, worker_set
from taskhive.session import Session

DEAF_FOR = 60.0
"""Seconds after which whoever waits for a bell looks for itself."""


class Caller:
    """The scripts of one server and prefix."""

    def __init__(self, session: Session, prefix: str) -> None:
        self.session = session
        self.prefix = prefix
        self._queues = queue_set(prefix).encode()
        self._workers = worker_set(prefix).encode()
        self._known: set[str] = set()
        self._keys: dict[str, QueueKeys] = {}

    def keys(self, queue: str) -> QueueKeys:
        """The keys of a queue, made once while it is in use."""
        made = self._keys.get(queue)
        if made is None:
            if len(self._keys) > 10_000:  # programs that name a queue for each of their users
                self._keys = {}
            made = self._keys[queue] = QueueKeys(self.prefix, queue)
        return made

    def _call(self, queue: str, verb: str, *args: bytes, **special: str) -> Flow[list[Any]]:
        call = nonce().encode()
        keys = self.keys(queue)
        replies = yield from self.session.call(keys, verb, (call, *args), call, special=special)
        reply = replies[0]
        if not isinstance(reply, list):
            raise ServerRefused(f"{verb} was answered with {reply!r}, which is no reply of its script")
        return reply

    def _register(self, queue: str) -> Flow[None]:
        # Before the first job is in it: a queue nobody can list is worse than an empty one.
        yield from self.session.command(self._queues, b"SADD", self._queues, queue.encode())
        self._known.add(queue)
