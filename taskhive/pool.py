"""The attempts in the hands of children: handed to slots, ended when they must be, reported when over.

One owner: everything here runs on the supervisor's loop. What a child sends is checked before it is
believed, and a child that breaks the rules is killed like one that passed its time.
"""

from __future__ import annotations

import asyncio
import math
import signal
import struct
from collections import deque
from typing import Any, Protocol

from taskhive import frames, linux, seating
from taskhive.blackbox import BlackBox, exit_verdict
from taskhive.brood import Brood
from taskhive.clock import Clock
from taskhive.deadlines import Deadlines
from taskhive.frames import Over
from taskhive.guard import Guard
from taskhive.intake import QUICK
from taskhive.ladder import Ladder
from taskhive.link import Frames, Receiver
from taskhive.logs import Log
from taskhive.outcomes import Costs, Ended, Finished, Outcome, Raised
from taskhive.sharing import Sharing
from taskhive.slot import MARGIN, Attempt, Event, Slot, State
from taskhive.spawner import Spawner
from taskhive.wire import BadFrame, Kind

ONE_PIECE = 16 * 1024
"""What is not longer than this is in a child's socket, and read from it, as a whole or not at all."""
SPARED = 2
"""How often a child may die under an attempt that it has not read yet, until that is charged."""
SILENT_WITHIN = 1.0
"""How long a child may live on after it closed its socket."""


class Host(Protocol):
    """Whoever the pool works for."""

    def ended(self, outcomes: list[Outcome]) -> None:
        """Attempts are over."""
        ...

    def asked(self, slot: Slot, number: int, verb: str, args: list[Any]) -> None:
        """A handler wants something of the server."""
        ...

    def printed(self, attempt: Attempt | None, lines: list[str]) -> None:
        """A child wrote lines."""
        ...

    def progressed(self, attempt: Attempt) -> None:
        """A handler said how far it is."""
        ...

    def explains(self, code: int) -> tuple[str, str] | None:
        """A better verdict, with its message, for an exit that nobody ordered."""
        ...


