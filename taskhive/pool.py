"""The children of a worker: hands attempts to slots, watches their limits, reports how they end.

One owner: everything here runs on the supervisor's loop. What a child sends is checked before it is
believed, and a child that breaks the rules is killed like one that passed its time.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from taskhive import linux
from taskhive.blackbox import BlackBox, exit_verdict, read_stack
from taskhive.child import FINISHED
from taskhive.logs import Log
from taskhive.outcomes import Costs, Ended, Finished, Outcome, Raised
from taskhive.slot import Attempt, Event, Slot, State
from taskhive.spawner import Zygote
from taskhive.wire import BadFrame, Kind, Reader, json_frame, read_json

STACK_WITHIN = 0.02
"""How long a condemned child may take to write down where it is."""
LEAVE_WITHIN = 5.0
"""How long a retired child may take to end by itself."""
SHORT = 0.001
BATCH_SECONDS = 0.010
MAX_BATCH = 64


class Pool:
    """A number of slots, and what waits for one."""

    def __init__(
        self,
        size: int,
        log: Log,
        ended: Callable[[Outcome], None],
        asked: Callable[[Slot, int, str, list[Any]], None],
        output: Callable[[Attempt | None, str], None],
    ) -> None:
        self.size = size
        self.backlog: deque[Attempt] = deque()
        self.slots: dict[int, Slot] = {}
        self._log = log
        self._ended = ended
        self._asked = asked
        self._output = output
        self._zygote: Zygote | None = None
        self._wires: dict[int, _Wire] = {}
        self._zygotes: dict[int, Zygote] = {}
        self._numbers = 0
        self._runs = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._alone: Attempt | None = None
        self._failed_starts = 0
        self.batch: dict[str, int] = {}
        """How many attempts of a queue may wait in one child; 1 unless they are very short."""

    # Slots

    def use(self, zygote: Zygote) -> None:
        """Make new children by this zygote; those of an older one finish and leave."""
        self._zygote = zygote
        for slot in list(self.slots.values()):
            if self._zygotes.get(slot.number) is not zygote:
                self._retire(slot)
        self.grow()

    def grow(self) -> None:
        """Start children until there are as many as wanted."""
        if self._zygote is None:
            return
        living = sum(slot.state is not State.KILLING and not slot.retire for slot in self.slots.values())
        for _ in range(self.size - living):
            self._fork()

    def _fork(self) -> None:
        assert self._zygote is not None
        self._numbers += 1
        try:
            sock, output, memory = self._zygote.fork(self._numbers)
        except OSError as error:
            self._log.event("child.not_started", "error", why=error)
            return
        slot = Slot(self._numbers, memory)
        self.slots[slot.number] = slot
        self._zygotes[slot.number] = self._zygote
        self._wires[slot.number] = _Wire(self, slot, sock, output)

    def forked(self, number: int, pid: int, problem: str) -> None:
        """A fork was made, or not."""
        slot = self.slots.get(number)
        if slot is None:
            return
        if pid == 0:
            self._log.event("child.not_started", "error", why=problem)
            slot.on(Event.EXITED)
            self._remove(slot)
            return
        slot.pid = pid
        if slot.state is State.KILLING:
            self._zygotes[number].kill(pid)

    def lost_zygote(self, zygote: Zygote) -> None:
        """A zygote died: its children die with it."""
        for slot in list(self.slots.values()):
            if self._zygotes.get(slot.number) is zygote:
                self.exited(slot.number, -9, 0.0, 0, "the zygote was killed")
        if self._zygote is zygote:
            self._zygote = None

    # Attempts

    @property
    def busy(self) -> int:
        """How many slots have something to do."""
        return sum(bool(slot.runs) for slot in self.slots.values())

    def room(self, queue: str) -> int:
        """How many more attempts of a queue could start, or wait a moment, right now."""
        if self._alone is not None or any(one.alone for one in self.backlog):
            return 0
        batch = self.batch.get(queue, 1)
        total = -len(self.backlog)
        for slot in self.slots.values():
            if not slot.retire and slot.state is State.IDLE:
                total += batch
            elif batch > 1 and slot.state is State.BUSY and not slot.retire and self._is_short(slot):
                total += max(0, batch - len(slot.runs))
        return max(0, total)

    def _is_short(self, slot: Slot) -> bool:
        return all(self.batch.get(one.queue, 1) > 1 for one in slot.runs)

    def add(self, attempts: list[Attempt]) -> None:
        """Take attempts in; they start as soon as a slot is there."""
        self.backlog.extend(attempts)
        self.fill()

    def fill(self) -> None:
        """Hand out what waits."""
        while self.backlog:
            attempt = self.backlog[0]
            if self._alone is not None or (attempt.alone and self.busy):
                return
            slot = self._choose(attempt)
            if slot is None:
                return
            self.backlog.popleft()
            self._assign(slot, attempt)

    def _choose(self, attempt: Attempt) -> Slot | None:
        """The least busy slot that may take it."""
        batch = self.batch.get(attempt.queue, 1)
        best = None
        fresh = attempt.options.isolation == "fresh"
        for slot in self.slots.values():
            if slot.retire:
                continue
            if slot.state is State.IDLE:
                if fresh and slot.done:
                    continue
                if best is None or best.runs:
                    best = slot
            elif (
                slot.state is State.BUSY
                and batch > 1
                and not fresh
                and not attempt.alone
                and len(slot.runs) < batch
                and self._is_short(slot)
                and (best is None or len(slot.runs) < len(best.runs))
            ):
                best = slot
        if best is None and fresh:
            used = [s for s in self.slots.values() if s.state is State.IDLE and s.done and not s.retire]
            if used:
                self._retire(used[0])
                self.grow()
        return best

    def _assign(self, slot: Slot, attempt: Attempt) -> None:
        self._runs += 1
        attempt.number = self._runs
        if attempt.alone:
            self._alone = attempt
        job = attempt.job
        counts = job.counts
        fence = job.token.partition(".")[0]
        header = [
            attempt.number,
            attempt.queue,
            job.id,
            int(fence) if fence.isdigit() else 0,
            job.attempts + 1,
            [counts.retries, counts.timeouts, counts.stalls, counts.crashes],
            _extra(job.fields),
        ]
        if slot.state is State.IDLE:
            slot.on(Event.ASSIGNED)
        slot.runs.append(attempt)
        if len(slot.runs) == 1:
            self._start(attempt)
        self._wires[slot.number].send(json_frame(Kind.RUN, header, job.payload))

    def _start(self, attempt: Attempt) -> None:
        now = time.monotonic()
        attempt.started = now
        timeout: Any = attempt.options.timeout
        soft: Any = attempt.options.soft_timeout
        if timeout is not None:
            attempt.deadline = now + timeout
            self._watch(attempt.deadline)
        if soft is not None:
            attempt.soft_at = now + soft
            self._watch(attempt.soft_at)

    def answer(self, slot: Slot, data: bytes) -> None:
        """Send a frame to a child, if it is still there."""
        wire = self._wires.get(slot.number)
        if wire is not None:
            wire.send(data)

    # Limits

    def _watch(self, moment: float) -> None:
        if moment < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = moment
            loop = asyncio.get_running_loop()
            # The loop's own clock is the monotonic one.
            self._timer = loop.call_at(moment, self._look)

    def _look(self) -> None:
        """Whose time has passed? Then look again when the next one's will."""
        self._timer, self._timer_at = None, float("inf")
        now = time.monotonic()
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
                self._zygotes[slot.number].signal(slot.pid, linux.SOFT_SIGNAL)
            for moment in (head.deadline, head.soft_at):
                if moment is not None:
                    self._watch(moment)

    def find(self, token: str) -> tuple[Slot | None, Attempt | None]:
        """Where an attempt is: in a slot, in the backlog, or nowhere."""
        for slot in self.slots.values():
            for attempt in slot.runs:
                if attempt.job.token == token:
                    return slot, attempt
        for attempt in self.backlog:
            if attempt.job.token == token:
                return None, attempt
        return None, None

    def drop(self, attempt: Attempt, verdict: str, message: str) -> None:
        """End one attempt wherever it is; the outcome follows, at once if it had not begun."""
        slot, found = self.find(attempt.job.token)
        if found is None:
            return
        if slot is None:
            self.backlog.remove(found)
        elif slot.head is not found:
            # Its child has it in its socket already: it cannot be called back, so the child goes.
            found.verdict, found.message = verdict, message
            self.condemn(slot, "returned", "gave up its place")
            return
        else:
            self.condemn(slot, verdict, message)
            return
        found.verdict, found.message = verdict, message
        self._ended(Ended(found, BlackBox(verdict)))

    def condemn(self, slot: Slot, verdict: str, message: str) -> None:
        """Kill a child: first its stack, then the whole tree below it."""
        if slot.state in (State.KILLING, State.GONE):
            return
        head = slot.head
        if head is not None:
            head.verdict, head.message = verdict, message
        slot.on(Event.CONDEMNED)
        if slot.pid == 0:
            return  # killed as soon as its number is known
        if head is None or verdict in ("lease lost", "returned"):
            self._zygotes[slot.number].kill(slot.pid)
            return
        self._zygotes[slot.number].signal(slot.pid, linux.STACK_SIGNAL)
        self._await_stack(slot, time.monotonic() + STACK_WITHIN, -1)

    def _await_stack(self, slot: Slot, deadline: float, size: int) -> None:
        """Until the stack is written whole, by two looks at the same size, or it takes too long."""
        if slot.state is not State.KILLING:
            return
        written = os.fstat(slot.memory).st_size
        if (written and written == size) or time.monotonic() >= deadline:
            self._zygotes[slot.number].kill(slot.pid)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(0.001, self._await_stack, slot, deadline, written)

    def _retire(self, slot: Slot) -> None:
        """Let a child end by itself after what it has; nothing new for it."""
        if slot.retire or slot.state in (State.KILLING, State.GONE):
            return
        slot.retire = True
        if not slot.runs:
            self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        self._wires[slot.number].shut()
        asyncio.get_running_loop().call_later(LEAVE_WITHIN, self.condemn, slot, "returned", "hangs")

    # Reports

    def received(self, slot: Slot, kind: Kind, body: bytes) -> None:
        """One frame of a child."""
        match kind:
            case Kind.FINISHED | Kind.RAISED:
                self._over(slot, kind, body)
            case Kind.READY:
                if slot.state is State.STARTING:
                    self._failed_starts = 0
                    slot.on(Event.READY)
                    self.fill()
            case Kind.OUTPUT:
                value, _ = read_json(body)
                number, _, line = value
                attempt = slot.head
                if attempt is not None and attempt.number == number:
                    attempt.output.append(str(line))
                self._output(attempt, str(line))
            case Kind.PROGRESS:
                value, _ = read_json(body)
                if slot.head is not None and slot.head.number == value[0]:
                    slot.head.progress = value[1]
            case Kind.ASK:
                value, _ = read_json(body)
                number, verb, args = value
                self._asked(slot, int(number), str(verb), list(args))
            case _:
                raise BadFrame(f"a child sent {kind.name}")

    def _over(self, slot: Slot, kind: Kind, body: bytes) -> None:
        number, wall, cpu, peak = FINISHED.unpack_from(body)
        head = slot.head
        if head is None or head.number != number:
            raise BadFrame("the end of an attempt that does not run")
        costs = Costs(wall, cpu, peak)
        rest = body[FINISHED.size :]
        if kind is Kind.FINISHED:
            outcome: Outcome = Finished(head, rest, costs)
        else:
            told, _ = read_json(rest)
            outcome = Raised(
                head,
                str(told["kind"]),
                str(told["type"]),
                str(told["message"]),
                str(told["traceback"]),
                _number(told["after"]),
                _number(told["at"]),
                costs,
                told["exception"] if isinstance(told.get("exception"), dict) else None,
            )
            slot.retire = slot.retire or bool(told["retire"])
        if head.verdict is not None and slot.state is State.KILLING:
            return  # it came just too late: it is being killed, and that is its outcome
        slot.runs.popleft()
        slot.done += 1
        if self._alone is head:
            self._alone = None
        limit = head.options.max_jobs_per_child
        if head.options.isolation == "fresh" or (limit is not None and slot.done >= limit):
            slot.retire = True
        if slot.runs:
            self._start(slot.runs[0])
        elif slot.state is State.BUSY:
            slot.on(Event.EMPTIED)
            if slot.retire:
                slot.retire = False
                self._retire(slot)
                self.grow()
        self._ended(outcome)
        self.fill()

    def exited(self, number: int, code: int, cpu: float, peak: int, why: str = "") -> None:
        """A child is dead and reaped."""
        slot = self.slots.get(number)
        if slot is None:
            return
        self._wires[number].drain()
        was_starting = slot.state is State.STARTING
        slot.on(Event.EXITED)
        head = slot.head
        self._remove(slot)
        if head is not None:
            slot.runs.popleft()
            self._ended(self._autopsy(slot, head, code, cpu, peak, why))
            if self._alone is head:
                self._alone = None
        # What waited behind it was never begun: it goes to another child, and nobody is charged.
        for attempt in reversed(slot.runs):
            if attempt.verdict is None:
                self.backlog.appendleft(attempt)
            else:
                self._ended(Ended(attempt, BlackBox(attempt.verdict)))
        os.close(slot.memory)
        if was_starting:
            self._failed_starts += 1
            self._log.event("child.died_starting", "error", code=code, times=self._failed_starts)
            delay = min(30.0, 0.1 * 2 ** min(self._failed_starts, 9))
            asyncio.get_running_loop().call_later(delay, self._regrow)
        else:
            self._regrow()

    def _regrow(self) -> None:
        self.grow()
        self.fill()

    def _autopsy(self, slot: Slot, head: Attempt, code: int, cpu: float, peak: int, why: str) -> Ended:
        wall = time.monotonic() - (head.started or time.monotonic())
        verdict, name = exit_verdict(code)
        if head.verdict is not None:
            verdict = head.verdict
        elif why:
            verdict = why
        box = BlackBox(
            verdict,
            name,
            code if code >= 0 else None,
            read_stack(slot.memory),
            wall,
            cpu,
            peak,
            head.progress,
            list(head.output),
        )
        return Ended(head, box)

    def _remove(self, slot: Slot) -> None:
        del self.slots[slot.number]
        self._wires.pop(slot.number).close()
        self._zygotes.pop(slot.number, None)

    def close(self) -> None:
        """Let go of everything; the zygotes kill what is left."""
        if self._timer is not None:
            self._timer.cancel()
        for wire in self._wires.values():
            wire.close()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _extra(fields: dict[bytes, Any]) -> dict[str, Any] | None:
    """What a failure job tells its handler about the job that failed."""
    failed = fields.get(b"i")
    if not isinstance(failed, bytes):
        return None
    counts = [int(word) for word in fields.get(b"n", b"").split()[1:5] if word.isdigit()]
    return {
        "failure": {
            "job_id": failed.decode(errors="replace"),
            "kind": fields.get(b"z", b"error").decode(errors="replace"),
            "error": fields.get(b"b", b"").decode("latin-1"),
            "counts": (counts + [0] * 4)[:4],
        }
    }


