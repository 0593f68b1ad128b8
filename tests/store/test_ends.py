"""How those who wait learn of an end: the channel that tells it, and the bulk read of many."""

from __future__ import annotations

import json

import pytest

from taskhive import Hive, JobState, codec
from taskhive.errors import ServerRefused
from taskhive.jobs import Fetched, Standing
from taskhive.parcels import Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import exchange, hearing, key, take


def fetch(hive: Hive, queue: str, *runs: tuple[str, int | None]) -> list[Fetched]:
    return hive._run(hive._core.commands.fetch(queue, runs))


def done(hive: Hive, queue: str) -> str:
    return hive._core.commands.keys(queue).done


# The channel


def test_a_batch_of_settles_is_told_in_one_message(hive: Hive, server: Server) -> None:
    jobs = hive.queue("q").dispatch_many(range(20))
    leases = exchange(hive, "q", want=20).leases
    settles = [Settle(job.id, job.token, "done") for job in leases]
    with hearing(server, done(hive, "q")) as heard:
        exchange(hive, "q", settles=settles)
        (message,) = heard()
        assert sorted(message.split()) == sorted(job.id for job in jobs)
        exchange(hive, "q", settles=settles)
        assert heard() == []


@pytest.mark.parametrize(
    "end", ["fail", "cancelled mark", "cancel", "delete", "purge", "lapse", "expiry"]
)
def test_every_way_to_end_a_run_is_told(hive: Hive, server: Server, clock: Clock, end: str) -> None:
    q = hive.queue("q")
    job = q.options(id="x", max_stalls=0, expires=300).dispatch(1)
    lease = take(q, 10.0) if end in ("fail", "cancelled mark", "lapse") else None
    with hearing(server, done(hive, "q")) as heard:
        match end:
            case "fail":
                assert lease is not None
                lease.fail("no", permanent=True)
            case "cancelled mark":
                assert lease is not None
                job.cancel()
                assert heard() == []
                lease.ack()
            case "cancel":
                job.cancel()
            case "delete":
                job.delete()
            case "purge":
                q.purge("ready")
            case "lapse":
                clock.run(q, seconds=12)
                assert q.sweep() == ["x"]
            case "expiry":
                clock.run(q, seconds=301)
                q.sweep()
        assert heard() == ["x"]