class Pool:
    """A number of slots, and what waits for one."""

    def __init__(
        self, size: int, clock: Clock, log: Log, host: Host, guard: Guard | None = None
    ) -> None:
        self.target = size
        """How many attempts may run, in weights; a heavier one runs when nothing else does."""
        self.quick: frozenset[str] = frozenset()
        """Queues whose attempts may use one slot above the target."""
        self.guard = guard
        self.backlog: deque[Attempt] = deque()
        self.batch: dict[str, int] = {}
        """How many attempts of a queue may wait in one child; 1 unless they are very short."""
        self._clock = clock
        self._log = log
        self._host = host
        self._brood = Brood(clock, log, self)
        self.slots = self._brood.slots
        self._deadlines = Deadlines(clock, guard, self)
        self._ladder = Ladder(clock)
        self._sharing = Sharing(self, log)
        self._runs = 0
        self._alone: Attempt | None = None

    # Children

    def use(self, spawner: Spawner) -> None:
        """Make new children by this one; those of an older one finish and leave."""
        self._brood.use(spawner)
        self._brood.grow(self.target)

    def aim(self, target: int, quick: frozenset[str]) -> bool:
        """From now on so many slots may be busy; what runs is not disturbed. Whether that is news."""
        if target == self.target and quick == self.quick:
            return False
        self.target, self.quick = target, quick
        self.may_start()
        return True

    def shrink(self) -> None:
        """Let children go that have not been needed for a while."""
        self._brood.shrink(self.target + bool(self.quick))

    def may_start(self) -> None:
        """There may be room for more children, and for what waits."""
        self._brood.grow(self.target)
        self.fill()

    def withdraw(self, slot: Slot) -> None:
        """Give a child nothing new; another one takes its place."""
        self._brood.retire(slot)
        self.may_start()

    def overstayed(self, slot: Slot) -> None:
        """A child that was let go is still there."""
        self.condemn(slot, "returned", "did not leave")

    def forked(self, number: int, pid: int, problem: str) -> None:
        """A fork was made, or not."""
        slot = self._brood.forked(number, pid, problem)
        if slot is None:
            return
        if slot.state is State.KILLING:
            slot.spawner.kill(pid)
        elif slot.state is not State.STARTING:
            # Its own word was faster than the zygote's.
            self._ready(slot)

    def lost_spawner(self, spawner: Spawner) -> None:
        """A zygote died: its children die with it."""
        if self._brood.spawner is spawner:
            self._brood.spawner = None
        gone = [slot for slot in self.slots.values() if slot.spawner is spawner]
        for slot in gone:
            slot.retire = True  # what the first of them had must not be given to the second
        for slot in gone:
            self.exited(slot.number, -int(signal.SIGKILL), 0.0, 0)

    # Attempts

    @property
    def busy(self) -> int:
        """How many attempts run."""
        return sum(len(slot.running()) for slot in self.slots.values())

    @property
    def load(self) -> float:
        """Slots in use, in weights; with what waits for one."""
        return self._load() + sum(
            one.options.weight / self.batch.get(one.queue, 1) for one in self.backlog
        )

    def _load(self) -> float:
        return sum(slot.load for slot in self.slots.values() if slot.runs)

    @property
    def is_reserved(self) -> bool:
        """Whether an attempt runs alone, or waits to."""
        return self._alone is not None or any(one.alone for one in self.backlog)

    @property
    def has_long(self) -> bool:
        """Whether something runs for so long that quick ones would wait for it.

        Then they move beside it, by one slot more. Beside each other they need none: to be more than the
        cores gains nothing.
        """
        before = self._clock.monotonic() - QUICK
        heads = (slot.runs[0] for slot in self.slots.values() if slot.runs)
        return any(one.started is not None and one.started <= before for one in heads)

    def beside(self, queue: str) -> int:
        """How many more very short attempts of a queue would go into the slots that it has."""
        batch = self.batch.get(queue, 1)
        if batch == 1:
            return 0
        waiting = sum(one.queue == queue for one in self.backlog)
        room = sum(
            max(0, batch - len(slot.runs))
            for slot in self.slots.values()
            if slot.state is State.BUSY and not slot.retire and slot.runs[0].queue == queue
        )
        return max(0, room - waiting)

    def lasts(self, queue: str, mean: float) -> float:
        """Seconds until the first child runs out of attempts of a queue, if they take so long each."""
        now = self._clock.monotonic()
        return min(
            (
                mean * len(slot.runs) - min(mean, now - (slot.runs[0].started or now))
                for slot in self.slots.values()
                if slot.runs and slot.runs[0].queue == queue
            ),
            default=0.0,
        )

    def add(self, attempts: list[Attempt]) -> None:
        """Take attempts in; they start as soon as a slot is there."""
        self.backlog.extend(attempts)
        self.fill()

    def fill(self) -> None:
        """Hand out what waits, in order; what goes to one child goes in one piece."""
        if not self.backlog:
            return
        parts: dict[Slot, list[bytes]] = {}
        load = self._load()
        missing = 0
        together: set[str] = set()
        kept: deque[Attempt] = deque()
        quick = self.quick if self.has_long else frozenset[str]()
        trusted = self._clock.boottime() + MARGIN
        lapsed: list[Attempt] = []
        while self.backlog:
            attempt = self.backlog.popleft()
            if attempt.strict and attempt.trusted_until <= trusted:
                lapsed.append(attempt)  # about to be given up: it must not look as if it had begun
                continue
            if self._alone is not None or (attempt.alone and load):
                kept.append(attempt)
                break
            # Behind one that must wait only the quick ones move: they have a slot of their own.
            admitted = seating.admits(attempt, load, self.target, quick)
            admitted = admitted and (not kept or attempt.queue in quick)
            slot = self._choose(attempt, admitted) if admitted or not kept else None
            if slot is None:
                kept.append(attempt)
                if admitted:
                    # There is room for it, and no child yet; it will have both.
                    if not self._sharing.may_share(attempt):
                        missing += 1
                    elif attempt.queue not in together:
                        together.add(attempt.queue)
                        missing += 1
                    load += attempt.options.weight
                if not quick:
                    break
                continue
            if not slot.runs or slot.shared_by is not None:
                load += attempt.options.weight
            parts.setdefault(slot, []).append(self._assign(slot, attempt))
        kept.extend(self.backlog)
        kept.extend(lapsed)
        self.backlog = kept
        for slot, pieces in parts.items():
            data = b"".join(pieces)
            first = slot.runs[-len(pieces)].number
            slot.last_piece = first if len(data) <= ONE_PIECE else math.inf
            slot.link.send(data)
        if missing:
            # Light ones are more than the target; there are no children for them yet.
            starting = sum(slot.state is State.STARTING for slot in self.slots.values())
            self._brood.grow(len(self._brood.living()) - starting + missing)

    def _choose(self, attempt: Attempt, admitted: bool) -> Slot | None:
        slots = self.slots.values()
        if self._sharing.may_share(attempt):
            return seating.shared(slots, attempt.queue) if admitted else None
        if attempt.options.isolation == "fresh":
            if not admitted:
                return None
            slot, worn = seating.unused(slots)
            if worn is not None:
                self._brood.retire(worn)
                self._brood.grow(self.target)
            return slot
        batch = 1 if attempt.alone else self.batch.get(attempt.queue, 1)
        return seating.pooled(slots, attempt, batch, admitted)

    def _assign(self, slot: Slot, attempt: Attempt) -> bytes:
        self._runs += 1
        attempt.number = self._runs
        if attempt.alone:
            self._alone = attempt
        is_sharing = self._sharing.may_share(attempt)
        if slot.state is State.IDLE:
            slot.on(Event.ASSIGNED)
            if is_sharing and slot.shared_by is None:
                slot.shared_by = attempt.queue
                self._brood.grow(self.target)
            slot.begins(attempt, self._clock.monotonic())
        elif is_sharing:
            slot.begins(attempt, self._clock.monotonic())
        slot.runs.append(attempt)
        if is_sharing or len(slot.runs) == 1:
            self._start(slot, attempt)
        return _run_frame(attempt, Kind.JOIN if is_sharing else Kind.RUN)

    def _start(self, slot: Slot, attempt: Attempt) -> None:
        """Its turn has come; its time runs from here."""
        self._deadlines.begin(slot, attempt)
        if attempt.verdict is not None:
            # Cancelled while it waited in the child's socket, from where nothing can be called back.
            self.condemn(slot, attempt.verdict, attempt.message)

    def tell(self, slot: Slot, data: bytes) -> None:
        """Send a frame to a child, if it is still there."""
        if slot.number in self.slots:
            slot.last_piece = math.inf
            slot.link.send(data)

    # Ends that we bring about

    def find(self, attempt: Attempt) -> Slot | None:
        """The child that has an attempt, running or waiting in its socket."""
        return next((slot for slot in self.slots.values() if attempt in slot.runs), None)

    def overdue(self, slot: Slot, attempt: Attempt, verdict: str, message: str) -> None:
        """An attempt has passed a limit."""
        if slot.shared_by is not None:
            self._sharing.overdue(slot, attempt, verdict, message)
        else:
            self.condemn(slot, verdict, message)

    def warn(self, slot: Slot, attempt: Attempt) -> None:
        """An attempt has passed its soft limit."""
        if slot.shared_by is not None:
            self.tell(slot, frames.interrupt(attempt.number, "soft"))
        else:
            slot.spawner.signal(slot.pid, linux.SOFT_SIGNAL)

    def drop(self, attempt: Attempt, verdict: str, message: str, grace: float = 0.0) -> None:
        """End one attempt wherever it is; the outcome follows, at once if it had not begun."""
        if attempt in self.backlog:
            self.backlog.remove(attempt)
            attempt.verdict, attempt.message = verdict, message
            self._host.ended([Ended(attempt, BlackBox(verdict))])
            return
        slot = self.find(attempt)
        if slot is None:
            return
        self._sync(slot)
        if attempt not in slot.runs:
            return
        if slot.shared_by is not None:
            self._drop_shared(slot, attempt, verdict, message, grace)
        elif attempt.verdict is not None:
            return
        elif slot.head is attempt:
            self.condemn(slot, verdict, message, grace)
        else:
            attempt.verdict, attempt.message = verdict, message
            if verdict != "cancelled":
                # It may not even begin, and what is in its child's socket cannot be called back.
                self.condemn(slot, "returned", "gave way to one that lost its lease")

    def _drop_shared(
        self, slot: Slot, attempt: Attempt, verdict: str, message: str, grace: float
    ) -> None:
        if verdict == "cancelled":
            if attempt.verdict is None:
                self._sharing.cancel(slot, attempt, message, grace)
            return
        # Not even one that has passed its time may wait for the others: its job is somebody else's.
        attempt.verdict, attempt.message = verdict, message
        self.condemn(slot, "returned", "another one in its child lost its lease")

    def condemn(self, slot: Slot, verdict: str, message: str, grace: float = 0.0) -> None:
        """Kill a child, for what the attempt did that has it, or for nothing that one of several did."""
        if not slot.is_alive:
            return
        head = slot.head
        if slot.shared_by is None:
            if head is not None:
                head.verdict, head.message = verdict, message
        elif head is not None and verdict == "protocol":
            if len(slot.runs) > 1:
                self._sharing.suspect(slot)
            elif head.verdict is None:
                head.verdict, head.message = verdict, message
        slot.on(Event.CONDEMNED)
        if slot.pid == 0:
            return  # killed as soon as its number is known
        if head is None or verdict in ("lease lost", "returned"):
            self._ladder.kill(slot)
        else:
            self._ladder.descend(slot, grace)

    # What children report

    def ear(self, slot: Slot) -> Receiver:
        """What listens to a new child."""
        return _Ear(self, slot)

    def received(self, slot: Slot, came: Frames) -> None:
        """Frames of a child, in order; BadFrame for one that it has no business to send."""
        outcomes: list[Outcome] = []
        try:
            for kind, body in came:
                if kind is Kind.FINISHED or kind is Kind.RAISED:
                    outcome = self._over(slot, kind, body)
                    if outcome is not None:
                        outcomes.append(outcome)
                else:
                    self._heard(slot, kind, body)
        except (ValueError, TypeError, KeyError, IndexError, struct.error) as error:
            raise BadFrame(f"{type(error).__name__}: {error}") from error
        finally:
            if outcomes:
                self._host.ended(outcomes)
        self.fill()

    def _heard(self, slot: Slot, kind: Kind, body: bytes) -> None:
        match kind:
            case Kind.READY:
                if slot.state is State.STARTING:
                    self._brood.started()
                    slot.on(Event.READY)
                    slot.idle_since = self._clock.monotonic()
                    self._ready(slot)
            case Kind.OUTPUT:
                number, line = frames.read_output(body)
                self.printed(slot.find(number), [line])
            case Kind.PROGRESS:
                number, value = frames.read_progress(body)
                attempt = slot.find(number)
                if attempt is not None:
                    attempt.progress, attempt.has_news = value, True
                    self._host.progressed(attempt)
            case Kind.ASK:
                self._host.asked(slot, *frames.read_question(body))
            case Kind.PONG:
                self._sharing.answered(slot, frames.read_pong(body))
            case _:
                raise BadFrame(f"a child sent {kind.name}")

    def printed(self, attempt: Attempt | None, lines: list[str]) -> None:
        """Lines of an attempt, or of nobody that is known."""
        if attempt is not None:
            attempt.output.extend(lines)
        self._host.printed(attempt, lines)

    def _over(self, slot: Slot, kind: Kind, body: bytes) -> Outcome | None:
        over = frames.read_over(body)
        if slot.shared_by is None and over.number <= slot.ended:
            return None  # it was seen in the outbox before it was sent
        attempt = slot.find(over.number)
        if attempt is None:
            raise BadFrame("the end of an attempt that does not run")
        slot.ended = over.number
        slot.spent += over.cpu
        outcome = self._outcome(slot, attempt, kind, over)
        if slot.shared_by is not None:
            slot.begins(attempt, self._clock.monotonic())
        slot.runs.remove(attempt)
        if slot.state is State.KILLING:
            if slot.shared_by is None and slot.victim is None:
                # It came just too late: it is being killed, and that is its outcome.
                slot.victim = attempt
                return None
            return outcome
        slot.done += 1
        self._sharing.cleared(attempt)
        if self._alone is attempt:
            self._alone = None
        if self._is_worn(slot, attempt, over):
            slot.retire = True
        if not slot.runs:
            slot.on(Event.EMPTIED)
            slot.rests(self._clock.monotonic())
            if slot.retire:
                self._brood.leave(slot)
                self._brood.grow(self.target)
        elif slot.shared_by is not None:
            self._sharing.left(slot)
        else:
            self._start(slot, slot.runs[0])
        return outcome

    def _outcome(self, slot: Slot, attempt: Attempt, kind: Kind, over: Over) -> Outcome:
        # The zygote's part is nobody's.
        base = self.guard.base(slot.number) if self.guard is not None else 0
        costs = Costs(over.wall, over.cpu, max(0, over.peak_memory - base))
        if slot.shared_by is not None and attempt.verdict is not None:
            # It ended after all; but it had passed its time, or somebody had cancelled it.
            box = BlackBox(attempt.verdict, wall=over.wall, cpu=over.cpu, progress=attempt.progress)
            box.output = list(attempt.output)
            return Ended(attempt, box)
        if kind is Kind.FINISHED:
            return Finished(attempt, over.rest, costs)
        word, after, at, record = frames.read_raised(over.rest)
        return Raised(attempt, word, record, after, at, costs)

    def _is_worn(self, slot: Slot, attempt: Attempt, over: Over) -> bool:
        """Whether a child has done enough, or has grown too large, or is not what it was."""
        options: Any = attempt.options
        worn = over.spent or options.isolation == "fresh"
        if options.max_jobs_per_child is not None:
            worn = worn or slot.done >= options.max_jobs_per_child
        if self.guard is not None:
            self.guard.over(slot.number)
            if options.max_memory_per_child is not None:
                worn = worn or self.guard.growth(slot.number, slot.pid) > options.max_memory_per_child
        return worn

    def sync(self) -> None:
        """See which of the very short attempts are over, though their children are busy."""
        for slot in list(self.slots.values()):
            if len(slot.runs) > 1:
                self._sync(slot)

    def _sync(self, slot: Slot) -> None:
        """Take in the ends that a child has told and not sent.

        While it lives, ends that it sent before may still be on their way. Those come first: what is
        found counts only from the attempt on that runs as far as we know.
        """
        if slot.shared_by is not None or not slot.runs:
            return
        if slot.state not in (State.BUSY, State.KILLING):
            return
        try:
            unsent = slot.link.unsent()
            news = [one for one in unsent if frames.read_over(one[1]).number > slot.ended]
            if news and frames.read_over(news[0][1]).number == slot.runs[0].number:
                self.received(slot, news)
        except (BadFrame, struct.error) as error:
            self.broken(slot, f"left what is no frame: {error}")

    def broken(self, slot: Slot, why: str) -> None:
        """A child sent what is no frame, or closed its socket and perhaps lives on."""
        if why != "closed its socket":
            self.condemn(slot, "protocol", why)
        elif slot.is_alive and not (slot.retire and not slot.runs):
            loop = asyncio.get_running_loop()
            loop.call_later(SILENT_WITHIN, self.condemn, slot, "protocol", why)

    def exited(self, number: int, code: int, cpu: float, peak: int, let_go: bool = False) -> None:
        """A child is dead and reaped; `let_go`: only because we were silent for too long."""
        slot = self.slots.get(number)
        if slot is None:
            return
        slot.retire = True  # its last words may be an end: it is not free for all that
        slot.link.drain()
        self._sync(slot)
        was_starting, was_condemned = slot.state is State.STARTING, slot.state is State.KILLING
        slot.on(Event.EXITED)
        outcomes: list[Outcome] = []
        if slot.shared_by is not None and len(slot.runs) > 1:
            if not was_condemned and not let_go:
                verdict = exit_verdict(code)[0]
                self._log.event("child.crashed", "error", verdict=verdict, jobs=len(slot.runs))
                self._sharing.suspect(slot)
            for attempt in slot.runs:
                attempt.verdict = attempt.verdict or "returned"
                outcomes.append(self._autopsy(slot, attempt, code, cpu, peak))
            slot.runs.clear()
        head = slot.victim or slot.head
        if head is not None:
            if self._alone is head:
                self._alone = None
            if (let_go or (slot.shared_by is not None and was_condemned)) and head.verdict is None:
                # If its lease is still ours it goes back uncharged; if not, the fence says so.
                head.verdict = "returned"
            if self._was_unread(slot, head):
                head.spared += 1
                head.started = head.deadline = head.soft_at = None
            else:
                if head is not slot.victim:
                    slot.runs.popleft()
                outcomes.append(self._autopsy(slot, head, code, cpu, peak))
        # What waited behind it was never begun: it goes to another child, and nobody is charged.
        for attempt in reversed(slot.runs):
            if attempt.verdict is None and not self._brood.is_closed:
                self.backlog.appendleft(attempt)
            else:
                outcomes.append(Ended(attempt, BlackBox(attempt.verdict or "returned")))
        self._remove(slot)
        if was_starting:
            self._brood.failed_start(f"it ended with {exit_verdict(code)[0]} before it was ready")
        if outcomes:
            self._host.ended(outcomes)
        self.may_start()

    @staticmethod
    def _was_unread(slot: Slot, head: Attempt) -> bool:
        """Whether a child died of something else before it took up what it was given last.

        The attempt before has told its end and then broken its child, say: that is not to be charged
        to the next one. If anything was left unread it was the piece that was sent last; of those
        before nobody knows. And not for ever: what kills every child it is sent to has something to
        do with it after all.
        """
        return (
            head.verdict is None
            and head.number >= slot.last_piece
            and head.spared < SPARED
            and slot.link.left_unread()
        )

    def _autopsy(self, slot: Slot, head: Attempt, code: int, cpu: float, peak: int) -> Ended:
        wall = self._clock.monotonic() - (head.started or self._clock.monotonic())
        # The kernel tells of the child's whole life; what it did before is told already.
        cpu = max(0.0, cpu - slot.spent)
        verdict, name = exit_verdict(code)
        if head.verdict is None and (known := self._host.explains(code)) is not None:
            verdict, head.message = known
        if self.guard is not None:
            # Of the whole tree, if that was watched.
            peak = max(self.guard.peak(slot.number), peak - self.guard.base(slot.number), 0)
            # Those below that were killed with it, nobody has reaped: their time is known from here.
            cpu = max(cpu, self.guard.cpu(slot.number))
        box = BlackBox(
            head.verdict or verdict,
            name,
            code if code >= 0 else None,
            slot.link.stack(),
            wall,
            cpu,
            peak,
            head.progress,
            list(head.output),
        )
        return Ended(head, box)

    def _ready(self, slot: Slot) -> None:
        """Both the child and the zygote have told of it: what it has now is the zygote's."""
        if self.guard is not None and slot.pid:
            self.guard.ready(slot.number, slot.pid)
            if slot.head is not None:
                self._deadlines.guard(slot, slot.head)

    def _remove(self, slot: Slot) -> None:
        if self.guard is not None:
            self.guard.gone(slot.number)
        self._brood.remove(slot)

    # The end

    def drain(self) -> None:
        """Start nothing more; what has not begun is given back."""
        self._brood.is_closed = True
        waiting, self.backlog = self.backlog, deque()
        if waiting:
            self._host.ended([Ended(attempt, BlackBox("returned")) for attempt in waiting])

    def give_back(self) -> None:
        """The grace is over: end what still runs, charged to nobody."""
        for slot in list(self.slots.values()):
            if slot.runs:
                self.condemn(slot, "returned", "the worker stops")

    def close(self) -> None:
        """Let go of everything; the zygotes kill what is left."""
        self._deadlines.close()
        self._brood.close()


def _run_frame(attempt: Attempt, kind: Kind) -> bytes:
    job = attempt.job
    fence = job.token.partition(".")[0]
    return frames.run(
        attempt.number,
        attempt.queue,
        job.id,
        int(fence) if fence.isdigit() else 0,
        job.attempts + 1,
        job.counts if job.fields else frames.NO_COUNTS,
        frames.failed_job(job.fields) if job.fields else None,
        job.payload,
        kind,
    )


class _Ear:
    """Listens to one child for the pool."""

    __slots__ = ("_pool", "_slot")

    def __init__(self, pool: Pool, slot: Slot) -> None:
        self._pool = pool
        self._slot = slot

    def received(self, came: Frames) -> None:
        self._pool.received(self._slot, came)

    def printed(self, lines: list[str]) -> None:
        running = self._slot.running()
        self._pool.printed(running[0] if len(running) == 1 else None, lines)

    def broken(self, why: str) -> None:
        self._pool.broken(self._slot, why)
