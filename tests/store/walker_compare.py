"""The comparison of the model with what the server holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.store.model import Queue
from tests.store.model_values import Lease, Run, Said, ended_record, moved, record
from tests.store.walker_state import RawQueue

STARTED, CANCELLED, EXTENDED, ASKED = 1, 2, 4, 8
PRIVATE = ("seq", "token", "epoch")
"""Counters whose values are the scripts' own affair: what they are for is compared instead."""

Decode = Callable[[str, bytes], Any]


class Violation(AssertionError):
    """The server did what the rules forbid."""


def marks(lease: Lease) -> int:
    marks = STARTED * lease.started + CANCELLED * lease.cancelled + EXTENDED * lease.extended
    return marks + ASKED * lease.asked


def snapshot(model: Queue) -> dict[str, Any]:
    """Everything the model holds, in the form the server's state is brought into."""
    current = {id: e.running or e.waiting for id, e in model.entries.items()}
    return {
        "meta": _meta(model),
        "jobs": {id: record(run) for id, run in current.items() if run},
        "next": {id: record(e.waiting) for id, e in model.entries.items() if e.waiting and e.running},
        "leases": {
            id: (e.lease.token, e.lease.length, e.lease.taken, marks(e.lease), e.lease.progress)
            for id, e in model.entries.items()
            if e.lease
        },
        "ended": {id: ended_record(ended) for id, ended in model.ended.items()},
        "ready": model.ready(),
        "delayed": model.delayed(),
        "blocked": model.blocked(),
        "expiring": [(id, expires) for expires, id in model.expiring()],
        "active": [(id, until) for until, id in model.active()],
        **{
            state: [(id, until) for until, id in model.kept(state)]
            for state in ("succeeded", "failed", "cancelled")
        },
        "memory": {field: value for field, (_, value) in model.remembered().items()},
        "requests": dict(model.handed_out),
        "costs": dict(model.costs),
    }


def _meta(model: Queue) -> dict[str, str]:
    numbers = {"now": model.now, "lease": model.lease_length, "gap_end": model.gap_end}
    return {
        **({"v": "2"} if model.used else {}),
        **{name: str(value) for name, value in numbers.items() if value},
        **{name: str(value) for name, value in model.counters.items() if value},
        **model.settings,
    }


def differences(model: Queue, expected: dict[str, Any], raw: RawQueue, decode: Decode) -> str:
    """The first part in which the server differs from the model, or nothing."""
    hashes, sets = raw.hashes, raw.sets
    meta = {k: v.decode() for k, v in hashes["meta"].items() if k not in PRIVATE}
    blocked = {id: dict(decode("job", one)) for id, one in hashes["next"].items()}
    said = {id: {name: one.pop(name, None) for name in "DROlh"} for id, one in blocked.items()}
    actual = {
        "meta": meta,
        "jobs": {id: decode("job", one) for id, one in hashes["jobs"].items()},
        "next": blocked,
        "leases": {id: decode("lease", one) for id, one in hashes["leases"].items()},
        "ended": {id: decode("ended", one) for id, one in hashes["ended"].items()},
        "ready": raw.ids("ready"),
        "delayed": [(id, score // 256, 255 - score % 256) for id, score in sets["delayed"]],
        "blocked": raw.ids("blocked"),
        **{part: sets[part] for part in ("expiring", "active", "succeeded", "failed", "cancelled")},
        "memory": _memory(raw),
        "costs": {name: int(value) for name, value in hashes["costs"].items()},
        "requests": {worker: decode("request", one) for worker, one in raw.requests.items()},
    }
    for part, wanted in expected.items():
        if actual[part] != wanted:
            return f"{part}: {_told(wanted, actual[part])}"
    if hashes["quarantine"]:
        return f"quarantined: {hashes['quarantine']}"
    for id, flags in said.items():
        waiting = model.entries[id].waiting
        assert waiting is not None
        if wrong := _composed_wrongly(waiting, flags):
            return f"the blocked run of {id}: {wrong}"
    return ""


def _memory(raw: RawQueue) -> dict[str, str]:
    """The newest word on each field: a later span overrules an earlier one."""
    epoch = int(raw.hashes["meta"].get("epoch", b"0"))
    found: dict[str, str] = {}
    for span in (epoch - 2, epoch - 1, epoch):
        found |= {f: v.decode() for f, v in raw.hashes[f"memory{span % 3}"].items()}
    return found


def _told(wanted: Any, actual: Any) -> str:
    if not isinstance(wanted, dict):
        return f"the model has {wanted}, the server {actual}"
    words = []
    for name in sorted(wanted.keys() | actual.keys()):
        mine, theirs = wanted.get(name, "nothing"), actual.get(name, "nothing")
        if mine == theirs:
            continue
        if isinstance(mine, dict) and isinstance(theirs, dict):
            words.append(f"{name} ({_told(mine, theirs)})")
        else:
            words.append(f"{name}: the model has {mine}, the server {theirs}")
    return "; ".join(words)


def _composed_wrongly(run: Run, flags: dict[str, Any]) -> str:
    """Whether what is stored of many dispatches does what replaying each of them does."""
    for name, word in (("D", "update_data"), ("R", "reset_counts"), ("O", "update_options")):
        if bool(flags[name]) != any(getattr(said.spec, word) for said in run.said):
            return f"{word} is {flags[name]} after {[said.spec for said in run.said]}"
    for time in _probes(run.said):
        replayed = time
        for said in run.said:
            replayed = moved(replayed, said)
        clamped = time if flags["l"] is None else max(time, flags["l"])
        clamped = clamped if flags["h"] is None else min(clamped, flags["h"])
        if clamped != replayed:
            return f"{time} becomes {clamped} and not {replayed} by {[said.spec for said in run.said]}"
    return ""


def _probes(said: Iterable[Said]) -> set[int]:
    return {0, 2**45} | {one.at + step for one in said for step in (-1, 0, 1)}


def bytes_besides_counters(raw: RawQueue) -> Any:
    """What a refused call may not change: all but the clock and the count of refusals."""
    meta = {
        name: value
        for name, value in raw.hashes["meta"].items()
        if name not in ("now", "stale", "dups") and (name, value) != ("token", b"0")
    }
    return {**raw.hashes, "meta": meta}, raw.sets, raw.requests
