"""Every operation on a queue as a flow: script calls built, replies read, no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from taskhive import codec, records, units
from taskhive.costs import HandlerCosts, read_costs
from taskhive.effects import AwaitMessage, Flow, Trouble
from taskhive.errors import (
    ConfigurationError,
    JobActive,
    NotDurable,
    PartialDispatch,
    ServerRefused,
    TaskHiveError,
)
from taskhive.events import Event, read_events
from taskhive.ids import nonce
from taskhive.jobs import AttemptInfo, Fetched, JobInfo, JobState, LimitHits, Page, Progress, QueueStats
from taskhive.keys import QueueKeys, queue_set, worker_facts, worker_set
from taskhive.retries import Counts
from taskhive.session import Session

MAX_ITEMS = 1000
MAX_BYTES = 4 * 1024 * 1024
MAX_LEASES = 128
MAX_SETTLES = 256
MAX_RENEWALS = 1024
CONFIRM_WITHIN_MS = 3000
DEAF_FOR = 60.0
"""Seconds after which whoever waits for a bell looks for itself."""
AS_SET = -2
"""A time to live that is left to the queue's settings."""
# As a server writes the score of a sorted set, and not all that `float` would read.
_SCORE = re.compile(r"-?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|inf)\Z")


class Item(NamedTuple):
    """One job to be dispatched, encoded."""

    id: str
    payload: bytes
    spec: bytes


class Answer(NamedTuple):
    """What became of one dispatched job."""

    generation: int
    created: bool


_ADDED = Answer(0, True)


# What there is one of for every job is not frozen, though nothing changes it: freezing doubles the price
# of making one.


@dataclass(slots=True)
class Settle:
    """The end of one lease: `done`, `again`, `fail`, `release` or `cancelled`."""

    id: str
    token: str
    outcome: str
    kind: str = ""
    delay_ms: int = 0
    ttl_ms: int = AS_SET
    body: bytes = b""
    note: bytes = b""
    """What the attempt has cost, as JSON; kept with the ended record."""


@dataclass(slots=True)
class Renewal:
    """A lease to be kept."""

    id: str
    token: str
    started: bool = True
    progress: bytes = b""
    """How far it is, as JSON; empty when there is no news."""


@dataclass(slots=True)
class Leased:
    """A job that is ours for a while; the payload is not opened yet."""

    id: str
    token: str
    payload: bytes
    created_ms: int
    fields: dict[bytes, Any]

    @property
    def counts(self) -> Counts:
        """How often it was put back, by cause."""
        return records.counts(self.fields)

    @property
    def limit_hits(self) -> LimitHits:
        """How often each limit was hit: the next attempt gets the next budget of that one only."""
        return records.limit_hits(self.fields)

    @property
    def attempts(self) -> int:
        """How many attempts were counted before this one."""
        value = self.fields.get(b"a", 0)
        return value if isinstance(value, int) else 0


@dataclass(slots=True)
class Exchanged:
    """The answers of one exchange."""

    settled: list[str]
    renewed: list[int]
    leases: list[Leased]
    due_in: float | None
    """Seconds until something is due in this queue, or None."""
    paused: bool


