"""One program's talk with the server: routing, resending and giving up, without I/O.

Every request of TaskHive is safe to repeat: it carries an id of its own, and the scripts know a
request that comes again. So whatever goes wrong with a connection, the answer is a new connection
and the same bytes, until the patience is over.
"""

from __future__ import annotations

import random
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ConnectionError as LibraryConnectionError

from taskhive import trouble
from taskhive.address import Address, Routing, Target
from taskhive.effects import DropIdle, EnsureEmbedded, Flow, Pause, Send, Subscribe, Trouble, is_answer
from taskhive.errors import RedisUnavailable, ServerRefused
from taskhive.keys import QueueKeys
from taskhive.resp import pack, pack_words
from taskhive.trouble import Reaction

# What was settled is remembered for a minute at least; resending stops well before that.
RESEND_FOR = 30.0
OLDEST_SERVER = (7, 0)
NOTHING_SPECIAL: Mapping[str, str] = {}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_MOST_HOPS = 8


class EvictingServer(RuntimeWarning):
    """The server may delete jobs to make room."""


class Session:
    """What is known of the servers, and how a request gets its answer."""

    def __init__(
        self,
        target: Target,
        patience: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.target = target
        self.patience = patience
        self.clock = clock
        self._rng = rng or random.Random()
        self._primary = target.seeds[0] if target.routing is Routing.ONE else None
        self._slots: dict[int, Address] = {}
        self._inspected = False
        self.version: tuple[int, ...] = ()

    # Requests

    def call(
        self,
        keys: QueueKeys,
        verb: str,
        args: Sequence[bytes],
        echo: bytes,
        after: Sequence[bytes] = (),
        special: Mapping[str, str] = NOTHING_SPECIAL,
    ) -> Flow[list[Any]]:
        """Run a script; `after` is one more command on the same connection. All replies."""
        tail = pack_words(args)
        if after:
            tail += pack(*after)

        def build(with_text: bool) -> bytes:
            head = (keys.head_with_text if with_text else keys.head)(verb, **special)
            return b"*%d\r\n%b%b" % (head.words + len(args), head.data, tail)

        return self._ask(keys.tag, keys.queue, build, 2 if after else 1, echo)

    def command(self, key: bytes | None, *words: bytes, patience: float | None = None) -> Flow[Any]:
        """Run one plain command."""
        data = pack(*words)
        replies = yield from self._ask(key, "", lambda _: data, 1, None, patience)
        return replies[0]

    # The loop around each request

    def _ask(
        self,
        key: bytes | None,
        queue: str,
        build: Callable[[bool], bytes],
        replies: int,
        echo: bytes | None,
        patience: float | None = None,
    ) -> Flow[list[Any]]:
        if patience is None:
            patience = self.patience
        data = build(False)
        asking = 0
        detour: Address | None = None
        deadline = self.clock() + patience
        tries = hops = 0
        while True:
            address = detour or self._known(key)
            outcome: Any
            if address is None or not self._inspected:
                outcome = yield from self._prepare(key)
            if address is not None and self._inspected:
                outcome = yield Send(address, data, replies + asking, echo if not asking else None)
                if type(outcome) is list:
                    if asking:
                        outcome = outcome[1:]
                        if echo is not None and not is_answer(outcome[0], echo):
                            outcome = [ConnectionError("the reply of another request")]
                    if not isinstance(outcome[0], Exception):
                        return outcome  # type: ignore[no-any-return]
            if outcome is None:
                continue
            if asking:
                data, asking, detour = build(False), 0, None
            error: Exception = outcome.error if isinstance(outcome, Trouble) else outcome[0]
            reaction = trouble.react(error)
            if reaction in (Reaction.MOVED, Reaction.ASK):
                if self.target.routing is not Routing.CLUSTER:
                    raise ServerRefused(
                        f"{self.target} is one server of a cluster. Give it as cluster://"
                    ) from error
                hops += 1
                if hops > _MOST_HOPS:  # servers that disagree about a slot, each naming the other
                    reaction = Reaction.REROUTE
            match reaction:
                case Reaction.RAISE:
                    raise trouble.translate(error, queue) from error
                case Reaction.EVAL:
                    data = build(True)
                    continue
                case Reaction.MOVED:
                    slot, there = self._redirection(error, address)
                    self._slots[slot] = there
                    continue
                case Reaction.ASK:
                    _, detour = self._redirection(error, address)
                    data, asking = pack(b"ASKING") + build(True), 1
                    continue
                case Reaction.RESEND | Reaction.REROUTE:
                    self._forget()
                    yield DropIdle()
                    if isinstance(outcome, Trouble) and outcome.sent:
                        deadline = min(deadline, self.clock() + RESEND_FOR)
                case Reaction.WAIT:
                    pass
            tries += 1
            if tries == 1 and _was_closed(outcome):
                continue  # an idle connection that the server has given up; whatever the patience
            yield from self._pause(tries, deadline, patience, error)

    # Routing

    def _known(self, key: bytes | None) -> Address | None:
        if self.target.routing is not Routing.CLUSTER:
            return self._primary
        if key is None:
            return next(iter(self._slots.values()), None)
        return self._slots.get(key_slot(key)) if self._slots else None

    def _forget(self) -> None:
        self._slots = {}
        if self.target.routing is not Routing.ONE:
            self._primary = None

    def _prepare(self, key: bytes | None) -> Flow[Trouble | list[Any] | None]:
        """Find the server and look at it; None when all is well."""
        if self._known(key) is None:
            found = yield from self._locate()
            if found is not None:
                return found
        address = self._known(key)
        if address is None:
            return Trouble(ConnectionError("no server of the cluster has this slot"), False)
        if not self._inspected:
            return (yield from self._inspect(address))
        return None

    def address(self, key: bytes) -> Flow[Address]:
        """The server of a key, for subscriptions."""
        while True:
            known = self._known(key)
            if known is not None:
                return known
            yield from self.command(key, b"PING")

    def listen(self, key: bytes, channel: str) -> Flow[None]:
        """Open the flow's subscription, with the patience of any other request."""
        deadline = self.clock() + self.patience
        tries = 0
        while True:
            address = yield from self.address(key)
            failed = yield Subscribe(address, channel)
            if failed is None:
                return
            if trouble.react(failed.error) is Reaction.RAISE:
                raise trouble.translate(failed.error, "") from failed.error
            self._forget()
            tries += 1
            yield from self._pause(tries, deadline, self.patience, failed.error)

    def _pause(self, tries: int, deadline: float, patience: float, error: Exception) -> Flow[None]:
        """Wait a while before the next try, or give up."""
        left = deadline - self.clock()
        if left <= 0:
            raise RedisUnavailable(str(self.target), patience, error) from error
        if tries > 1:
            ceiling = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(tries, 20))
            yield Pause(min(left, self._rng.uniform(ceiling / 4, ceiling)))

    def _locate(self) -> Flow[Trouble | list[Any] | None]:
        match self.target.routing:
            case Routing.EMBEDDED:
                self._primary = yield EnsureEmbedded()
                return None
            case Routing.SENTINEL:
                ask = pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.target.service.encode())
                return (yield from self._first_answer(ask, self._learn_master, True))
            case Routing.CLUSTER:
                ask = pack(b"CLUSTER", b"SLOTS")
                return (yield from self._first_answer(ask, self._learn_slots, False))
            case Routing.ONE:
                return None

    def _first_answer(
        self, data: bytes, learn: Callable[[Address, Any], bool], sentinel: bool
    ) -> Flow[Trouble | list[Any] | None]:
        """Ask the seeds in turn until one knows."""
        last: Trouble | list[Any] = Trouble(ConnectionError("no address to ask"), False)
        for seed in self.target.seeds:
            outcome = yield Send(seed, data, 1, None, sentinel)
            if not isinstance(outcome, Trouble) and not isinstance(outcome[0], Exception):
                if learn(seed, outcome[0]):
                    return None
                outcome = Trouble(ConnectionError(f"{seed} does not know where to write"), False)
            last = outcome
        return last

    def _learn_master(self, seed: Address, reply: Any) -> bool:
        if not (isinstance(reply, list) and len(reply) == 2):
            return False
        self._primary = self.target.reached(reply[0].decode(), int(reply[1]))
        return True

    def _learn_slots(self, seed: Address, reply: Any) -> bool:
        slots: dict[int, Address] = {}
        for start, end, primary, *_ in reply:
            # An empty or unknown host means: the one you have asked.
            host = (primary[0] or b"").decode()
            there = self.target.reached(host if host not in ("", "?") else seed.host, int(primary[1]))
            slots.update(dict.fromkeys(range(start, end + 1), there))
        self._slots = slots
        return bool(slots)

    def _redirection(self, error: Exception, asked: Address | None) -> tuple[int, Address]:
        """Slot and server from "MOVED 3999 127.0.0.1:6381", with or without its first word."""
        words = str(error).split()
        host, _, port = words[-1].rpartition(":")
        if host in ("", "?") and asked is not None:  # a server that does not know its own name
            host = asked.host
        return int(words[-2]), self.target.reached(host, int(port))

    # A first look at the server

    def _inspect(self, address: Address) -> Flow[Trouble | list[Any] | None]:
        data = pack(b"INFO", b"server") + pack(b"INFO", b"memory")
        outcome = yield Send(address, data, 2)
        if isinstance(outcome, Trouble):
            return outcome
        refused = [reply for reply in outcome if isinstance(reply, Exception)]
        if refused:
            if "NOPERM" not in str(refused[0]) and "permission" not in str(refused[0]):
                return refused
            self._inspected = True  # an ACL may forbid INFO; then nothing is known, and that is fine
            return None
        facts = dict(
            line.split(":", 1)
            for reply in outcome
            for line in reply.decode(errors="replace").splitlines()
            if ":" in line
        )
        self._check_version(facts)
        if self._inspected:
            return None  # others asked at the same time, and one warning is enough
        self._inspected = True
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            warnings.warn(
                f"{self.target} has maxmemory-policy {policy}: under memory pressure it deletes "
                "jobs without a word. Set it to noeviction",
                EvictingServer,
                stacklevel=2,
            )
        return None

    def _check_version(self, facts: dict[str, str]) -> None:
        said = facts.get("redis_version", "")
        numbers = tuple(int(n) for n in re.findall(r"\d+", said)[:2])
        if numbers and numbers < OLDEST_SERVER:
            raise ServerRefused(
                f"{self.target} is version {said}. TaskHive needs Redis 7.0 or newer, or Valkey"
            )
        self.version = numbers


def _was_closed(outcome: Any) -> bool:
    """Whether a connection ended under a request, rather than timed out or could not be made."""
    return (
        isinstance(outcome, Trouble)
        and outcome.sent
        and isinstance(outcome.error, (ConnectionError, LibraryConnectionError))
    )
