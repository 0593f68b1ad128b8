"""Dispatch: jobs written in chunks, and confirmed if they are to be durable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from taskhive.caller import Caller
from taskhive.effects import Flow
from taskhive.errors import NotDurable, PartialDispatch, TaskHiveError
from taskhive.ids import nonce
from taskhive.parcels import MAX_BYTES, MAX_ITEMS, Answer, Item

CONFIRM_WITHIN_MS = 3000
_ADDED = Answer(0, True)


class Dispatcher(Caller):
    """How jobs come into a queue."""

    def dispatch(self, queue: str, items: Sequence[Item], durable: bool = False) -> Flow[list[Answer]]:
        """Write jobs, in chunks of a size the server takes in one gulp."""
        if queue not in self._known:
            yield from self._register(queue)
        answers: list[Answer] = []
        for chunk in _chunks(items):
            try:
                answers += yield from self._dispatch_chunk(queue, chunk, durable)
            except TaskHiveError as error:
                if not answers and not isinstance(error, NotDurable):
                    raise
                if isinstance(error, NotDurable):
                    answers += error.jobs
                    error.jobs = answers
                    if len(answers) == len(items):
                        raise
                raise PartialDispatch(
                    answers, dict.fromkeys(range(len(answers), len(items)), error)
                ) from error
        return answers

    def _dispatch_chunk(self, queue: str, chunk: Sequence[Item], durable: bool) -> Flow[list[Answer]]:
        confirm: tuple[bytes, ...] = ()
        if durable:
            confirm = yield from self._confirmation(queue)
        is_done = 0
        if not any(item.spec for item in chunk):
            # A generated id names the request as well as a nonce would.
            call = chunk[0].id.encode()
            args = [call]
            for item in chunk:
                args += (item.id.encode(), item.payload)
            replies = yield from self.session.call(self.keys(queue), "add", args, call, confirm)
            _, is_new, is_done = replies[0]
        if is_done:
            answers = [_ADDED] * len(chunk)
        else:
            # A name of its own: a late answer to `add` must not pass for the one to this.
            call = nonce().encode()
            args = [call]
            for item in chunk:
                args += (item.id.encode(), item.payload, item.spec)
            replies = yield from self.session.call(self.keys(queue), "dispatch", args, call, confirm)
            _, is_new, letters = replies[0]
            answers = [Answer(int(word[1:]), word[:1] in b"NBD") for word in letters]
        if is_new:
            yield from self._register(queue)
        if confirm:
            _check_durable(replies[1], confirm, answers)
        return answers

    def _confirmation(self, queue: str) -> Flow[tuple[bytes, ...]]:
        """The command that waits for disk or replica: it must follow on the same connection."""
        info = yield from self.session.command(
            self.keys(queue).tag, b"INFO", b"persistence", b"replication"
        )
        if self.session.version >= (7, 2) and b"aof_enabled:1" in info:
            return (b"WAITAOF", b"1", b"0", b"%d" % CONFIRM_WITHIN_MS)
        # Without a replica there is nobody to wait for, and zero would mean for ever.
        return (b"WAIT", b"1", b"1" if b"connected_slaves:0" in info else b"%d" % CONFIRM_WITHIN_MS)


def _chunks(items: Sequence[Item]) -> Iterable[Sequence[Item]]:
    if len(items) == 1:
        yield items
        return
    start, size = 0, 0
    for index, item in enumerate(items):
        weight = len(item.payload) + len(item.spec) + len(item.id)
        if index > start and (index - start == MAX_ITEMS or size + weight > MAX_BYTES):
            yield items[start:index]
            start, size = index, 0
        size += weight
    if items:
        yield items[start:]


def _check_durable(reply: Any, confirm: tuple[bytes, ...], answers: list[Answer]) -> None:
    if isinstance(reply, Exception):
        raise NotDurable(answers, 0, 0, f"The server answered: {reply}")
    local, replicas = reply if isinstance(reply, list) else (0, reply)
    if local or replicas:
        return
    advice = (
        "Its disk may be slow; see INFO persistence"
        if confirm[0] == b"WAITAOF"
        else "Set appendonly yes (and use Redis 7.2 or newer, or Valkey), or attach a replica"
    )
    raise NotDurable(answers, local, replicas, advice)
