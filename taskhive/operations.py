"""What an operator or a program asks of jobs and queues that it does not run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from taskhive import records, units
from taskhive.caller import Caller
from taskhive.costs import HandlerCosts, read_costs
from taskhive.effects import Flow
from taskhive.errors import ConfigurationError, JobActive
from taskhive.events import Event, read_events
from taskhive.jobs import AttemptInfo, Fetched, JobInfo, JobState, Page, Progress, QueueStats
from taskhive.parcels import MAX_ITEMS

# As a server writes the score of a sorted set, and not all that `float` would read.
_SCORE = re.compile(r"-?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|inf)\Z")


class Operations(Caller):
    """Looking at jobs and queues, and changing them by hand."""

    # One job

    def look(self, queue: str, job_id: str) -> Flow[records.Look]:
        """Everything known of one id."""
        return records.Look.of((yield from self._call(queue, "look", job_id.encode())))

    def state(self, queue: str, job_id: str, generation: int | None) -> Flow[JobState]:
        """The state of one generation of an id."""
        return (yield from self.look(queue, job_id)).state(generation)

    def info(self, queue: str, job_id: str, generation: int | None) -> Flow[JobInfo]:
        """The record of one generation of an id."""
        return (yield from self.look(queue, job_id)).info(queue, job_id, generation)

    def progress(self, queue: str, job_id: str, generation: int | None) -> Flow[Progress | None]:
        """How far the attempt that runs says it is, or the last one said it was."""
        return (yield from self.look(queue, job_id)).progress(generation)

    def attempts(self, queue: str, job_id: str, generation: int | None) -> Flow[list[AttemptInfo]]:
        """What is kept of its attempts that are over: the last five, oldest first."""
        reply = yield from self._call(queue, "look", job_id.encode(), b"1")
        return records.Look.of(reply).attempts(generation)

    def fetch(self, queue: str, runs: Sequence[tuple[str, int | None]]) -> Flow[list[Fetched]]:
        """The ends of many runs, each named by id and generation, 1,000 of them a round trip."""
        found: list[Fetched] = []
        for start in range(0, len(runs), MAX_ITEMS):
            chunk = runs[start : start + MAX_ITEMS]
            words: list[bytes] = []
            for job_id, generation in chunk:
                words += (job_id.encode(), b"" if generation is None else b"%d" % generation)
            _, answers = yield from self._call(queue, "fetch", *words)
            found += [
                records.read_fetched(job_id, answer)
                for (job_id, _), answer in zip(chunk, answers, strict=True)
            ]
        return found

    def cancel(
        self, queue: str, job_id: str, cooperative: bool = False, grace: float = 0.0
    ) -> Flow[bool]:
        """Drop the waiting run; mark the running one, to be killed after a grace, or ask it to stop."""
        mode = b"ask" if cooperative else b"kill"
        words = (job_id.encode(), mode, b"%d" % round(grace * 1000))
        return bool((yield from self._call(queue, "cancel", *words))[1] == 1)

    def remove(self, queue: str, job_id: str) -> Flow[bool]:
        """Drop the record and result of a job that does not run."""
        answer = (yield from self._call(queue, "remove", job_id.encode()))[1]
        if answer == -1:
            raise JobActive(queue, job_id)
        return bool(answer == 1)

    def revive(self, queue: str, job_id: str) -> Flow[bool]:
        """Make a dead letter ready again; False if there is none, or the id has a newer run."""
        return bool((yield from self._call(queue, "revive", job_id.encode()))[1] == 1)

    # The whole queue

    def stats(self, queue: str) -> Flow[QueueStats]:
        """The exact numbers of one instant."""
        return records.read_stats(queue, (yield from self._call(queue, "stats")))

    def page(self, queue: str, state: JobState, limit: int, cursor: str | None) -> Flow[Page]:
        """One page of the jobs in one state."""
        score, _, after = _cursor(cursor)
        reply = yield from self._call(
            queue, "list", state.encode(), b"%d" % limit, score, after, set=state.value
        )
        _, _, rows, more = reply
        jobs = tuple(_listed(queue, state, row) for row in rows)
        if not more or not rows:
            return Page(jobs, None)
        return Page(jobs, f"{records.text(rows[-1][1])}/{records.text(rows[-1][0])}")

    def matching(self, queue: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[list[JobInfo]]:
        """Every waiting or running job with these arguments; reads them all."""
        found = []
        for state in (JobState.READY, JobState.DELAYED, JobState.BLOCKED, JobState.ACTIVE):
            cursor = None
            while True:
                page = yield from self.page(queue, state, MAX_ITEMS, cursor)
                found += [job for job in page if job.args == args and job.kwargs == kwargs]
                cursor = page.cursor
                if cursor is None:
                    break
        return found

    def configure(self, queue: str, **values: str) -> Flow[None]:
        """Set what holds for the queue whoever works on it; an empty string removes a setting."""
        words = [word.encode() for pair in values.items() for word in pair]
        yield from self._call(queue, "configure", *words)

    def purge(self, queue: str, state: JobState, older_than: float) -> Flow[int]:
        """Drop the jobs in one state, in bounded batches."""
        moment, skip, dropped, more = 0, 0, 0, 1
        while more:
            _, gone, more, moment, skip = yield from self._call(
                queue,
                "purge",
                state.encode(),
                b"%d" % round(older_than * 1000),
                b"%d" % moment,
                b"%d" % MAX_ITEMS,
                b"%d" % skip,
                set=state.value,
            )
            dropped += gone
        return dropped

    def events(self, queue: str, after: str, count: int) -> Flow[list[Event]]:
        """What `count` calls did behind one event's id; empty: from the oldest that is kept."""
        stream = self.keys(queue).events
        start = f"({after}".encode() if after else b"-"
        words = (b"XRANGE", stream, start, b"+", b"COUNT", b"%d" % count)
        return read_events(queue, (yield from self.session.command(stream, *words)))

    def account(self, queue: str, spent: Mapping[str, int]) -> Flow[bool]:
        """Add what attempts have cost; False if this very call was counted before."""
        words = [word for name, value in spent.items() for word in (name.encode(), b"%d" % value)]
        return bool((yield from self._call(queue, "account", *words))[1] == 1)

    def costs(self, queue: str) -> Flow[HandlerCosts]:
        """What the attempts of a queue have cost so far."""
        name = self.keys(queue).name("costs").encode()
        return read_costs(queue, (yield from self.session.command(name, b"HGETALL", name)))

    def handlers(self) -> Flow[list[HandlerCosts]]:
        """The same of every queue of which an attempt was accounted."""
        found = []
        for queue in (yield from self.queues()):
            for name in (queue, f"{queue}{units.LANE_SUFFIX}"):
                costs = yield from self.costs(name)
                if costs.count:
                    found.append(costs)
        return found

    def sweep(self, queue: str) -> Flow[list[str]]:
        """Do now what any exchange does in passing; the ids whose lease had lapsed."""
        lane = b"0" if self.keys(queue).is_lane else b"1"
        _, ids = yield from self._call(queue, "sweep", lane)
        return [records.text(one) for one in ids]

    def destroy(self, queue: str) -> Flow[int]:
        """Drop a queue with all it holds; how many jobs waited or ran."""
        _, dropped = yield from self._call(queue, "destroy")
        yield from self.session.command(self._queues, b"SREM", self._queues, queue.encode())
        self._known.discard(queue)
        # Who dispatched since has made a new queue, and may have added its name before it was taken out.
        meta = self.keys(queue).name("meta").encode()
        if (yield from self.session.command(meta, b"HLEN", meta)):
            yield from self._register(queue)
        return int(dropped)

    def queues(self) -> Flow[list[str]]:
        """The names of all queues, in order."""
        names = yield from self.session.command(self._queues, b"SMEMBERS", self._queues)
        return sorted(records.text(name) for name in names)


def _listed(queue: str, state: JobState, row: Any) -> JobInfo:
    job_id = records.text(row[0])
    if state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
        return records.read_ended(queue, job_id, row[2])
    return records.read_job(queue, job_id, state, records.table(row[2]))


def _cursor(cursor: str | None) -> tuple[bytes, bytes, bytes]:
    if cursor is None:
        return b"", b"", b""
    score, slash, after = cursor.partition("/") if isinstance(cursor, str) else ("", "", "")
    try:
        behind = after.encode()
    except UnicodeEncodeError:
        slash = ""
    if not slash or not _SCORE.match(score):
        raise ConfigurationError("cursor", f"{cursor!r} is none", "Pass on the .cursor of a page")
    return score.encode(), b"/", behind
