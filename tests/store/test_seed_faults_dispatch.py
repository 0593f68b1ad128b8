"""Faults of earlier job queues in how jobs come in, are updated and are ordered; none may come back."""

from __future__ import annotations

from typing import Any

import pytest

from taskhive import ConfigurationError, Hive, QueueFull, ServerRefused
from taskhive.options import PLAIN
from taskhive.parcels import Item, Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import adds_up, drain, dump, exchange, key, nothing_written, take


def send(hive: Hive, *items: Item) -> list[str]:
    """Dispatch encoded items in one call; whether each made a run."""
    answers = hive._run(hive._core.commands.dispatch("q", items))
    return ["made" if one.created else "not made" for one in answers]


# Order


def test_jobs_are_taken_in_the_order_they_came_and_not_by_their_ids(hive: Hive) -> None:
    q = hive.queue("q")
    for name in ("zeta", "mid", "alpha"):
        q.options(id=name).dispatch(name)
    assert drain(q) == ["zeta", "mid", "alpha"]


def test_no_later_arrival_overtakes_a_job_that_waits(hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="zzz").dispatch(1)
    hive.dispatch_many([q.options(id=f"a{n:04}").bind(n) for n in range(1000)])
    assert take(q).id == "zzz"


def test_the_higher_priority_is_taken_first(hive: Hive) -> None:
    q = hive.queue("q")
    for priority in (1, 255, 100, 0):
        q.options(id=f"p{priority}", priority=priority).dispatch(1)
    assert drain(q) == ["p255", "p100", "p1", "p0"]


def test_an_order_of_arrival_holds_for_delayed_jobs_of_one_moment_by_priority(
    clock: Clock, hive: Hive
) -> None:
    q = hive.queue("q")
    for priority in (1, 255, 100):
        q.options(id=f"p{priority}", priority=priority, delay=5).dispatch(1)
    clock.jump(5)
    assert drain(q) == ["p255", "p100", "p1"]


# Updates of a job that waits or runs


