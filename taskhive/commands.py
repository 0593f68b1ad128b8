"""Every operation on a queue, as a flow: script calls built, replies read, no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taskhive import records, units
from taskhive.dispatcher import Dispatcher
from taskhive.effects import Flow
from taskhive.holder import Holder
from taskhive.keys import worker_facts
from taskhive.operations import Operations


class Commands(Dispatcher, Holder, Operations):
    """The operations of one server and prefix."""

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
