"""What must hold whatever the model thinks: checked on the server's own state and replies."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.store import walker_state
from tests.store.model import Full
from tests.store.walker_compare import Decode
from tests.store.walker_ops import Cancel, Dispatch, Exchange, Op, Purge, Remove, Revive
from tests.store.walker_state import RawQueue

RESENT_WITHIN = 30_000
KEPT = 8


class Ledger:
    """What was acknowledged, leased and settled so far."""

    def __init__(self) -> None:
        self.settled: set[str] = set()
        self.issued: set[str] = set()
        self.failure_jobs: set[str] = set()
        self._accepted: dict[tuple[str, str], tuple[int, list[tuple[str, int]]]] = {}
        """Of each dispatch: when it was acknowledged, and per job its letter and number for its id."""
        self._dispatches: dict[tuple[str, str], int] = defaultdict(int)
        self._answers: dict[tuple[str, str], tuple[int, Any]] = {}
        """Of each operator's call that did something: when, and what it was answered."""

    def note(self, op: Op, reply: Any, now: int, before: RawQueue | None, resent: bool) -> str:
        """Take one reply down; what is wrong with it, if anything."""
        if isinstance(op, Exchange):
            return self._exchanged(op, reply, now, before)
        if isinstance(op, Dispatch):
            return self._dispatched(op, reply, now, resent)
        if isinstance(op, (Cancel, Remove, Revive, Purge)):
            return self._answered(op, reply, now)
        return ""

    def _answered(self, op: Op, reply: Any, now: int) -> str:
        """A resend that comes soon enough is answered as the first sending was, if that did anything."""
        since, first = self._answers.get((op.queue, op.call), (now, reply))
        if now - since <= RESENT_WITHIN and reply != first:
            return f"{op} was answered {first}, and sent again {reply}"
        if (reply[0] if isinstance(reply, list) else reply) > 0:
            self._answers.setdefault((op.queue, op.call), (now, reply))
        return ""

    def _exchanged(self, op: Exchange, reply: Any, now: int, before: RawQueue | None) -> str:
        settled, _, rows, _, _ = reply
        ours = set()
        for settle, answer in zip(op.settles, settled, strict=True):
            if answer == "OK":
                if settle.token in self.settled:
                    return f"{settle.token} was settled twice"
                self.settled.add(settle.token)
                ours.add(settle.token)
        for row in rows:
            # A failure job is made by the clock of another queue, and is due at once.
            due_at_once = row["i"] is not None and row["u"] == row["created"]
            if row["u"] > now and not due_at_once:
                return f"{row['id']} was started {row['u'] - now} ms before its time"
            token = f"{op.queue} {row['token']}"
            if token in self.issued:
                continue
            self.issued.add(token)
            if before is not None and (wrong := _overlap(row["id"], before, now, ours)):
                return wrong
        return ""

    def failures(self, main: RawQueue, lane: RawQueue, decode: Decode) -> str:
        """One failure job for each job that failed for good, and none otherwise."""
        for id, record in lane.hashes["jobs"].items():
            if id not in self.failure_jobs and decode("job", record)["i"] is not None:
                self.failure_jobs.add(id)
        failed = int(main.hashes["meta"].get("failed", b"0"))
        if failed != len(self.failure_jobs):
            return f"{failed} jobs failed for good, {len(self.failure_jobs)} failure jobs were made"
        return ""

    def _dispatched(self, op: Dispatch, reply: Any, now: int, resent: bool) -> str:
        """A resend that comes soon enough is known as one, whatever became of the job meanwhile."""
        since, first = self._accepted.get((op.queue, op.call), (now, []))
        if not resent or now - since > RESENT_WITHIN:
            first = []
        if reply is Full:
            # Who only joined a run is not remembered with it: after its end that is a new dispatch.
            # And of many dispatches of one id only the last few are known when they come again.
            known = bool(first) and all(
                was != "J" and self._dispatches[op.queue, item.id] - number < KEPT
                for item, (was, number) in zip(op.items, first, strict=True)
            )
            return "the resend of an accepted dispatch was refused as too many" if known else ""
        taken = []
        for n, (item, (letter, _)) in enumerate(zip(op.items, reply, strict=True)):
            was, number = first[n] if first else ("J", 0)
            later = self._dispatches[op.queue, item.id] - number
            if was != "J" and letter != "D" and later < KEPT:
                return f"the resend of the dispatch of {item.id} was answered {letter}, not D"
            self._dispatches[op.queue, item.id] += letter in "NBUM"
            taken.append((letter, self._dispatches[op.queue, item.id]))
        self._accepted.setdefault((op.queue, op.call), (now, taken))
        return ""


def _overlap(id: str, before: RawQueue, now: int, settled: set[str]) -> str:
    """Whether a new lease was given out while another one held."""
    raw = before.hashes["leases"].get(id)
    if raw is None:
        return ""
    token = walker_state.lease(raw)[0]
    until = dict(before.sets["active"])[id]
    if token in settled or until <= now:
        return ""
    return f"{id} was leased while {token} holds it for {until - now} ms more"


def broken_structure(raw: RawQueue, decode: Decode) -> str:
    """The first invariant of the server's own state that does not hold."""
    jobs, following, leases = raw.hashes["jobs"], raw.hashes["next"], raw.hashes["leases"]
    ready, delayed, active = (raw.ids(name) for name in ("ready", "delayed", "active"))
    standing = [*ready, *delayed, *active]
    if len(set(standing)) != len(standing) or set(standing) != set(jobs):
        return f"jobs {sorted(jobs)} stand in {ready}, {delayed} and {active}"
    if set(active) != set(leases):
        return f"leases of {sorted(leases)}, active are {active}"
    blocked = raw.ids("blocked")
    if set(blocked) != set(following) or not set(blocked) <= set(leases):
        return f"{blocked} are blocked, {sorted(following)} have a next run, {active} run"
    ended = [id for name in ("succeeded", "failed", "cancelled") for id in raw.ids(name)]
    if sorted(ended) != sorted(raw.hashes["ended"]):
        return f"ended are {sorted(raw.hashes['ended'])}, listed {sorted(ended)}"
    tokens = [decode("lease", lease)[0] for lease in leases.values()]
    if len(set(tokens)) != len(tokens):
        return f"a token was given out twice: {tokens}"
    meta = {name: int(value) for name, value in raw.hashes["meta"].items() if value.isdigit()}
    if meta.get("anomalies"):
        return f"{meta['anomalies']} anomalies"
    left = [meta.get(name, 0) for name in ("succeeded", "failed", "cancelled", "merged")]
    if meta.get("created", 0) != len(standing) + len(blocked) + sum(left):
        return (
            f"{meta.get('created', 0)} created, {len(standing)} stand, {len(blocked)} blocked, "
            f"{left} succeeded, failed, cancelled and merged"
        )
    return ""
