"""The names of the keys: one hash tag per queue, shared with its fail lane."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from taskhive.resp import pack_words
from taskhive.scripts import script
from taskhive.units import LANE_SUFFIX


class Head(NamedTuple):
    """The beginning of a packed script call: how many words it has, and they."""

    words: int
    data: bytes


class QueueKeys:
    """The keys of one queue or of one fail lane, in the order each script wants them."""

    def __init__(self, prefix: str, queue: str) -> None:
        self.queue = queue
        self.is_lane = queue.endswith(LANE_SUFFIX)
        base = queue.removesuffix(LANE_SUFFIX)
        self.stem = f"{prefix}:{{{base}}}" + (LANE_SUFFIX if self.is_lane else "")
        self._heads: dict[str, Head] = {}

    def name(self, part: str) -> str:
        """The key of one part, such as `jobs` or `fail_ready`."""
        if part.startswith("fail_"):
            # A lane has no lane of its own; its scripts never touch these, but must name them.
            return f"{self.stem}{'' if self.is_lane else LANE_SUFFIX}:{part.removeprefix('fail_')}"
        return f"{self.stem}:{part}"

    def of(self, verb: str, **special: str) -> list[bytes]:
        """KEYS for a script; `special` names the parts that differ from call to call."""
        return [self.name(special.get(part, part)).encode() for part in script(verb).keys]

    def head(self, verb: str, **special: str) -> Head:
        """EVALSHA, its digest and the keys, packed; once for all calls unless `special`."""
        made = None if special else self._heads.get(verb)
        if made is None:
            made = self._pack(verb, b"EVALSHA", script(verb).sha, special)
            if not special:
                self._heads[verb] = made
        return made

    def head_with_text(self, verb: str, **special: str) -> Head:
        """The same for a server that has not seen the script."""
        return self._pack(verb, b"EVAL", script(verb).text, special)

    def _pack(self, verb: str, command: bytes, text: str, special: dict[str, str]) -> Head:
        names = self.of(verb, **special)
        words = (command, text.encode(), b"%d" % len(names), *names)
        return Head(len(words), pack_words(words))

    @cached_property
    def tag(self) -> bytes:
        """A key that lies where all of them lie."""
        return self.name("meta").encode()

    @cached_property
    def bell(self) -> str:
        """The channel that is rung when a job may be there to be taken."""
        return f"{self.name('meta')}:bell"

    @cached_property
    def hint(self) -> str:
        """The channel of cancellations and of the queue's own end."""
        return f"{self.name('meta')}:hint"

    @cached_property
    def events(self) -> bytes:
        """The stream of what happens to its jobs."""
        return self.name("events").encode()

    @cached_property
    def done(self) -> str:
        """The channel of ids whose runs have ended, separated by spaces; `*` stands for all of them."""
        return f"{self.name('meta')}:done"


def worker_set(prefix: str) -> str:
    """The set of all workers' ids; in a slot of its own."""
    return f"{prefix}:workers"


def worker_facts(prefix: str, worker_id: str) -> str:
    """What one worker says of itself, for as long as it says so."""
    return f"{prefix}:worker:{worker_id}"


def queue_set(prefix: str) -> str:
    """The set of all queue names; in a slot of its own."""
    return f"{prefix}:queues"