class _Wire:
    """The descriptors of one child, on the loop."""

    def __init__(self, pool: Pool, slot: Slot, sock: socket.socket, output: int) -> None:
        self._pool = pool
        self._slot = slot
        self._sock = sock
        self._pipe = output
        self._reader = Reader()
        self._unsent = bytearray()
        self._part = b""
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        os.set_blocking(output, False)
        self._loop.add_reader(sock, self._readable)
        self._loop.add_reader(output, self._printed)

    def send(self, data: bytes) -> None:
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # it is dead; its exit is on the way
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._sock, self._writable)
        self._unsent += data

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> bool:
        """Read what there is; False at the end of the stream."""
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._sock)
            self._silent()
            return False
        try:
            for kind, body in self._reader.feed(data):
                self._pool.received(self._slot, kind, body)
        except (BadFrame, ValueError, TypeError, KeyError, IndexError, struct.error) as error:
            self._loop.remove_reader(self._sock)
            self._pool.condemn(self._slot, "protocol", f"sent what is no frame: {error}")
            return False
        return True

    def _silent(self) -> None:
        """The child closed its socket. If it does not end by itself, it is ended."""
        if self._slot.state in (State.BUSY, State.IDLE, State.STARTING) and not self._slot.retire:
            self._loop.call_later(1.0, self._pool.condemn, self._slot, "protocol", "closed its socket")

    def _printed(self) -> None:
        """Output that went past Python, line by line."""
        try:
            data = os.read(self._pipe, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._pipe)
            return
        *lines, self._part = (self._part + data).split(b"\n")
        self._part = self._part[-8192:]
        head = self._slot.head
        for raw in lines:
            line = raw[:8192].decode(errors="backslashreplace")
            if head is not None:
                head.output.append(line)
            self._pool._output(head, line)

    def drain(self) -> None:
        """The last words of a child that is dead."""
        while self._readable():
            pass
        self._printed()

    def shut(self) -> None:
        """Tell the child that there is nothing more."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is dead already

    def close(self) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._loop.remove_reader(self._pipe)
        self._sock.close()
        os.close(self._pipe)
