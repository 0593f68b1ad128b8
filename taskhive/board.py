"""Who waits for which run, and what has been heard: the part of a listener that does no I/O.

A message names ids whose runs have ended. It is only a hint: what becomes known comes from the records,
read in bulk. A watch is entered first and its record read afterwards, behind the confirmed subscription,
so that an end is either in the record or in a message that is still to come. A watch that is entered
before its job is even sent needs no such reading: its end is in a message, if none was missed meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from taskhive.jobs import Fetched, Standing

Run = tuple[str, int | None]


@dataclass(slots=True, eq=False)
class Watch:
    """One handle that is waited for; told of its end once."""

    queue: str
    id: str
    generation: int | None
    deliver: Callable[[Watch, Fetched | Exception], None]
    key: Any = None
    """Whatever the waiter wants to find again."""
    unsent: bool = False
    """There may be no record of it yet, which would be taken for one that is gone."""
    missed: bool = False
    """Messages may have been missed while it was unsent."""


class Board:
    """The watches of one connection; its owner sees to it that one at a time touches it."""

    def __init__(self, channel_of: Callable[[str], bytes]) -> None:
        self._channel_of = channel_of
        self._watches: dict[str, dict[str, list[Watch]]] = {}
        self._queues: dict[bytes, str] = {}
        self._asked: set[str] = set()
        self._confirmed: set[str] = set()
        self._due: dict[str, set[str]] = {}
        self._quiet: set[str] = set()

    def __len__(self) -> int:
        return sum(len(ids) for ids in self._watches.values())

    def watch(self, watches: Iterable[Watch]) -> None:
        """Enter watches; their records are due as soon as their channel is listened to."""
        for one in watches:
            self._watches.setdefault(one.queue, {}).setdefault(one.id, []).append(one)
            if one.queue in self._confirmed and not one.unsent:
                self._due.setdefault(one.queue, set()).add(one.id)

    def sent(self, watches: Iterable[Watch]) -> None:
        """These were unsent when they were entered, and are there now."""
        for one in watches:
            one.unsent = False
            if one.missed:
                self._due.setdefault(one.queue, set()).add(one.id)

    def has_work(self) -> bool:
        """Whether something is to be read or subscribed to."""
        return bool(self._due) or not self._asked.issuperset(self._watches)

    def forget(self, watches: Iterable[Watch]) -> None:
        """Drop watches, also ones that were told already."""
        for one in watches:
            ids = self._watches.get(one.queue, {})
            mine = ids.get(one.id)
            if mine is not None and one in mine:
                mine.remove(one)
                if not mine:
                    del ids[one.id]

    # The subscription

    def wanted(self) -> list[bytes]:
        """Channels to subscribe to, which were not asked for yet."""
        new = [queue for queue, ids in self._watches.items() if ids and queue not in self._asked]
        self._asked.update(new)
        channels = [self._channel_of(queue) for queue in new]
        self._queues.update(zip(channels, new, strict=True))
        return channels

    def unwanted(self) -> list[bytes]:
        """Channels for which nobody has waited for a whole round; called once a round."""
        idle = {queue for queue in self._asked if not self._watches.get(queue)}
        leaving, self._quiet = idle & self._quiet, idle - self._quiet
        for queue in leaving:
            self._watches.pop(queue, None)
        channels = [channel for channel, queue in self._queues.items() if queue in leaving]
        for channel in channels:
            del self._queues[channel]
        self._asked -= leaving
        self._confirmed -= leaving
        return channels

    def lost(self) -> None:
        """The connection is gone: nothing is listened to, and anything may have been missed."""
        self._queues.clear()
        self._asked.clear()
        self._confirmed.clear()

    def heard(self, message: Any) -> None:
        """Take in one message of the subscription."""
        if not isinstance(message, list) or len(message) != 3:
            return  # a pong
        kind, channel, body = message
        queue = self._queues.get(channel)
        if queue is None:
            return
        ids = self._watches.get(queue, {})
        if kind == b"subscribe":
            self._confirmed.add(queue)
            self._all_due(queue)
        elif kind == b"message" and isinstance(body, bytes):
            told = body.decode(errors="replace").split(" ")
            if told == ["*"]:
                self._all_due(queue)
            elif hits := {one for one in told if one in ids}:
                self._due.setdefault(queue, set()).update(hits)

    def _all_due(self, queue: str) -> None:
        for one in itertools.chain.from_iterable(self._watches.get(queue, {}).values()):
            if one.unsent:
                one.missed = True
            else:
                self._due.setdefault(queue, set()).add(one.id)

    # The records

    def due(self) -> list[tuple[str, list[Run]]]:
        """The runs to be read now, by queue."""
        due, self._due = self._due, {}
        found = []
        for queue, ids in due.items():
            watches = self._watches.get(queue, {})
            runs = {(one.id, one.generation) for id_ in ids for one in watches.get(id_, ())}
            if runs:
                found.append((queue, list(runs)))
        return found

    def again(self, queue: str, runs: Iterable[Run]) -> None:
        """These could not be read: they stay due."""
        self._due.setdefault(queue, set()).update(run[0] for run in runs)

    def found(self, queue: str, runs: list[Run], fetched: list[Fetched]) -> list[tuple[Watch, Fetched]]:
        """What was read of these runs; the watches that are over, taken off the board."""
        over = []
        ids = self._watches.get(queue, {})
        for run, got in zip(runs, fetched, strict=True):
            if got.standing is Standing.PENDING:
                continue
            if got.standing is Standing.LATER:
                self._due.setdefault(queue, set()).add(run[0])
                continue
            mine = ids.get(run[0], [])
            ended = [one for one in mine if one.generation == run[1]]
            over += [(one, got) for one in ended]
            rest = [one for one in mine if one.generation != run[1]]
            if rest:
                ids[run[0]] = rest
            else:
                ids.pop(run[0], None)
        return over

    def all(self) -> list[Watch]:
        """Every watch, taken off the board."""
        found = [one for ids in self._watches.values() for mine in ids.values() for one in mine]
        self._watches = {}
        return found
