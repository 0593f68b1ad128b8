"""Workers as they say of themselves in the server, read into values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_type_hints


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One child of a worker, as the worker says."""

    slot: int = 0
    pid: int = 0
    state: str = ""
    queue: str | None = None
    job: str | None = None
    seconds: float | None = None
    """How long the job runs."""
    waiting: int = 0
    """Very short jobs that wait in the child behind it."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker, as it says of itself every few seconds."""

    id: str = ""
    name: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    capacity: int = 0
    """How many slots may be busy."""
    load: float = 0.0
    """How many are, in weights."""
    reason: str = ""
    """Why so many may be."""
    machine: str = ""
    memory: int = 0
    """Bytes that the machine or its container grants."""
    jobs: int = 0
    """Leases it holds: what runs, and what is about to."""
    queues: tuple[str, ...] = ()
    started: float = 0.0
    """POSIX seconds."""
    slots: tuple[SlotInfo, ...] = ()


Info = TypeVar("Info", SlotInfo, WorkerInfo)


def read_worker(facts: dict[str, Any]) -> WorkerInfo:
    """From JSON that anybody may have written: what has the wrong type is left out."""
    slots = facts.get("slots")
    queues = facts.get("queues")
    plain = {k: v for k, v in facts.items() if k not in ("slots", "queues")}
    return _read(
        WorkerInfo,
        {
            **plain,
            "queues": tuple(map(str, queues)) if isinstance(queues, list) else (),
            "slots": tuple(
                _read(SlotInfo, one)
                for one in (slots if isinstance(slots, list) else [])
                if isinstance(one, dict)
            ),
        },
    )


def _read(kind: type[Info], facts: dict[str, Any]) -> Info:
    hints = get_type_hints(kind)
    taken = {}
    for one in fields(kind):
        value = facts.get(one.name)
        if isinstance(value, _TYPES.get(str(hints[one.name]), tuple)) and not isinstance(value, bool):
            taken[one.name] = value
    return kind(**taken)


_TYPES: dict[str, Any] = {
    "<class 'str'>": str,
    "<class 'int'>": int,
    "<class 'float'>": (int, float),
    "str | None": (str, type(None)),
    "float | None": (int, float, type(None)),
}
