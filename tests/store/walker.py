"""A walk: the shipped scripts on a real server beside the model, compared whole after every step."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from typing import Any

import hiredis

from taskhive.keys import QueueKeys
from tests.store import walker_state
from tests.store.model import Full, Queue
from tests.store.walker_compare import (
    Decode,
    Violation,
    bytes_besides_counters,
    differences,
    snapshot,
)
from tests.store.walker_ledger import Ledger, broken_structure
from tests.store.walker_ops import Dispatch, Exchange, Op, Revive
from tests.store.walker_state import DUMP, RawQueue
from tests.store.walker_wire import Scripts, Wire

START = 2**41
"""Later than the server's own clock, so that no key of a walk goes by itself: what the server
expires on its own only frees memory, and the walk must not depend on how long it takes."""

WORKERS = ("w1", "w2", "w3")


class Walker:
    """One queue with its fail lane, on the server and in the model."""

    def __init__(self, wire: Wire, scripts: Scripts, prefix: str, name: str = "q") -> None:
        self.wire, self.scripts = wire, scripts
        self.keys = {"main": QueueKeys(prefix, name), "lane": QueueKeys(prefix, f"{name}:fail")}
        self.figures: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        lane = Queue(self.effects)
        self.models = {"main": Queue(self.effects, lane), "lane": lane}
        self.clock = START
        self.ledger = Ledger()
        self.trace = hashlib.sha256()
        self.recent: deque[str] = deque(maxlen=12)
        self._generations: dict[str, dict[int, int]] = {"main": {0: 0}, "lane": {0: 0}}
        self._decoded: dict[tuple[str, str, bytes], Any] = {}
        self._rows: dict[str, Any] = {}
        self._raw: dict[str, RawQueue] = {}
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._dump = DUMP.encode()
        self._digest = hashlib.sha1(self._dump).hexdigest()
        self._channels = {self.keys[queue].done: queue for queue in ("main", "lane")}
        self._ear = wire.ear(*self._channels)
        parts = walker_state.parts(WORKERS)
        self._all_keys = [self.keys[q].name(part).encode() for q in ("main", "lane") for part in parts]

    # Steps

    def advance(self, ms: int) -> None:
        self.clock += ms

    def jump(self, ms: int) -> None:
        """A step of the server's clock, in either direction."""
        self.advance(ms)
        self._note(f"the clock jumps by {ms} ms", "jumps")

    def flush(self) -> None:
        """The server forgets every script."""
        self.wire.call([b"SCRIPT", b"FLUSH"])
        self._note("SCRIPT FLUSH", "flushes")

    def _note(self, words: str, figure: str) -> None:
        self.figures["steps"] += 1
        self.figures[figure] += 1
        self.recent.append(words)
        self.trace.update(words.encode())

    def do(self, op: Op, resent: bool = False) -> Any:
        """One call: the model does it, the server does it, and nothing may differ."""
        self._note(f"{'again ' if resent else ''}at {self.clock - START}: {op}", op.verb)
        self.figures["resent"] += resent
        model = self.models[op.queue]
        expected: Any
        try:
            expected = op.expect(model, self.clock)
        except Full:
            expected = Full
        reply, dump, streams = self._call(op)
        raw = self._read(dump)
        self._listen()
        self._compare_events(streams)
        if isinstance(reply, hiredis.ReplyError):
            if expected is not Full or not str(reply).startswith("FULL "):
                self._violated(f"the script failed: {reply}")
            actual: Any = Full
        else:
            if reply[0] != op.call.encode():
                self._violated(f"the reply carries {reply[0]!r}")
            self._bind(op, expected, reply, raw[op.queue])
            actual = op.read(reply[1:], lambda number: self._generation(op.queue, number))
        self.trace.update(repr(actual).encode())
        if actual != expected:
            self._violated(f"it answered {actual}\n  where the model says {expected}")
        self._compare(raw)
        if wrong := self.ledger.note(op, actual, model.now, self._raw.get(op.queue), resent):
            self._violated(wrong)
        self._raw = raw
        self._figure(op, actual)
        return actual

    def _figure(self, op: Op, reply: Any) -> None:
        if isinstance(op, Exchange):
            self.figures["settles offered"] += len(op.settles)
            for answer in reply[0]:
                self.figures[answer] += 1

    # The server

    def _call(self, op: Op) -> tuple[Any, Any, list[Any]]:
        """As a client does it: plain jobs by the short way, unless that declines."""
        if isinstance(op, Dispatch) and not any(item.spec for item in op.items):
            words = [word for item in op.items for word in (item.id.encode(), item.payload)]
            reply, dump, streams = self._script(op, "add", words)
            if isinstance(reply, hiredis.ReplyError) or reply[2] == 1:
                self.effects["added the short way"] += 1
                if not isinstance(reply, hiredis.ReplyError):
                    reply[2] = [b"N0"] * len(op.items)
                return reply, dump, streams
            self.effects["declined by the short way"] += 1
            self._ear.heard()
        return self._script(op, op.verb, op.args())

    def _script(self, op: Op, verb: str, words: list[bytes]) -> tuple[Any, Any, list[Any]]:
        keys = self.keys[op.queue].of(verb, **op.special)
        args = [op.call.encode(), *words, b"%d" % self.clock]
        digest = self.scripts.digests[verb].encode()
        step = [b"EVALSHA", digest, b"%d" % len(keys), *keys, *args]
        look = [b"EVALSHA", self._digest.encode(), b"%d" % len(self._all_keys), *self._all_keys]
        look += walker_state.kinds(WORKERS) * 2
        # The streams are emptied at once, so that what is in them is of this step.
        names = [self.keys[queue].events for queue in ("main", "lane")]
        after = [[b"XRANGE", name, b"-", b"+"] for name in names] + [[b"UNLINK", *names]]
        reply, dump, *streams, _, _ = self.wire.call(step, look, *after, self._ear.fence)
        if _is_noscript(reply):
            # Nothing ran: the text goes once more, as a client does it.
            self.figures["reloaded"] += 1
            text = self.scripts.texts[verb]
            self._ear.heard()
            step = [b"EVAL", text, *step[2:]]
            reply, dump, *streams, _, _ = self.wire.call(step, look, *after, self._ear.fence)
        if _is_noscript(dump):
            (dump,) = self.wire.call([b"EVAL", self._dump, *look[2:]])
        return reply, dump, streams

    def _listen(self) -> None:
        """Of each queue in which a run ended its ids were told, in one message, and nothing else."""
        heard = self._ear.heard()
        told = {self._channels[channel]: message.split() for channel, message in heard}
        self.figures["told"] += sum(len(ids) for ids in told.values())
        if len(told) < len(heard):
            self._violated(f"one call told one channel twice: {heard}")
        for queue, model in self.models.items():
            done, model.done = model.done, set()
            if set(told.get(queue, ())) != done:
                self._violated(f"{queue} told {told.get(queue)} where the model ended {sorted(done)}")

    def _compare_events(self, streams: list[Any]) -> None:
        """Each kind of event is one entry, with all the jobs it happened to."""
        for model, entries in zip(self.models.values(), streams, strict=True):
            events, model.events = model.events, []
            wanted: dict[str, list[str]] = {}
            for kind, id in events:
                wanted.setdefault(kind, []).append(id)
            actual = walker_state.events(entries)
            expected = [(kind, _told(kind, ids)) for kind, ids in sorted(wanted.items())]
            if actual != expected:
                self._violated(f"the events are {actual}\n  where the model says {expected}")
            self.figures["events"] += len(events)

    def server_generation(self, queue: str, generation: int | None) -> int | None:
        """What the server calls a generation of the model's."""
        numbers = {mine: number for number, mine in self._generations[queue].items()}
        return None if generation is None else numbers[generation]

    def _read(self, dump: Any) -> dict[str, RawQueue]:
        if isinstance(dump, hiredis.ReplyError):
            self._violated(f"the state cannot be read: {dump}")
        half = len(dump) // 2
        raw = {}
        for queue, rows in (("main", dump[:half]), ("lane", dump[half:])):
            untouched = queue in self._rows and not self.models[queue].touched
            if untouched and rows == self._rows[queue]:
                raw[queue] = self._raw[queue]
                continue
            raw[queue] = walker_state.read(rows, WORKERS)
            # The order of the fields of a hash is the server's affair, and changes by itself.
            if untouched and raw[queue] != self._raw[queue]:
                self._violated(f"{queue} changed, which nobody touched")
            self._rows[queue] = rows
        return raw

    # Generations: the model counts its own, and the server's must come in the same order

    def _generation(self, queue: str, number: int) -> int:
        return self._generations[queue].get(number, -number)

    def _bind(self, op: Op, expected: Any, reply: list[Any], raw: RawQueue) -> None:
        known = self._generations[op.queue]
        pairs: list[tuple[int, int]] = []
        if isinstance(op, Dispatch) and expected is not Full:
            for (letter, generation), word in zip(expected, reply[2], strict=True):
                if letter in "NB" and generation:
                    pairs.append((int(word[1:]), generation))
        elif isinstance(op, Revive) and expected == 1 and op.id in raw.hashes["jobs"]:
            # Not so for a resend, which is answered the same and revives nothing.
            entry = self.models[op.queue].entries.get(op.id)
            waiting = entry.waiting if entry else None
            if waiting is not None and waiting.generation not in known.values():
                number = walker_state.job(raw.hashes["jobs"][op.id])["g"]
                pairs.append((number, waiting.generation))
        for number, generation in pairs:
            if number <= max(known):
                self._violated(f"generation {number} is not newer than {max(known)}")
            known[number] = generation

    # Comparison

    def decoded_in(self, queue: str) -> Decode:
        """Records decoded; most of them are the same as a step ago."""
        known = self._decoded

        def decode(kind: str, raw: bytes) -> Any:
            found = known.get((queue, kind, raw))
            if found is None:
                if len(known) > 4000:
                    known.clear()
                found = walker_state.READERS[kind](raw)
                if isinstance(found, dict):
                    found["g"] = self._generation(queue, found["g"])
                known[queue, kind, raw] = found
            return found

        return decode

    def _compare(self, raw: dict[str, RawQueue]) -> None:
        for queue, model in self.models.items():
            if queue in self._snapshots and not model.touched:
                continue
            model.touched = False
            if wrong := broken_structure(raw[queue], self.decoded_in(queue)):
                self._violated(f"{queue}: {wrong}")
            expected = snapshot(model)
            try:
                wrong = differences(model, expected, raw[queue], self.decoded_in(queue))
            except (ValueError, KeyError, AttributeError, IndexError) as error:
                wrong = f"a record cannot be read: {error!r}"
            if wrong:
                self._violated(f"{queue}: {wrong}")
            before = self._raw.get(queue)
            if (
                before is not None
                and expected == self._snapshots[queue]
                and bytes_besides_counters(before) != bytes_besides_counters(raw[queue])
            ):
                self._violated(f"{queue}: bytes changed although nothing happened")
            self._snapshots[queue] = expected
        if wrong := self.ledger.failures(raw["main"], raw["lane"], self.decoded_in("lane")):
            self._violated(wrong)

    def _violated(self, what: str) -> None:
        steps = "\n  ".join(self.recent)
        raise Violation(f"step {self.figures['steps']}: {what}\nthe last steps:\n  {steps}")

    def clean_up(self) -> None:
        self.wire.call([b"UNLINK", *self._all_keys])


def _told(kind: str, ids: list[str]) -> list[str] | int:
    """Of many that were dispatched together only the number is told."""
    return len(ids) if kind == "dispatched" and len(ids) > 1 else sorted(ids)


def _is_noscript(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")
