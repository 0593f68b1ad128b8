"""What a flow asks of the world: the few things the sync and the async broker can do.

A flow is a generator that yields effects and is sent their outcomes. It decides; a broker acts. So
every decision about jobs, retries and routing is written once and can be tested without a server.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from taskhive.address import Address

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send packed commands to one server and read their replies, on one connection.

    Outcome: the list of replies, in which errors stand as exceptions, or a `Trouble`.
    """

    address: Address
    data: bytes
    replies: int
    echo: bytes | None = None
    """What the first reply must begin with; anything else is the reply of somebody else."""
    sentinel: bool = False


def is_answer(reply: Any, echo: bytes) -> bool:
    """Whether a reply is this request's own; an error of the server names nobody."""
    if isinstance(reply, Exception):
        return True
    return type(reply) is list and len(reply) > 0 and reply[0] == echo


_MESSAGES = (b"message", b"subscribe", b"unsubscribe")


def is_message(came: Any) -> bool:
    """Whether it is what a subscription brings, on a connection that carries replies too."""
    return isinstance(came, list) and len(came) == 3 and came[0] in _MESSAGES


@dataclass(frozen=True, slots=True)
class Trouble:
    """The connection failed; whether the server acted is unknown if `sent`."""

    error: Exception
    sent: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for so many seconds. Outcome: None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DropIdle:
    """Close the idle connections: the servers behind them have changed. Outcome: None."""


@dataclass(frozen=True, slots=True)
class EnsureEmbedded:
    """Find or start the embedded server. Outcome: its address."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Open a subscription that lasts until the flow ends. Outcome: None, or a `Trouble`."""

    address: Address
    channel: str


@dataclass(frozen=True, slots=True)
class AwaitMessage:
    """Wait for one message. Outcome: True if one came, False after the time, or a `Trouble`."""

    seconds: float | None


Effect = Send | Pause | DropIdle | EnsureEmbedded | Subscribe | AwaitMessage
Flow = Generator[Effect, Any, T]