def test_updates_of_a_blocked_run_compose_and_the_last_one_hides_none(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch("first")
    lease = take(q)
    q.options(id="J").dispatch("second")
    q.options(id="J", update_data=False).dispatch("third")
    lease.fail("why")
    clock.run(q, seconds=10)
    assert take(q).data == "second"


def test_every_run_time_said_to_a_blocked_run_has_its_say(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    lease = take(q, 600)
    q.options(id="J", delay=100).dispatch(2)
    q.options(id="J", delay=50, update_run_at="if_earlier").dispatch(3)
    q.options(id="J", delay=70, update_run_at="if_later").dispatch(4)
    lease.release()
    clock.jump(69.999)
    assert q.lease() is None
    clock.jump(0.001)
    assert take(q).data == 4


def test_a_dispatch_that_says_nothing_of_time_keeps_the_backoff(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q").options(jitter="none", min_backoff=60)
    job = q.options(id="J").dispatch(1)
    take(q).fail("why")
    assert job.state() == "delayed"
    q.options(id="J").dispatch(2)
    assert job.state() == "delayed"
    assert q.lease() is None
    q.options(id="J", delay=0).dispatch(3)
    assert take(q).data == 3


def test_the_run_time_a_job_was_given_is_in_its_record(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    job = q.options(run_at=clock.now + 60).dispatch(1)
    info = job.info()
    assert info.run_at is not None
    assert abs(info.run_at.timestamp() - clock.now - 60) < 0.002
    clock.jump(60)
    take(q)
    assert job.info().run_at == info.run_at


@pytest.mark.parametrize(
    "option", ["update_data", "update_options", "reset_counts", "durable", "strict", "unique"]
)
@pytest.mark.parametrize("value", ["false", "true", "", 0, 1, None])
def test_what_only_looks_like_a_flag_is_refused(hive: Hive, option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        hive.queue("q").options(**{option: value})
    assert wrong.value.field == option


# Resends


def test_a_resend_of_a_dispatch_is_known_even_after_its_job_has_ended(hive: Hive) -> None:
    q = hive.queue("q")
    named = hive._core.item(q.options(id="J")._options, (1,), {})
    plain = hive._core.item(q._options, (1,), {})
    assert send(hive, named, plain) == ["made", "made"]
    for _ in range(2):
        assert send(hive, named, plain) == ["made", "made"], "the first answer comes again"
    assert len(drain(q)) == 2
    assert send(hive, named, plain) == ["made", "made"]
    assert q.stats().created == 2
    assert q.lease() is None


def test_a_resend_is_known_after_a_newer_dispatch_of_the_same_id(hive: Hive) -> None:
    q = hive.queue("q").options(id="J")
    old = hive._core.item(q._options, ("old",), {})
    send(hive, old)
    q.dispatch("new")
    send(hive, old)
    assert take(q).data == "new"


def test_a_resend_into_a_fail_lane_is_known_after_the_job_expired_there(
    clock: Clock, hive: Hive
) -> None:
    """Failures of the queue itself tidy its lane, and must not tidy away what others may resend."""
    q, lane = hive.queue("q"), hive.queue("q:fail")
    item = hive._core.item(lane.options(id="J", expires=1)._options, (1,), {})
    commands = hive._core.commands
    hive._run(commands.dispatch("q:fail", [item]))
    clock.jump(5)
    q.dispatch(1)
    take(q).fail("why", permanent=True)
    hive._run(commands.dispatch("q:fail", [item]))
    lane.sweep()
    assert hive.job("q:fail", "J").info().reason == "expired"
    assert [job.failed_job is not None for job in lane.jobs("ready")] == [True]


def test_the_same_failure_sent_twice_makes_one_failure_job(hive: Hive) -> None:
    q, lane = hive.queue("q"), hive.queue("q:fail")
    q.options(id="J").dispatch(1)
    lease = take(q)
    failure = Settle("J", lease.token, "fail", "error", body=b"{}")
    assert exchange(hive, "q", settles=[failure], request="r").settled == ["OK"]
    assert exchange(hive, "q", settles=[failure], request="r").settled == ["DUP"]
    assert exchange(hive, "q", settles=[failure, failure]).settled == ["DUP", "DUP"]
    assert (lane.stats().created, q.stats().failed) == (1, 1)


def test_the_id_of_a_failure_job_follows_from_its_job_and_token(hive: Hive, server: Server) -> None:
    """So that a server which forgot the failure, and hears of it again, makes the same one."""
    q, lane = hive.queue("q"), hive.queue("q:fail")
    q.options(id="J").dispatch(1)
    lease = take(q)
    failure = Settle("J", lease.token, "fail", "error", body=b"{}")
    with server.client() as client:
        saved = {name: client.dump(name) for name in client.scan_iter(f"{hive.prefix}:*")}
        exchange(hive, "q", settles=[failure])
        (first,) = [job.id for job in lane.jobs("ready")]
        client.delete(*client.scan_iter(f"{hive.prefix}:*"))
        for name, value in saved.items():
            client.restore(name, 0, value)
    exchange(hive, "q", settles=[failure])
    assert [job.id for job in lane.jobs("ready")] == [first]


# Batches


def test_a_job_whose_record_is_gone_takes_none_of_its_batch_along(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    for name in ("a", "b", "c"):
        q.options(id=name).dispatch(name)
    with server.client() as client:
        client.hdel(key(hive, "q", "jobs"), "b")
    got = exchange(hive, "q", want=3).leases
    assert [job.id for job in got] == ["a", "c"]
    assert q.stats().anomalies == 1
    settles = [Settle(job.id, job.token, "done") for job in got]
    assert exchange(hive, "q", settles=settles).settled == ["OK", "OK"]


@pytest.mark.parametrize("payload", [b"", b"x", b"j{", b"j{}", b"k[1]", b"j\xff", b"jNaN"])
def test_one_payload_that_nobody_can_read_strands_none_of_its_batch(hive: Hive, payload: bytes) -> None:
    q = hive.queue("q")
    good = [hive._core.item(q._options, (n,), {}) for n in range(2)]
    bad = Item("bad", payload, b"")
    send(hive, good[0], bad, good[1])
    assert drain(q) == [good[0].id, good[1].id]
    info = hive.job("q", "bad").info()
    assert info.state == "failed"
    assert info.error is not None
    assert (info.error.kind, info.error.type) == ("permanent", "BadPayload")
    assert hive.queue("q:fail").stats().ready == 1


def test_a_list_is_one_argument_and_many_items_are_many_jobs_with_an_id_each(hive: Hive) -> None:
    q = hive.queue("q")
    one = q.dispatch([1, 2, 3])
    many = q.dispatch_many([4, [5, 6]])
    assert len({job.id for job in (one, *many)}) == 3
    assert [take(q).data for _ in range(3)] == [[1, 2, 3], 4, [5, 6]]


def test_what_is_due_is_promoted_in_bounded_batches(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q").options(delay=1)
    q.dispatch_many(range(1200))
    clock.jump(2)
    ready = []
    for _ in range(3):
        q.sweep()
        ready.append(q.stats().ready)
    assert ready == [500, 1000, 1200]


# Refusals


def test_a_dispatch_that_the_server_refused_is_no_success(hive: Hive) -> None:
    q = hive.queue("q")
    q.configure(max_depth=1)
    q.dispatch(1)
    with pytest.raises(QueueFull):
        q.dispatch(2)
    assert q.stats().created == 1


@pytest.mark.parametrize(
    "spec",
    [
        b"{",
        b"1",
        b'{"at":-5}',
        b'{"at":1e400}',
        b'{"at":nan}',
        b'{"at":"1"}',
        b'{"at":0.5}',
        b'{"delay":-2}',
        b'{"p":256}',
        b'{"p":-1}',
        b'{"x":1e17}',
        b'{"ur":"sometimes"}',
        b'{"o":1}',
        b'{"q":"a,b"}',
        b'{"y":-2}',
        b'{"m":1.5}',
    ],
)
def test_a_bad_item_is_refused_before_the_first_write_with_all_of_its_batch(
    hive: Hive, server: Server, spec: bytes
) -> None:
    """A script keeps what it wrote before an error, so there is nothing it could take back."""
    hive.queue("q").dispatch(0)
    good = Item("good", b"j[1]", b"")
    with server.client() as client:
        before = dump(client, hive.prefix)
        with pytest.raises(ServerRefused, match="BADARG"):
            send(hive, good, Item("bad", b"j[2]", spec))
        assert dump(client, hive.prefix) == before


@pytest.mark.parametrize("run_at", [-5, -0.001, float("nan"), "", "soon", None])
def test_a_run_time_that_is_none_is_refused_before_anything_is_sent(
    hive: Hive, server: Server, run_at: Any
) -> None:
    q = hive.queue("q")
    with nothing_written(server), pytest.raises(ConfigurationError, match="run_at"):
        q.options(run_at=run_at).dispatch(1)


# Caps


def test_no_reset_of_counters_lifts_the_total_cap_on_attempts(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q").options(max_retries=10**6, max_backoff=0, min_backoff=0)
    q.options(id="J").dispatch(0)
    for attempt in range(1, 101):
        lease = take(q)
        assert lease.tries == attempt
        q.options(id="J", reset_counts=True).dispatch(attempt)
        settle = Settle("J", lease.token, "again", "error", body=b"{}")
        assert exchange(hive, "q", settles=[settle]).settled == ["OK"]
    assert q.stats().failed == 1
    assert hive.queue("q:fail").stats().ready == 1
    newest = hive.job("q", "J").state()
    assert newest == "ready", "what was dispatched while the last attempt ran is a run of its own"
    adds_up(q)


def test_a_resend_of_a_plain_job_that_was_dropped_makes_no_second_one(hive: Hive) -> None:
    item = hive._core.item(PLAIN, (1,), {})
    hive._run(hive._core.commands.dispatch("q", [item]))
    assert hive.job("q", item.id).delete()
    hive._run(hive._core.commands.dispatch("q", [item]))
    assert hive.job("q", item.id).state() == "unknown"
    assert hive.queue("q").stats().ready == 0
