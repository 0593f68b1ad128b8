"""The stream that tells what happened: one entry per call and kind, and gone when nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from taskhive import Hive
from taskhive.events import FROM_NOW, Event, EventKind, read_events, read_streams
from taskhive.jobs import Progress
from taskhive.parcels import Renewal, Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import exchange, key, take
from tests.store.walker_wire import Wire


def events(hive: Hive, queue: str = "q", after: str = "", count: int = 1000) -> list[Event]:
    return hive._run(hive._core.commands.events(queue, after, count))


def told(hive: Hive, queue: str = "q") -> list[tuple[str, str]]:
    return [(event.kind.value, event.job_id) for event in events(hive, queue)]


def entries(hive: Hive, server: Server) -> int:
    with server.client() as client:
        return int(client.xlen(key(hive, "q", "events")))


def test_the_life_of_a_job_is_told_in_order(hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="x").dispatch(1)
    (lease,) = exchange(hive, "q", want=1, worker="w7").leases
    exchange(hive, "q", worker="w7", renewals=[Renewal("x", lease.token, True, b'{"done": 2}')])
    body = b'{"type": "E", "message": "\xc3\xa4%b", "retries_left": 4}' % (b"x" * 300)
    exchange(hive, "q", worker="w7", settles=[Settle("x", lease.token, "again", "error", body=body)])
    (lease,) = exchange(hive, "q", want=1, worker="w7").leases
    exchange(hive, "q", worker="w7", settles=[Settle("x", lease.token, "done")])
    dispatched, started, progress, retrying, restarted, succeeded = found = events(hive)
    assert [event.kind.value for event in found] == [
        "dispatched",
        "started",
        "progress",
        "retrying",
        "started",
        "succeeded",
    ]
    assert {event.job_id for event in found} == {"x"}
    assert {event.worker for event in found[1:]} == {"w7"}
    assert {event.queue for event in found} == {"q"}
    assert dispatched.at is not None
    assert succeeded.at is not None
    assert dispatched.at <= succeeded.at
    assert progress.progress == Progress(2)
    assert (retrying.error_kind, retrying.error_type, retrying.retries_left) == ("error", "E", 4)
    assert len(retrying.message) == 199
    assert (started.attempt, retrying.attempt, restarted.attempt) == (None, 1, 2)
    later = events(hive, after=retrying.id)
    assert [event.kind.value for event in later] == ["started", "succeeded"]
    assert len(events(hive, count=2)) == 2


def test_a_batch_is_one_entry_for_each_kind(hive: Hive, server: Server) -> None:
    jobs = hive.queue("q").dispatch_many(range(128))
    (event,) = events(hive)
    assert (event.kind, event.count, event.job_id) == (EventKind.DISPATCHED, 128, "")
    leases = exchange(hive, "q", want=128).leases
    exchange(hive, "q", settles=[Settle(one.id, one.token, "done") for one in leases])
    assert entries(hive, server) == 3
    for kind in ("started", "succeeded"):
        named = [event.job_id for event in events(hive) if event.kind == kind]
        assert sorted(named) == sorted(job.id for job in jobs)


@pytest.mark.parametrize(
    "end", ["fail", "mark", "cancel", "delete", "purge", "stall", "lapse", "expiry"]
)
def test_every_end_is_told_by_its_name(hive: Hive, clock: Clock, end: str) -> None:
    q = hive.queue("q")
    q.options(id="x", max_stalls=int(end == "stall"), expires=300).dispatch(1)
    if end in ("fail", "mark", "stall", "lapse"):
        lease = take(q, 10.0)
    wanted = ("cancelled", "x")
    match end:
        case "fail":
            lease.fail("no", permanent=True)
            wanted = ("failed", "x")
            assert events(hive)[-1].message == "no"
            assert told(hive, "q:fail") == [("dispatched", hive.job("q", "x").info().failure_job)]
        case "mark":
            q.cancel("x")
            assert told(hive)[-1] == ("started", "x")
            lease.ack()
        case "cancel":
            q.cancel("x")
        case "delete":
            hive.job("q", "x").delete()
        case "purge":
            q.purge("ready")
        case "stall" | "lapse":
            clock.run(q, seconds=12)
            q.sweep()
            wanted = ("stalled" if end == "stall" else "failed", "x")
            assert events(hive)[-1].error_type == "Stalled"
        case "expiry":
            clock.run(q, seconds=301)
            q.sweep()
    assert told(hive)[-1] == wanted
    hive.queue("q").dead.retry("x")
    assert told(hive)[-1] == (("dispatched", "x") if wanted[0] == "failed" else wanted)


def test_a_blocked_run_that_is_dropped_does_not_pass_for_the_end_of_the_running_one(hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="x").dispatch(1)
    take(q)
    q.options(id="x").dispatch(2)
    q.purge("blocked")
    assert [kind for kind, _ in told(hive)] == ["dispatched", "started", "dispatched"]


def test_a_queue_can_be_told_to_keep_silent(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    hive._run(hive._core.commands.configure("q", events="0"))
    q.dispatch(1)
    take(q).ack()
    assert entries(hive, server) == 0
    hive._run(hive._core.commands.configure("q", events=""))
    q.dispatch(1)
    assert entries(hive, server) == 1


def test_the_stream_is_short_and_goes_by_itself(hive: Hive, server: Server) -> None:
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for _ in range(1500):
            pipe.xadd(key(hive, "q", "events"), {"k": "started", "i": "x"})
        pipe.execute()
        hive.queue("q").dispatch(1)
        assert 1000 <= entries(hive, server) < 1200
        assert 0 < client.pttl(key(hive, "q", "events")) <= 60_000


def test_who_waits_on_the_stream_learns_of_the_end_of_the_queue(hive: Hive, server: Server) -> None:
    hive.queue("q").dispatch(1)
    (first,) = events(hive)
    hive.queue("q").destroy()
    with Wire(server.socket) as wire:
        name = hive._core.commands.keys("q").events
        found, nothing, left = wire.call(
            [b"XREAD", b"STREAMS", name, first.id.encode()],
            [b"XREAD", b"STREAMS", name, FROM_NOW.encode()],
            [b"PTTL", name],
        )
    (event,) = read_streams("q", found)
    assert 0 < left <= 10_000
    assert (event.kind, event.job_id) == (EventKind.DESTROYED, "")
    assert read_streams("q", nothing) == []


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        [b"1-1"],
        [b"1-1", None],
        [b"1-1", [b"k"]],
        [b"1-1", [b"k", b"of a later version", b"i", b"x"]],
        [b"1-1", [b"i", b"x"]],
    ],
)
def test_what_is_no_event_is_passed_over(entry: Any) -> None:
    good = [b"5-1", [b"k", b"failed", b"i", b"x y"]]
    assert [event.job_id for event in read_events("q", [entry, good])] == ["x", "y"]


@pytest.mark.parametrize("detail", [b"", b"\xff", b"[" * 5000, b"[1]", b'{"attempt": "x", "type": {}}'])
def test_a_detail_that_cannot_be_read_is_left_out(detail: bytes) -> None:
    (event,) = read_events("q", [[b"no id", [b"k", b"failed", b"i", b"x", b"d", detail]]])
    assert (event.job_id, event.attempt, event.message, event.at) == ("x", None, "", None)
