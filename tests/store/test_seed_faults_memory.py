"""When the server has no memory left: nothing new comes in, and finished work still goes out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from taskhive import Hive, QueueFull
from tests.servers import Server
from tests.store.hands import adds_up, dump, take


@contextmanager
def memory_used_up(server: Server) -> Iterator[None]:
    """The server may use no more than it does, and less."""
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


def test_with_memory_used_up_a_dispatch_is_refused_whole(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    q.dispatch(0)
    with server.client() as client:
        before = dump(client, hive.prefix)
        with memory_used_up(server):
            with pytest.raises(QueueFull, match="maxmemory"):
                q.dispatch(1)
            with pytest.raises(QueueFull):
                q.dispatch_many(range(10))
        assert dump(client, hive.prefix) == before
    q.dispatch(1)
    assert q.stats().ready == 2


def test_with_memory_used_up_work_is_settled_and_renewed(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    jobs = q.dispatch_many(range(6))
    leases = [take(q) for _ in range(5)]
    with memory_used_up(server):
        leases[0].ack("done")
        leases[1].fail("why", permanent=True)
        leases[2].release()
        leases[3].extend(60)
        assert jobs[4].cancel()
        leases[4].ack()
        assert jobs[5].cancel()
        q.sweep()
    assert [job.state() for job in jobs] == [
        "succeeded",
        "failed",
        "ready",
        "active",
        "cancelled",
        "cancelled",
    ]
    adds_up(q)
