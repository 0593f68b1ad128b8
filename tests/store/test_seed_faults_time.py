"""Faults of earlier job queues that trusted a clock; none may come back."""

from __future__ import annotations

import time

import pytest

from taskhive import Hive
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import take


@pytest.mark.parametrize("off", [3600, -3600])
def test_a_client_whose_clock_is_wrong_by_an_hour_does_no_harm(
    hive: Hive, monkeypatch: pytest.MonkeyPatch, off: int
) -> None:
    real, real_ns = time.time, time.time_ns
    q = hive.queue("q")
    healthy_job = q.options(id="healthy").dispatch(1)
    healthy = take(q)
    monkeypatch.setattr(time, "time", lambda: real() + off)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + off * 10**9)
    later = q.options(id="later", delay=3600).dispatch(1)
    now = q.options(id="now").dispatch(1)
    lease = take(q)
    assert lease.id == "now"
    assert q.sweep() == []
    assert q.lease() is None
    lease.ack()
    healthy.ack()
    assert (now.state(), later.state(), healthy_job.state()) == ("succeeded", "delayed", "succeeded")


def test_a_lease_is_not_born_lapsed_when_the_servers_clock_goes_back(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    q.sweep()
    clock.jump(-60)
    first = take(q)
    assert q.lease() is None
    clock.jump(30)
    assert q.sweep() == []
    first.ack("once")
    assert hive.job("q", "J").info().result == "once"


def test_healthy_holders_keep_their_jobs_when_the_servers_clock_leaps(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    lease = take(q)
    clock.jump(3600)
    assert q.sweep() == []
    lease.extend(30)
    clock.jump(10)
    lease.ack("well")
    assert hive.job("q", "J").info().counts.stalls == 0


def test_the_grace_after_a_gap_is_given_once(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    take(q)
    for swept in ([], ["J"]):
        clock.jump(3600)
        assert q.sweep() == swept


def test_a_failure_job_waits_for_no_time_at_all_when_the_servers_clock_has_gone_back(
    clock: Clock, hive: Hive
) -> None:
    """It was made by the clock of its queue, which never goes back; its lane was not called yet."""
    hive.queue("q").dispatch(1)
    take(hive.queue("q")).fail("why", permanent=True)
    clock.jump(-60)
    stats = hive.queue("q:fail").stats()
    assert (stats.ready, stats.oldest_wait) == (1, 0.0)
