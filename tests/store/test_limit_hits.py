"""Which limit was hit how often: what the budget of the next attempt is reckoned from."""

from __future__ import annotations

from taskhive import Hive
from taskhive.jobs import LimitHits
from taskhive.parcels import Leased, Settle
from tests.store.hands import exchange


def again(hive: Hive, leased: Leased, kind: str) -> Leased:
    """Put back for a reason, and taken again."""
    settles = [Settle(leased.id, leased.token, "again", kind)]
    (leased,) = exchange(hive, "q", want=1, settles=settles).leases
    return leased


def test_each_limit_is_counted_by_itself_and_all_as_timeouts(hive: Hive) -> None:
    hive.queue("q").dispatch(1)
    (leased,) = exchange(hive, "q", want=1).leases
    assert leased.limit_hits == LimitHits()
    for kind in ("memory", "timeout", "memory", "cpu", "memory", "error", "crash"):
        leased = again(hive, leased, kind)
    assert leased.limit_hits == LimitHits(timeout=1, cpu=1, memory=3)
    assert (leased.counts.timeouts, leased.counts.retries, leased.counts.crashes) == (5, 1, 1)


def test_they_are_reset_with_the_counters(hive: Hive) -> None:
    q = hive.queue("q").options(id="x")
    q.dispatch(1)
    (leased,) = exchange(hive, "q", want=1).leases
    leased = again(hive, leased, "memory")
    q.options(reset_counts=True).dispatch(2)
    leased = again(hive, leased, "cpu")
    assert (leased.limit_hits, leased.counts.timeouts) == (LimitHits(), 0)
    leased = again(hive, leased, "timeout")
    exchange(hive, "q", settles=[Settle("x", leased.token, "release")])
    q.options(reset_counts=True).dispatch(3)
    (leased,) = exchange(hive, "q", want=1).leases
    assert leased.limit_hits == LimitHits()


def test_a_dead_letter_that_is_retried_begins_with_none(hive: Hive) -> None:
    job = hive.queue("q").dispatch(1)
    (leased,) = exchange(hive, "q", want=1).leases
    leased = again(hive, leased, "memory")
    exchange(hive, "q", settles=[Settle(job.id, leased.token, "fail", "memory")])
    assert hive.queue("q").dead.retry(job.id)
    (leased,) = exchange(hive, "q", want=1).leases
    assert leased.limit_hits == LimitHits()
