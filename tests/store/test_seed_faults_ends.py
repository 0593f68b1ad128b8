"""Faults of earlier job queues in how jobs end: failure, retry, cancellation; none may come back."""

from __future__ import annotations

from typing import Any

import pytest

from taskhive import Hive, LeaseLost
from taskhive.parcels import Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import adds_up, drain, exchange, take

# Failure


def test_a_failure_is_kept_and_tells_a_failure_job_though_nobody_handles_it(hive: Hive) -> None:
    q, lane = hive.queue("q"), hive.queue("q:fail")
    job = q.options(id="J").dispatch("a", n=1)
    take(q).fail("why", permanent=True)
    assert job.state() == "failed"
    info = job.info()
    assert (info.args, info.kwargs["n"]) == (("a",), 1)
    assert [dead.id for dead in q.dead.jobs()] == ["J"]
    failure = take(lane)
    assert (failure.args, failure.kwargs) == (("a",), {"n": 1})
    told = hive.job("q:fail", failure.id).info()
    assert told.failed_job == "J"
    assert info.failure_job == failure.id
    assert told.error is not None
    assert told.error.message == "why"


def test_a_failure_and_its_failure_job_come_in_one_step(hive: Hive, server: Server) -> None:
    """Added and acknowledged in two, a dead letter is there twice or not at all."""
    q = hive.queue("q")
    q.dispatch(1)
    lease = take(q)
    with server.client() as client:
        before = _calls(client)
        lease.fail("why", permanent=True)
        assert _calls(client) - before == 1
    assert (q.stats().active, q.stats().dead, hive.queue("q:fail").stats().ready) == (0, 1, 1)


def _calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{word}", {"calls": 0})["calls"] for word in ("eval", "evalsha"))


def test_a_failure_job_that_fails_ends_in_its_own_lane_and_makes_no_third(hive: Hive) -> None:
    q, lane = hive.queue("q"), hive.queue("q:fail")
    q.dispatch(1)
    take(q).fail("why", permanent=True)
    take(lane).fail("nor that", permanent=True)
    assert (lane.stats().failed, lane.stats().ready) == (1, 0)
    assert hive.queues() == ["q"]
    adds_up(lane)


def test_a_failure_job_that_is_retried_still_says_what_it_is_about(hive: Hive) -> None:
    q, lane = hive.queue("q"), hive.queue("q:fail")
    q.options(id="J").dispatch(1)
    take(q).fail("why", permanent=True)
    lease = take(lane)
    lease.fail("nor that", permanent=True)
    assert lane.dead.retry(lease.id)
    told = hive.job("q:fail", take(lane).id).info()
    assert told.failed_job == "J"
    assert told.error is not None
    assert told.error.message == "why"


