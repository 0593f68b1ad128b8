"""Following what happens: the flows behind `events()`, which go on where they were after a reconnect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from taskhive.address import Routing
from taskhive.commands import Commands
from taskhive.effects import Flow, Pause
from taskhive.events import Event, EventKind, read_events
from taskhive.jobs import Fetched, JobState, Standing

BLOCK_MS = 3000
"""How long the server may hold a question: less than a connection may be silent."""
_COUNT = 500
_ALL = 100_000
_FIRST = "0-0"
_ENDS = {
    EventKind.SUCCEEDED: JobState.SUCCEEDED,
    EventKind.FAILED: JobState.FAILED,
    EventKind.CANCELLED: JobState.CANCELLED,
}
_KINDS = {state: kind for kind, state in _ENDS.items()}


def now(commands: Commands, queue: str) -> Flow[str]:
    """The place in a queue's stream behind which everything is yet to happen."""
    stream = commands.keys(queue).events
    words = (b"XREVRANGE", stream, b"+", b"-", b"COUNT", b"1")
    last = yield from commands.session.command(stream, *words)
    return last[0][0].decode() if last else _FIRST


def after(value: Any) -> str | None:
    """Where a reader wants to go on: an event, its id, None for now, empty for the oldest kept."""
    if isinstance(value, Event):
        return value.id
    return None if value is None else str(value) or _FIRST


@dataclass(slots=True)
class Follower:
    """A reader of one queue's stream or of several; `places` is how far it has read in each."""

    commands: Commands
    places: dict[str, str] = field(default_factory=dict)

    def read(self) -> Flow[list[Event]]:
        """What happened next; an empty list when nothing did for a while."""
        queues = list(self.places)
        if not queues:
            yield Pause(1.0)
            return []
        if len(queues) > 1 and self.commands.session.target.routing is Routing.CLUSTER:
            return (yield from self._each(queues))
        keys = {self.commands.keys(queue).events: queue for queue in queues}
        words = [b"XREAD", b"COUNT", b"%d" % _COUNT, b"BLOCK", b"%d" % BLOCK_MS, b"STREAMS"]
        places = [self.places[queue].encode() for queue in queues]
        tag = self.commands.keys(queues[0]).tag
        reply = yield from self.commands.session.command(tag, *words, *keys, *places)
        found: list[Event] = []
        for key, entries in reply or ():
            found += read_events(keys[key], entries)
            self.places[keys[key]] = entries[-1][0].decode()
        # Several streams, one story.
        return sorted(found, key=_moment) if len(queues) > 1 else found

    def _each(self, queues: list[str]) -> Flow[list[Event]]:
        """In a cluster the streams lie on several servers: each is asked, once a second."""
        found: list[Event] = []
        for queue in queues:
            new = yield from self.commands.events(queue, self.places[queue], _COUNT)
            if new:
                self.places[queue] = new[-1].id
                found += new
        if not found:
            yield Pause(1.0)
        return sorted(found, key=_moment)


class QueueFollower:
    """Everything that happens in one queue."""

    def __init__(self, commands: Commands, queue: str) -> None:
        self._follower = Follower(commands)
        self._commands = commands
        self._queue = queue

    def start(self, place: str | None) -> Flow[None]:
        """Begin behind a place, or now."""
        if place is None:
            place = yield from now(self._commands, self._queue)
        self._follower.places[self._queue] = place

    def read(self) -> Flow[list[Event]]:
        """What happened next."""
        return self._follower.read()


class HiveFollower:
    """Everything that happens in all queues, also in those that are yet to come."""

    def __init__(self, commands: Commands) -> None:
        self._follower = Follower(commands)
        self._commands = commands

    def start(self) -> Flow[None]:
        """Begin now, in the queues there are."""
        queues = yield from self._commands.queues()
        for queue in queues:
            self._follower.places[queue] = yield from now(self._commands, queue)

    def read(self) -> Flow[list[Event]]:
        """What happened next; then the queues are looked up again."""
        places = self._follower.places
        queues = yield from self._commands.queues()
        for queue in queues:
            places.setdefault(queue, _FIRST)
        for gone in places.keys() - set(queues):
            del places[gone]
        return (yield from self._follower.read())


class JobFollower:
    """What happens to one job until it has ended; of a job that has, at least its end.

    The stream knows ids, not runs: ends of earlier runs of the same id are told apart by the record.
    """

    def __init__(self, commands: Commands, queue: str, job_id: str, generation: int | None) -> None:
        self._follower = Follower(commands)
        self._commands = commands
        self._queue = queue
        self._id = job_id
        self._generation = generation
        self.is_over = False

    def start(self) -> Flow[list[Event]]:
        """What is kept of its past."""
        # The stream before the record: what is in it of a run that has not ended is surely its past. And
        # once more behind the record of one that has, since its end may have come in between.
        entries = yield from self._commands.events(self._queue, "", _ALL)
        end = yield from self._fetch()
        if end is not None:
            entries = yield from self._commands.events(self._queue, "", _ALL)
        self._follower.places[self._queue] = entries[-1].id if entries else _FIRST
        mine = [event for event in entries if event.job_id == self._id]
        runs: list[list[Event]] = [[]]
        for event in mine:
            runs[-1].append(event)
            if event.kind in _ENDS:
                runs.append([])
        if end is None:
            return runs[-1]
        self.is_over = True
        last = runs[-2] if len(runs) > 1 else runs[-1]
        return last if last and last[-1].kind in _ENDS else [*last, *self._end(end)]

    def read(self) -> Flow[list[Event]]:
        """What happened next."""
        events = yield from self._follower.read()
        found: list[Event] = []
        for event in events:
            if event.job_id == self._id and event.kind not in _ENDS:
                found.append(event)
            elif event.job_id == self._id or event.kind is EventKind.DESTROYED:
                end = yield from self._fetch()
                if end is not None:
                    self.is_over = True
                    return [*found, event]
        if not events:  # a queue may be told to keep no events
            end = yield from self._fetch()
            if end is not None:
                self.is_over = True
                found += self._end(end)
        return found

    def _fetch(self) -> Flow[Fetched | None]:
        (found,) = yield from self._commands.fetch(self._queue, [(self._id, self._generation)])
        return None if found.standing is Standing.PENDING else found

    def _end(self, end: Fetched) -> list[Event]:
        """The end as its record tells it, where the stream does not any more."""
        kind = _KINDS.get(end.state)
        if kind is None:
            return []
        place = self._follower.places[self._queue]
        return [Event(place, kind, self._queue, end.ended_at, self._id, error_kind=end.kind)]


def _moment(event: Event) -> tuple[int, int]:
    ms, _, number = event.id.partition("-")
    return int(ms or 0), int(number or 0)