class Commands:
    """The operations of one server and prefix."""

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

    # Dispatch

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

    def _register(self, queue: str) -> Flow[None]:
        # Before the first job is in it: a queue nobody can list is worse than an empty one.
        yield from self.session.command(self._queues, b"SADD", self._queues, queue.encode())
        self._known.add(queue)

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

    # Exchange

    def exchange(
        self,
        queue: str,
        *,
        want: int = 0,
        lease_ms: int,
        worker: str,
        request: str | None = None,
        by_hand: bool = False,
        settles: Sequence[Settle] = (),
        renewals: Sequence[Renewal] = (),
    ) -> Flow[Exchanged]:
        """Settle, renew and lease in one round trip."""
        call = (request or nonce()).encode()
        keys = self.keys(queue)
        args = [
            call,
            b"0" if keys.is_lane else b"1",
            b"%d" % want,
            b"%d" % lease_ms,
            b"1" if by_hand else b"0",
            b"%d" % len(settles),
        ]
        for one in settles:
            args += (
                one.id.encode(),
                one.token.encode(),
                one.outcome.encode(),
                one.kind.encode(),
                b"%d" % one.delay_ms,
                b"%d" % one.ttl_ms,
                one.body,
                one.note,
            )
        for kept in renewals:
            started = b"1" if kept.started else b"0"
            args += (kept.id.encode(), kept.token.encode(), started, kept.progress)
        special = {"request": f"request:{worker}"}
        replies = yield from self.session.call(keys, "exchange", args, call, special=special)
        _, settled, renewed, rows, due_ms, paused = replies[0]
        return Exchanged(
            [word.decode() for word in settled],
            renewed,
            [
                Leased(records.text(row[0]), records.text(row[1]), row[2], row[3], _fields(row))
                for row in rows
            ],
            due_ms / 1000 if due_ms >= 0 else None,
            bool(paused),
        )

    def lease(self, queue: str, lease_ms: int, wait: float | None) -> Flow[Leased | None]:
        """Lease one job by hand; woken by the bell and by what falls due, never by polling."""
        clock = self.session.clock
        deadline = None if wait is None else clock() + wait
        worker = nonce()
        listening = False
        while True:
            got = yield from self._lease_one(queue, lease_ms, worker)
            if isinstance(got, Leased):
                return got
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                return None
            if not listening:
                # Looked at once more behind this: what came before the subscription rang for nobody.
                keys = self.keys(queue)
                yield from self.session.listen(keys.tag, keys.bell)
                listening = True
                continue
            # A network may swallow a bell without a word, so it is not trusted for ever.
            waits = [seconds for seconds in (left, got, DEAF_FOR) if seconds is not None]
            # A millisecond more: what is due at this instant is due for the next one's clock too.
            heard = yield AwaitMessage(min(waits) + 0.001)
            listening = not isinstance(heard, Trouble)

    def _lease_one(self, queue: str, lease_ms: int, worker: str) -> Flow[Leased | float | None]:
        """A lease with a payload that can be read, or how long it may take."""
        settles: tuple[Settle, ...] = ()
        while True:
            got = yield from self.exchange(
                queue, want=1, lease_ms=lease_ms, worker=worker, by_hand=True, settles=settles
            )
            if not got.leases:
                return got.due_in
            job = got.leases[0]
            try:
                codec.decode_call(job.payload)
                return job
            except codec.Sealed:
                return job
            except codec.BadPayload as error:
                # For good, with its reason: tried again it would be as unreadable.
                body = records.encode_error("BadPayload", str(error))
                settles = (Settle(job.id, job.token, "fail", "permanent", body=body),)

    def settle(self, queue: str, settle: Settle) -> Flow[str]:
        """Settle one lease: OK, DUP or STALE."""
        done = yield from self.exchange(
            queue, lease_ms=1, worker=nonce(), by_hand=True, settles=[settle]
        )
        return done.settled[0]

    def renew(self, queue: str, renewal: Renewal, lease_ms: int) -> Flow[int]:
        """Renew one lease: 1 kept, 2 kept but cancelled, 3 kept and asked to stop, 0 lost."""
        done = yield from self.exchange(
            queue, lease_ms=lease_ms, worker=nonce(), by_hand=True, renewals=[renewal]
        )
        return done.renewed[0]

    # Locks

    def lock(self, name: str, token: str, length_ms: int, wait: float | None) -> Flow[float | None]:
        """Take a lock; the moment it was asked for, on our clock, or None if it did not come free."""
        clock = self.session.clock
        deadline = None if wait is None else clock() + wait
        keys = self.keys(name)
        listening = False
        while True:
            asked = clock()
            is_ours, lapses_ms = yield from self._lock(name, b"take", token, length_ms)
            if is_ours:
                return asked
            left = None if deadline is None else deadline - clock()
            if left is not None and left <= 0:
                return None
            if not listening:
                # And looked at once more: what was given back before this rang for nobody.
                yield from self.session.listen(keys.tag, f"{keys.name('lock')}:bell")
                listening = True
                continue
            waits = [seconds for seconds in (left, lapses_ms / 1000, DEAF_FOR) if seconds is not None]
            listening = not isinstance((yield AwaitMessage(max(0.0, min(waits)) + 0.001)), Trouble)

    def keep_lock(self, name: str, token: str, length_ms: int) -> Flow[bool]:
        """Renew a lock; False if it is not the token's any more."""
        return (yield from self._lock(name, b"keep", token, length_ms))[0]

    def unlock(self, name: str, token: str) -> Flow[bool]:
        """Give a lock back; False if it was not the token's any more."""
        return (yield from self._lock(name, b"free", token, 1))[0]

    def _lock(self, name: str, what: bytes, token: str, length_ms: int) -> Flow[tuple[bool, int]]:
        _, is_ours, lapses_ms = yield from self._call(
            name, "lock", what, token.encode(), b"%d" % length_ms
        )
        return is_ours == 1, lapses_ms

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
        return int(dropped)

    def queues(self) -> Flow[list[str]]:
        """The names of all queues, in order."""
        names = yield from self.session.command(self._queues, b"SMEMBERS", self._queues)
        return sorted(records.text(name) for name in names)

    # Workers: no script, since their keys lie in slots of their own; each command may be repeated

    def announce(self, worker_id: str, facts: Mapping[str, Any], ttl: float) -> Flow[None]:
        """Say that a worker is there, and what it does; it counts as gone after `ttl` seconds."""
        name = worker_facts(self.prefix, units.job_id(worker_id)).encode()
        words = json.dumps(dict(facts)).encode()
        length = b"%d" % max(1, round(ttl * 1000))
        yield from self.session.command(name, b"SET", name, words, b"PX", length)
        # Each time: whoever found the facts lapsed has taken the id out.
        yield from self.session.command(self._workers, b"SADD", self._workers, worker_id.encode())

    def leave(self, worker_id: str) -> Flow[None]:
        """Say that a worker is gone."""
        name = worker_facts(self.prefix, units.job_id(worker_id)).encode()
        yield from self.session.command(name, b"UNLINK", name)
        yield from self.session.command(self._workers, b"SREM", self._workers, worker_id.encode())

    def workers(self) -> Flow[list[dict[str, Any]]]:
        """What each worker that is there says of itself, with its `id`; gone ones are forgotten."""
        found = []
        for member in sorted(
            (yield from self.session.command(self._workers, b"SMEMBERS", self._workers))
        ):
            name = worker_facts(self.prefix, records.text(member)).encode()
            words = yield from self.session.command(name, b"GET", name)
            if words is None:
                yield from self.session.command(self._workers, b"SREM", self._workers, member)
                continue
            facts = records.read_json(words)
            if isinstance(facts, dict):
                found.append({**facts, "id": records.text(member)})
        return found


def _fields(row: Any) -> dict[bytes, Any]:
    return records.table(row[4]) if len(row) > 4 else {}


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