def test_without_anybody_to_handle_failures_retries_come_to_an_end(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q").options(max_retries=2)
    job = q.dispatch(1)
    for _ in range(3):
        take(q).fail("why")
        clock.jump(300)
    assert q.lease() is None
    assert job.state() == "failed"
    assert job.info().counts.retries == 2


def test_a_failed_attempt_does_not_wait_for_its_lease_to_run_out(hive: Hive) -> None:
    q = hive.queue("q").options(max_backoff=0, min_backoff=0)
    q.dispatch(1)
    take(q, 3600).fail("why")
    again = take(q, 3600)
    assert again.counts.retries == 1
    again.release()
    assert take(q).counts.retries == 1, "a release is not counted"


def test_the_last_failure_of_a_job_removes_that_job_and_no_other(hive: Hive) -> None:
    q = hive.queue("q").options(max_retries=0)
    for name in ("head", "doomed", "tail"):
        q.options(id=name).dispatch(name)
    head = take(q)
    take(q).fail("why")
    assert hive.job("q", "doomed").state() == "failed"
    head.ack()
    assert drain(q) == ["tail"]


@pytest.mark.parametrize("why", [None, "", 0, Exception(), "\x00\ud800", "x" * 100_000])
def test_whatever_a_failure_is_said_to_be_it_is_one(hive: Hive, why: Any) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    take(q).fail(why, permanent=True)
    info = job.info()
    assert info.state == "failed"
    assert info.error is not None
    assert len(info.error.message) <= 16 * 1024


def test_an_exception_without_a_text_is_a_failure_all_the_same(hive: Hive) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    q = hive.queue("q")
    job = q.dispatch(1)
    take(q).fail(Mute(), permanent=True)
    error = job.info().error
    assert error is not None
    assert error.type == "Mute"


@pytest.mark.parametrize(
    ("kind", "counter"),
    [
        ("error", "retries"),
        ("timeout", "timeouts"),
        ("cpu", "timeouts"),
        ("memory", "timeouts"),
        ("crash", "crashes"),
        ("stall", "stalls"),
    ],
)
def test_each_cause_has_its_own_counter(hive: Hive, kind: str, counter: str) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    lease = take(q)
    exchange(hive, "q", settles=[Settle("J", lease.token, "again", kind, body=b"{}")])
    counts = take(q).counts
    found = {name: getattr(counts, name) for name in ("retries", "timeouts", "crashes", "stalls")}
    assert found == {**dict.fromkeys(found, 0), counter: 1}


def test_a_delivery_that_was_given_back_is_held_against_nobody(hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    for _ in range(3):
        (job,) = exchange(hive, "q", want=1).leases
        back = Settle("J", job.token, "release", delay_ms=-1)
        assert exchange(hive, "q", settles=[back]).settled == ["OK"]
    lease = take(q)
    assert (lease.tries, lease.counts.retries, lease.counts.stalls) == (1, 0, 0)


def test_a_job_that_runs_for_long_is_nobody_elses_while_its_lease_is_renewed(
    clock: Clock, hive: Hive
) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    lease = take(q)
    for _ in range(100):
        clock.jump(10)
        lease.extend(30)
        assert q.lease() is None
    lease.ack()
    assert q.stats().succeeded == 1


def test_the_visibility_asked_for_holds_also_for_who_had_to_wait(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.options(delay=0.001).dispatch(1)
    clock.jump(0.001)
    lease = q.lease(visibility=300, wait=5)
    assert lease is not None
    clock.run(q, seconds=299)
    lease.ack()


# Cancellation


def test_a_cancel_drops_the_blocked_run_and_marks_the_running_one(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    running = q.options(id="J").dispatch(1)
    lease = take(q)
    blocked = q.options(id="J").dispatch(2)
    assert q.cancel("J") is True
    assert blocked.state() == "active", "it ends with the run in its way"
    lease.extend(30)
    assert lease.cancelled
    lease.ack("too late")
    assert (running.state(), blocked.state()) == ("cancelled", "cancelled")
    assert running.info().result is None
    assert q.lease() is None
    adds_up(q)


def test_a_cancelled_job_never_starts_again(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    lease = take(q)
    assert job.cancel() is True
    clock.run(q, seconds=31)
    assert q.sweep() == ["J"]
    clock.run(q, seconds=600)
    assert q.lease() is None
    assert job.state() == "cancelled"
    with pytest.raises(LeaseLost):
        lease.ack()


@pytest.mark.parametrize("end", ["ack", "fail", "fail for good", "release"])
def test_behind_the_mark_every_end_is_a_cancellation(hive: Hive, end: str) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    lease = take(q)
    job.cancel()
    match end:
        case "ack":
            lease.ack("result")
        case "fail":
            lease.fail("why")
        case "fail for good":
            lease.fail("why", permanent=True)
        case "release":
            lease.release()
    assert job.state() == "cancelled"
    assert hive.queue("q:fail").stats().created == 0
    adds_up(q)


def test_an_end_before_the_mark_stands(hive: Hive) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    take(q).ack("in time")
    assert job.cancel() is False
    assert job.info().result == "in time"


def test_a_cancel_of_a_waiting_job_is_told_apart_from_one_of_none(hive: Hive) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    assert job.cancel() is True
    assert job.cancel() is False
    assert q.cancel("nobody") is False
    assert q.stats().cancelled == 1


# The scripts themselves


def test_a_server_that_forgot_every_script_is_told_them_again(hive: Hive, server: Server) -> None:
    q = hive.queue("q")
    with server.client() as client:
        for number in range(3):
            q.dispatch(number)
            client.script_flush()
            lease = take(q)
            client.script_flush()
            lease.ack(number)
    assert q.stats().succeeded == 3
