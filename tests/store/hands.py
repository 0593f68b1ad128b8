"""What tests of the store do by hand: take a lease that must be there, look below, go around the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis

from taskhive import Hive, Lease, Queue
from taskhive.keys import QueueKeys
from taskhive.parcels import Exchanged, Renewal, Settle
from tests.servers import Server, until

LEASE_MS = 30_000


def take(queue: Queue, visibility: float | None = None) -> Lease:
    """The next job, which must be there."""
    lease = queue.lease(visibility)
    assert lease is not None, f"{queue} has nothing to take: {queue.stats()}"
    return lease


def drain(queue: Queue) -> list[str]:
    """The ids of all that can be leased, in order; each acknowledged."""
    ids = []
    while (lease := queue.lease()) is not None:
        ids.append(lease.id)
        lease.ack()
    return ids


def exchange(
    hive: Hive,
    queue: str,
    *,
    want: int = 0,
    lease_ms: int = LEASE_MS,
    worker: str = "w",
    request: str | None = None,
    by_hand: bool = False,
    settles: list[Settle] | None = None,
    renewals: list[Renewal] | None = None,
) -> Exchanged:
    """One exchange as a worker would send it; `by_hand=False`: what it takes is not started yet."""
    return hive._run(
        hive._core.commands.exchange(
            queue,
            want=want,
            lease_ms=lease_ms,
            worker=worker,
            request=request,
            by_hand=by_hand,
            settles=settles or [],
            renewals=renewals or [],
        )
    )


def key(hive: Hive, queue: str, part: str) -> str:
    """The key of one part of a queue."""
    return QueueKeys(hive.prefix, queue).name(part)


def adds_up(queue: Queue) -> None:
    """Every run that was made is in exactly one place, waiting, running, ended or merged."""
    s = queue.stats()
    places = s.ready + s.delayed + s.blocked + s.active
    assert s.created == places + s.succeeded + s.failed + s.cancelled + s.merged, s


def dump(client: Redis, prefix: str) -> dict[bytes, Any]:
    """Every byte TaskHive keeps under a prefix, but for the time it was last called."""
    found: dict[bytes, Any] = {}
    for name in client.scan_iter(f"{prefix}:*"):
        kind = client.type(name)
        if kind == b"hash":
            found[name] = {k: v for k, v in client.hgetall(name).items() if k != b"now"}
        elif kind == b"zset":
            found[name] = client.zrange(name, 0, -1, withscores=True)
        elif kind == b"set":
            found[name] = client.smembers(name)
        elif kind == b"stream":
            found[name] = client.xrange(name)
        else:
            found[name] = client.get(name)
    return found


@contextmanager
def nothing_written(server: Server) -> Iterator[None]:
    """The server is not even asked for anything that writes."""
    with server.client() as client:
        before = _writes(client), client.dbsize()
        yield
        assert (_writes(client), client.dbsize()) == before


def _writes(client: Redis) -> dict[str, int]:
    stats = client.info("commandstats")
    harmless = ("cmdstat_info", "cmdstat_dbsize", "cmdstat_client", "cmdstat_hello", "cmdstat_ping")
    return {name: row["calls"] for name, row in stats.items() if not name.startswith(harmless)}


@contextmanager
def hearing(server: Server, channel: str) -> Iterator[Callable[[], list[str]]]:
    """What is published on a channel: each call answers the messages since the last one."""
    with server.client() as client, client.pubsub() as ear:
        ear.subscribe(channel)
        until(lambda: ear.get_message(timeout=1.0), "the subscription is there")

        def heard() -> list[str]:
            # What was published before this came before it, on the one connection that listens.
            client.publish(channel, "fence")
            found: list[str] = []
            while True:
                message = ear.get_message(timeout=5.0)
                assert message is not None, "a message was lost"
                if message["data"] == b"fence":
                    return found
                found.append(message["data"].decode())

        yield heard
