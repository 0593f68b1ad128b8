"""The children of a worker: hands attempts to slots, watches their limits, reports how they end.

One owner: everything here runs on the supervisor's loop. What a child sends is checked before it is
believed, and a child that breaks the rules is killed like one that passed its time.
"""

from __future__ import annotations

import asyncio
import math
import signal
import struct
from collections import deque
from typing import Any, Protocol, assert_never

from taskhive import frames, linux
from taskhive.blackbox import BlackBox, exit_verdict
from taskhive.clock import Clock
from taskhive.guard import Guard
from taskhive.limits import SHORTEST, Budget, Confirm, Judgement, LookAgain, Passed
from taskhive.link import Frames
from taskhive.logs import Log
from taskhive.outcomes import Costs, Ended, Finished, Outcome, Raised
from taskhive.slot import Attempt, Event, Slot, State
from taskhive.spawner import Spawner
from taskhive.wire import BadFrame, Kind

STACK_WITHIN = 0.25
"""How long a condemned child may take to write down where it is. It takes a fraction of a millisecond,
but on a machine that is full it waits for a core first."""
LEAVE_WITHIN = 5.0
"""How long a retired child may take to end by itself."""
ONE_PIECE = 16 * 1024
"""What is not longer than this is in a child's socket, and read from it, as a whole or not at all."""
SPARED = 2
"""How often a child may die under an attempt that it has not read yet, until that is charged."""
SILENT_WITHIN = 1.0
"""How long a child may live on after it closed its socket."""
SPARE_FOR = 10.0
"""How long a child that is not needed stays, in case it is again."""
MOST_CHILDREN = 1024
_HAIR = 1e-9
"""Weights are fractions, and their sums are a little off."""


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
        """How many slots may be busy, in weights; a heavier attempt runs when nothing else does."""
        self.quick: frozenset[str] = frozenset()
        """Queues whose attempts may use one slot above the target."""
        self.guard = guard
        self.backlog: deque[Attempt] = deque()
        self.slots: dict[int, Slot] = {}
        self.batch: dict[str, int] = {}
        """How many attempts of a queue may wait in one child; 1 unless they are very short."""
        self._clock = clock
        self._log = log
        self._host = host
        self._spawner: Spawner | None = None
        self._numbers = 0
        self._runs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._alone: Attempt | None = None
        self._failed_starts = 0
        self._rests_until = 0.0
        self._is_draining = False

    # Children

    def use(self, spawner: Spawner) -> None:
        """Make new children by this one; those of an older one finish and leave."""
        self._spawner = spawner
        for slot in list(self.slots.values()):
            if slot.spawner is not spawner:
                self._retire(slot)
        self.grow()

    def grow(self) -> None:
        """Start children until there is one for each slot that may be busy."""
        self._grow_to(self.target)

    def _grow_to(self, size: int) -> None:
        if self._spawner is None or self._is_draining or self._clock.monotonic() < self._rests_until:
            return
        living = sum(slot.is_alive and not slot.retire for slot in self.slots.values())
        for _ in range(min(size, MOST_CHILDREN) - living):
            self._fork(self._spawner)

    def aim(self, target: int, quick: frozenset[str]) -> bool:
        """From now on so many slots may be busy; what runs is not disturbed. Whether that is news."""
        if target == self.target and quick == self.quick:
            return False
        self.target, self.quick = target, quick
        self._regrow()
        return True

    def shrink(self) -> None:
        """Let children go that have not been needed for a while."""
        now = self._clock.monotonic()
        living = [slot for slot in self.slots.values() if slot.is_alive and not slot.retire]
        spare = len(living) - self.target - bool(self.quick)
        for slot in living:
            if spare <= 0:
                return
            if slot.state is State.IDLE and now - slot.idle_since > SPARE_FOR:
                self._retire(slot)
                spare -= 1

    def _fork(self, spawner: Spawner) -> None:
        self._numbers += 1
        try:
            link = spawner.fork(self._numbers)
        except OSError as error:
            self._failed_start(f"it could not be ordered: {error}")
            return
        slot = Slot(self._numbers, spawner, link)
        self.slots[slot.number] = slot
        link.listen(_Ear(self, slot))

    def forked(self, number: int, pid: int, problem: str) -> None:
        """A fork was made, or not."""
        slot = self.slots.get(number)
        if slot is None:
            return
        if pid == 0:
            slot.on(Event.EXITED)
            self._remove(slot)
            self._failed_start(problem)
            return
        slot.pid = pid
        if slot.state is State.KILLING:
            slot.spawner.kill(pid)
        elif slot.state is not State.STARTING:
            # Its own word was faster than the zygote's.
            self._ready(slot)

    def _failed_start(self, why: str) -> None:
        """Slower and slower: a child that cannot start will not start better at once."""
        self._failed_starts += 1
        delay = min(30.0, 0.1 * 2.0 ** min(self._failed_starts, 9))
        self._log.event("child.not_started", "error", why=why, times=self._failed_starts)
        self._rests_until = self._clock.monotonic() + delay
        # A little later than that: clocks are read twice.
        asyncio.get_running_loop().call_later(delay + 0.001, self._regrow)

    def _regrow(self) -> None:
        self.grow()
        self.fill()

    def lost_spawner(self, spawner: Spawner) -> None:
        """A zygote died: its children die with it."""
        if self._spawner is spawner:
            self._spawner = None
        gone = [slot for slot in self.slots.values() if slot.spawner is spawner]
        for slot in gone:
            slot.retire = True  # what the first of them had must not be given to the second
        for slot in gone:
            self.exited(slot.number, -int(signal.SIGKILL), 0.0, 0)

    def _retire(self, slot: Slot) -> None:
        """Let a child end by itself after what it has; nothing new for it."""
        if slot.retire or not slot.is_alive:
            return
        slot.retire = True
        if not slot.runs:
            self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        slot.link.shut()
        asyncio.get_running_loop().call_later(
            LEAVE_WITHIN, self.condemn, slot, "returned", "did not leave"
        )

    # Attempts

    @property
    def busy(self) -> int:
        """How many slots have something to do."""
        return sum(bool(slot.runs) for slot in self.slots.values())

    @property
    def load(self) -> float:
        """Slots in use, in weights; with what waits for one."""
        return self._load() + sum(
            one.options.weight / self.batch.get(one.queue, 1) for one in self.backlog
        )

    def _load(self) -> float:
        return sum(slot.weight for slot in self.slots.values() if slot.runs)

    @property
    def is_reserved(self) -> bool:
        """Whether an attempt runs alone, or waits to."""
        return self._alone is not None or any(one.alone for one in self.backlog)

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
        kept: deque[Attempt] = deque()
        while self.backlog:
            attempt = self.backlog.popleft()
            if self._alone is not None or (attempt.alone and load):
                kept.append(attempt)
                break
            # Behind one that must wait only the quick ones move: they have a slot of their own.
            admitted = self._admits(attempt, load) and (not kept or attempt.queue in self.quick)
            slot = self._choose(attempt, admitted) if admitted or not kept else None
            if slot is None:
                kept.append(attempt)
                if admitted:
                    # There is room for it, and no child yet; it will have both.
                    missing += 1
                    load += attempt.options.weight
                if not self.quick:
                    break
                continue
            if not slot.runs:
                load += attempt.options.weight
            parts.setdefault(slot, []).append(self._assign(slot, attempt))
        kept.extend(self.backlog)
        self.backlog = kept
        for slot, pieces in parts.items():
            data = b"".join(pieces)
            first = slot.runs[-len(pieces)].number
            slot.last_piece = first if len(data) <= ONE_PIECE else math.inf
            slot.link.send(data)
        if missing:
            # Light ones are more than the target; there are no children for them yet.
            starting = sum(slot.state is State.STARTING for slot in self.slots.values())
            living = sum(slot.is_alive and not slot.retire for slot in self.slots.values())
            self._grow_to(living - starting + missing)

    def _admits(self, attempt: Attempt, load: float) -> bool:
        """Whether one more slot may be busy, with this."""
        weight = attempt.options.weight
        limit = self.target + (attempt.queue in self.quick and weight <= 1)
        return load + weight <= limit + _HAIR or load <= 0

    def _choose(self, attempt: Attempt, admitted: bool) -> Slot | None:
        """An idle slot; of a very short job also the busy one with the fewest like it."""
        if attempt.options.isolation == "fresh":
            return self._choose_fresh() if admitted else None
        batch = 1 if attempt.alone else self.batch.get(attempt.queue, 1)
        best, least = None, batch
        for slot in self.slots.values():
            if slot.retire:
                continue
            if slot.state is State.IDLE:
                if admitted:
                    return slot
                continue
            if batch > 1 and slot.state is State.BUSY and slot.runs[0].queue == attempt.queue:
                waiting = len(slot.runs)
                if waiting < least:
                    best, least = slot, waiting
        return best

    def _choose_fresh(self) -> Slot | None:
        idle = [s for s in self.slots.values() if s.state is State.IDLE and not s.retire]
        for slot in idle:
            if not slot.done:
                return slot
        if idle and all(s.state is not State.STARTING for s in self.slots.values()):
            self._retire(idle[0])
            self.grow()
        return None

    def _assign(self, slot: Slot, attempt: Attempt) -> bytes:
        self._runs += 1
        attempt.number = self._runs
        if attempt.alone:
            self._alone = attempt
        if slot.state is State.IDLE:
            slot.on(Event.ASSIGNED)
            slot.begins(attempt, self._clock.monotonic())
        slot.runs.append(attempt)
        if len(slot.runs) == 1:
            self._start(slot, attempt)
        return _run_frame(attempt)

    def _start(self, slot: Slot, attempt: Attempt) -> None:
        """Its turn has come; its time runs from here."""
        now = self._clock.monotonic()
        attempt.started = now
        timeout: Any = attempt.options.timeout
        soft: Any = attempt.options.soft_timeout
        if timeout is not None:
            attempt.deadline = now + timeout
            self._watch(attempt.deadline)
        if soft is not None:
            attempt.soft_at = now + soft
            self._watch(attempt.soft_at)
        self._guard(slot, attempt, now)
        if attempt.verdict is not None:
            # Cancelled while it waited in the child's socket, from where nothing can be called back.
            self.condemn(slot, attempt.verdict, attempt.message)

    def tell(self, slot: Slot, data: bytes) -> None:
        """Send a frame to a child, if it is still there."""
        if slot.number in self.slots:
            slot.last_piece = math.inf
            slot.link.send(data)

    # Limits

    def _guard(self, slot: Slot, attempt: Attempt, now: float) -> None:
        """Hold the tree of its child against its budget from now on."""
        slot.look_at = None
        options: Any = attempt.options
        if (
            self.guard is None
            or not slot.pid
            or (options.memory is None and options.cpu_timeout is None)
        ):
            return
        budget = Budget(options.memory, options.cpu_timeout)
        after = self.guard.began(slot.number, slot.pid, budget)
        if after is not None:
            slot.look_at = now + after
            self._watch(slot.look_at)

    def _measure(self, slot: Slot, now: float) -> None:
        assert self.guard is not None
        said = self.guard.look(slot.number, slot.pid, now)
        if isinstance(said, Confirm):
            # Meanwhile it is looked at as before: one process over the limit needs no confirmation.
            slot.look_at = now + 10 * SHORTEST
            asyncio.get_running_loop().create_task(self._confirm(slot, slot.head))
        else:
            self._judged(slot, said, now)

    async def _confirm(self, slot: Slot, attempt: Attempt | None) -> None:
        """Count page by page, in a thread: of a large tree that takes tenths of a second."""
        assert self.guard is not None
        loop = asyncio.get_running_loop()
        shares = await loop.run_in_executor(None, self.guard.shares, slot.pid)
        if slot.head is attempt and slot.state is State.BUSY:
            now = self._clock.monotonic()
            # With the zygote, everybody below it has its pages too.
            said = self.guard.confirmed(slot.number, slot.pid, shares, now, len(self.slots))
            self._judged(slot, said, now)

    def _judged(self, slot: Slot, said: Judgement | None, now: float) -> None:
        match said:
            case None | Confirm():
                slot.look_at = None
            case LookAgain(after):
                slot.look_at = now + after
                self._watch(slot.look_at)
            case Passed(verdict, message):
                self.condemn(slot, verdict, message)
            case _:
                assert_never(said)

    def _watch(self, moment: float) -> None:
        if moment < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = moment
            self._timer = asyncio.get_running_loop().call_at(moment, self._look)

    def _look(self) -> None:
        """Whose time has passed? Then look again when the next one's will."""
        self._timer, self._timer_at = None, float("inf")
        self.sync()
        now = self._clock.monotonic()
        for slot in list(self.slots.values()):
            head = slot.head
            if head is None or slot.state is not State.BUSY:
                continue
            if head.deadline is not None and now >= head.deadline:
                timeout: Any = head.options.timeout
                self.condemn(slot, "timeout", f"ran longer than its {timeout:g} s")
                continue
            if head.soft_at is not None and now >= head.soft_at:
                head.soft_at = None
                slot.spawner.signal(slot.pid, linux.SOFT_SIGNAL)
            if slot.look_at is not None and now >= slot.look_at:
                self._measure(slot, now)
            for moment in (head.deadline, head.soft_at, slot.look_at):
                if moment is not None:
                    self._watch(moment)

    # Ends that we bring about

    def find(self, attempt: Attempt) -> Slot | None:
        """The child that has an attempt, running or waiting in its socket."""
        return next((slot for slot in self.slots.values() if attempt in slot.runs), None)

    def drop(self, attempt: Attempt, verdict: str, message: str, grace: float = 0.0) -> None:
        """End one attempt wherever it is; the outcome follows, at once if it had not begun."""
        if attempt in self.backlog:
            self.backlog.remove(attempt)
            attempt.verdict, attempt.message = verdict, message
            self._host.ended([Ended(attempt, BlackBox(verdict))])
            return
        slot = self.find(attempt)
        if slot is None or attempt.verdict is not None:
            return
        self._sync(slot)
        if attempt not in slot.runs:
            return
        if slot.head is attempt:
            self.condemn(slot, verdict, message, grace)
            return
        attempt.verdict, attempt.message = verdict, message
        if verdict != "cancelled":
            # It may not even begin, and what is in its child's socket cannot be called back.
            self.condemn(slot, "returned", "gave way to one that lost its lease")

    def condemn(self, slot: Slot, verdict: str, message: str, grace: float = 0.0) -> None:
        """Kill a child: its stack first, then SIGTERM if a grace was asked, then the whole tree."""
        if not slot.is_alive:
            return
        head = slot.head
        if head is not None:
            head.verdict, head.message = verdict, message
        slot.on(Event.CONDEMNED)
        if slot.pid == 0:
            return  # killed as soon as its number is known
        if head is None or verdict in ("lease lost", "returned"):
            slot.spawner.kill(slot.pid)
            return
        slot.spawner.signal(slot.pid, linux.STACK_SIGNAL)
        self._await_stack(slot, self._clock.monotonic() + STACK_WITHIN, -1, grace)

    def _await_stack(self, slot: Slot, deadline: float, size: int, grace: float) -> None:
        """Until the stack is written whole, by two looks at the same size, or it takes too long."""
        if slot.state is not State.KILLING:
            return
        loop = asyncio.get_running_loop()
        written = slot.link.stack_size()
        if not ((written and written == size) or self._clock.monotonic() >= deadline):
            loop.call_later(0.001, self._await_stack, slot, deadline, written, grace)
        elif grace > 0:
            slot.spawner.signal(slot.pid, signal.SIGTERM, True)
            loop.call_later(grace, self._kill, slot)
        else:
            slot.spawner.kill(slot.pid)

    def _kill(self, slot: Slot) -> None:
        if slot.state is State.KILLING:
            slot.spawner.kill(slot.pid)

    # What children report

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
                    self._failed_starts = 0
                    slot.on(Event.READY)
                    slot.idle_since = self._clock.monotonic()
                    self._ready(slot)
            case Kind.OUTPUT:
                number, line = frames.read_output(body)
                head = slot.head
                self._print(head if head is not None and head.number == number else None, [line])
            case Kind.PROGRESS:
                number, value = frames.read_progress(body)
                head = slot.head
                if head is not None and head.number == number:
                    head.progress, head.has_news = value, True
                    self._host.progressed(head)
            case Kind.ASK:
                self._host.asked(slot, *frames.read_question(body))
            case _:
                raise BadFrame(f"a child sent {kind.name}")

    def _print(self, attempt: Attempt | None, lines: list[str]) -> None:
        if attempt is not None:
            attempt.output.extend(lines)
        self._host.printed(attempt, lines)

    def _over(self, slot: Slot, kind: Kind, body: bytes) -> Outcome | None:
        head = slot.head
        over = frames.read_over(body)
        if over.number <= slot.ended:
            return None  # it was seen in the outbox before it was sent
        if head is None or head.number != over.number:
            raise BadFrame("the end of an attempt that does not run")
        slot.ended = over.number
        slot.spent += over.cpu
        # The zygote's part is nobody's.
        base = self.guard.base(slot.number) if self.guard is not None else 0
        costs = Costs(over.wall, over.cpu, max(0, over.peak_memory - base))
        outcome: Outcome
        if kind is Kind.FINISHED:
            outcome = Finished(head, over.rest, costs)
        else:
            word, after, at, record = frames.read_raised(over.rest)
            outcome = Raised(head, word, record, after, at, costs)
        slot.runs.popleft()
        if slot.state is State.KILLING:
            if slot.victim is None:
                slot.victim = head  # it came just too late: it is being killed, and that is its outcome
                return None
            return outcome
        slot.done += 1
        if self._alone is head:
            self._alone = None
        limit = head.options.max_jobs_per_child
        if over.spent or head.options.isolation == "fresh" or (limit is not None and slot.done >= limit):
            slot.retire = True
        if self.guard is not None:
            self.guard.over(slot.number)
            heaviest = head.options.max_memory_per_child
            if heaviest is not None and self.guard.growth(slot.number, slot.pid) > heaviest:  # type: ignore[operator]
                slot.retire = True
        if slot.runs:
            self._start(slot, slot.runs[0])
        else:
            slot.on(Event.EMPTIED)
            slot.rests(self._clock.monotonic())
            if slot.retire:
                self._leave(slot)
                self.grow()
        return outcome

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
        if not slot.runs or slot.state not in (State.BUSY, State.KILLING):
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
        was_starting = slot.state is State.STARTING
        slot.on(Event.EXITED)
        outcomes: list[Outcome] = []
        head = slot.victim or slot.head
        if head is not None:
            if self._alone is head:
                self._alone = None
            if let_go and head.verdict is None:
                # If its lease is still ours it goes back uncharged; if not, the fence says so.
                head.verdict, head.message = "returned", "its worker was frozen"
            if self._was_unread(slot, head):
                head.spared += 1
                head.started = head.deadline = head.soft_at = None
            else:
                if head is not slot.victim:
                    slot.runs.popleft()
                outcomes.append(self._autopsy(slot, head, code, cpu, peak))
        # What waited behind it was never begun: it goes to another child, and nobody is charged.
        for attempt in reversed(slot.runs):
            if attempt.verdict is None and not self._is_draining:
                self.backlog.appendleft(attempt)
            else:
                outcomes.append(Ended(attempt, BlackBox(attempt.verdict or "returned")))
        self._remove(slot)
        if was_starting:
            self._failed_start(f"it ended with {exit_verdict(code)[0]} before it was ready")
        if outcomes:
            self._host.ended(outcomes)
        self._regrow()

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
                self._guard(slot, slot.head, self._clock.monotonic())

    def _remove(self, slot: Slot) -> None:
        if self.guard is not None:
            self.guard.gone(slot.number)
        del self.slots[slot.number]
        slot.link.close()

    # The end

    def drain(self) -> None:
        """Start nothing more; what has not begun is given back."""
        self._is_draining = True
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
        if self._timer is not None:
            self._timer.cancel()
        for slot in self.slots.values():
            slot.link.close()
        self.slots.clear()


def _run_frame(attempt: Attempt) -> bytes:
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
        self._pool._print(self._slot.head, lines)

    def broken(self, why: str) -> None:
        self._pool.broken(self._slot, why)