def test_a_put_back_is_not_told(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    q.dispatch(1)
    with hearing(server, done(hive, "q")) as heard:
        take(q).release()
        take(q).fail("once more")
        assert heard() == []


def test_the_end_of_a_blocked_run_is_told(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    q.options(id="x").dispatch(1)
    take(q)
    q.options(id="x").dispatch(2)
    with hearing(server, done(hive, "q")) as heard:
        q.purge("blocked")
        assert heard() == ["x"]


def test_a_failure_job_that_is_withdrawn_is_told_in_its_own_lane(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    take(q).fail("no", permanent=True)
    with hearing(server, done(hive, "q:fail")) as heard:
        failure_job = job.info().failure_job
        assert q.dead.retry(job.id)
        assert heard() == [failure_job]


def test_a_purge_of_many_is_told_in_messages_of_a_thousand(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    jobs = q.dispatch_many(range(1500))
    with hearing(server, done(hive, "q")) as heard:
        assert q.purge("ready") == 1500
        messages = [message.split() for message in heard()]
    assert [len(ids) for ids in messages] == [1000, 500]
    assert {id for ids in messages for id in ids} == {job.id for job in jobs}


def test_the_end_of_the_queue_is_told_to_all_who_wait(hive: Hive, server: Server) -> None:
    hive.queue("q").dispatch(1)
    with hearing(server, done(hive, "q")) as heard, hearing(server, done(hive, "q:fail")) as lane:
        hive.queue("q").destroy()
        assert heard() == lane() == ["*"]


# The bulk read


def test_a_bulk_read_says_of_each_how_it_stands(hive: Hive) -> None:
    q = hive.queue("q")
    for name in ("good", "bad", "gone", "busy", "waiting"):
        q.options(id=name).dispatch(name)
    take(q).ack({"n": 1})
    take(q).fail("no", permanent=True)
    q.cancel("gone")
    take(q)
    good, bad, gone, busy, waiting, nobody = fetch(
        hive, "q", *((name, None) for name in ("good", "bad", "gone", "busy", "waiting", "nobody"))
    )
    assert (good.standing, good.state) == (Standing.ENDED, JobState.SUCCEEDED)
    assert codec.decode_result(good.body) == {"n": 1}
    assert good.ended_at is not None
    assert (bad.state, bad.kind, json.loads(bad.body)["message"]) == (JobState.FAILED, "permanent", "no")
    assert (gone.state, gone.body) == (JobState.CANCELLED, b"cancelled")
    assert busy.standing is waiting.standing is Standing.PENDING
    assert nobody.standing is Standing.UNKNOWN


def test_a_run_ends_with_the_first_end_of_its_generation_or_a_later_one(hive: Hive) -> None:
    q = hive.queue("q")
    first = q.options(id="x").dispatch(1)
    lease = take(q)
    second = q.options(id="x").dispatch(2)
    old, new = first._generation, second._generation
    assert old is not None
    assert new is not None

    def standings() -> list[str]:
        return [one.standing.value for one in fetch(hive, "q", ("x", old), ("x", new), ("x", None))]

    assert standings() == ["pending", "pending", "pending"]
    lease.ack("one")
    assert standings() == ["ended", "pending", "pending"]
    take(q).ack("two")
    assert standings() == ["ended", "ended", "ended"]
    (found,) = fetch(hive, "q", ("x", old))
    assert (found.generation, codec.decode_result(found.body)) == (new, "two")
    assert fetch(hive, "q", ("x", new + 1))[0].standing is Standing.UNKNOWN


def test_a_bulk_read_agrees_with_the_state_of_one(hive: Hive, clock: Clock) -> None:
    q = hive.queue("q")
    ended = q.options(id="x", result_ttl=60).dispatch(1)
    take(q).ack()
    assert fetch(hive, "q", ("x", ended._generation))[0].standing is Standing.ENDED
    clock.jump(61)
    assert ended.state() == "unknown"
    assert fetch(hive, "q", ("x", ended._generation))[0].standing is Standing.UNKNOWN


def test_a_bulk_read_of_large_results_says_which_to_ask_for_again(hive: Hive) -> None:
    q = hive.queue("q")
    jobs = q.dispatch_many(range(12))
    for _ in jobs:
        take(q).ack("x" * 1_000_000)
    waiting = q.dispatch(1)
    runs: list[tuple[str, int | None]] = [(job.id, job._generation) for job in (*jobs, waiting)]
    bodies: dict[str, bytes] = {}
    rounds = 0
    while runs:
        rounds += 1
        found = fetch(hive, "q", *runs)
        assert sum(len(one.body) for one in found) < 9_000_000
        bodies |= {one.id: one.body for one in found if one.standing is Standing.ENDED}
        runs = [(one.id, None) for one in found if one.standing is Standing.LATER]
        assert rounds > 1 or found[-1].standing is Standing.PENDING
    assert rounds == 2
    assert {len(codec.decode_result(body)) for body in bodies.values()} == {1_000_000}
    assert bodies.keys() == {job.id for job in jobs}


def test_more_than_a_thousand_runs_are_read_in_several_trips(hive: Hive) -> None:
    jobs = hive.queue("q").dispatch_many(range(1001))
    found = fetch(hive, "q", *((job.id, job._generation) for job in jobs))
    assert [one.id for one in found] == [job.id for job in jobs]
    assert fetch(hive, "q") == []


@pytest.mark.parametrize("harm", [b"", b"\xc1", b"\x93abc", b"\xa1s\x01\x02"])
def test_an_unreadable_end_is_unknown_in_a_bulk_read_too(
    hive: Hive, server: Server, harm: bytes
) -> None:
    job = hive.queue("q").dispatch(1)
    take(hive.queue("q")).ack()
    with server.client() as client:
        client.hset(key(hive, "q", "ended"), job.id, harm)
    (found,) = fetch(hive, "q", (job.id, None))
    assert found.standing is Standing.UNKNOWN
    assert job.state() == "unknown"


def test_a_bulk_read_of_a_generation_that_is_none_is_refused(hive: Hive) -> None:
    commands = hive._core.commands
    with pytest.raises(ServerRefused, match="generation"):
        hive._run(commands._call("q", "fetch", b"x", b"y"))
