"""Faults of earlier job queues that had to do with who holds a job; each must not come back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from taskhive import Hive, LeaseLost
from taskhive.parcels import Renewal, Settle
from tests.servers import Server
from tests.store.clock import Clock, clock_fixture  # noqa: F401
from tests.store.hands import adds_up, drain, dump, exchange, key, take


def test_a_dispatch_while_the_job_runs_is_not_handed_to_a_second_holder(hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    first = take(q)
    q.options(id="J").dispatch(2)
    assert q.lease() is None
    first.ack("one")
    second = take(q)
    assert (second.id, second.data) == ("J", 2)


@pytest.mark.parametrize("update", [True, False, "if_later", "if_earlier"])
def test_the_end_of_the_running_one_always_unblocks(
    clock: Clock, hive: Hive, update: bool | str
) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    first = take(q)
    later = clock.now + 60
    blocked = q.options(id="J", run_at=later, update_run_at=update).dispatch(2)
    assert blocked.state() == "blocked"
    first.ack()
    assert blocked.state() == "delayed"
    clock.jump(61)
    assert drain(q) == ["J"]
    assert blocked.state() == "succeeded"


@pytest.mark.parametrize("end", ["ack", "fail", "fail for good", "release", "lapse", "cancel"])
def test_no_way_to_end_an_attempt_leaves_the_blocked_dispatch_behind(
    clock: Clock, hive: Hive, end: str
) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    lease = take(q)
    q.options(id="J").dispatch(2)
    match end:
        case "ack":
            lease.ack()
        case "fail":
            lease.fail("why")
        case "fail for good":
            lease.fail("why", permanent=True)
        case "release":
            lease.release()
        case "lapse":
            clock.run(q, seconds=31)
        case "cancel":
            assert exchange(hive, "q", settles=[Settle("J", lease.token, "cancelled")]).settled == ["OK"]
    clock.run(q, seconds=400)
    again = take(q)
    assert (again.id, again.data) == ("J", 2)
    again.ack()
    stats = q.stats()
    assert (stats.ready, stats.delayed, stats.blocked, stats.active) == (0, 0, 0, 0)
    adds_up(q)


@pytest.mark.parametrize("late", ["ack", "fail", "fail for good", "release", "extend"])
def test_a_late_holder_changes_no_byte_of_the_new_ones_job(
    clock: Clock, hive: Hive, server: Server, late: str
) -> None:
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    old = take(q)
    clock.run(q, seconds=31)
    q.sweep()
    clock.run(q, seconds=2.1)
    new = take(q)
    assert new.id == "J"
    assert new.token != old.token
    with server.client() as client:
        before = dump(client, hive.prefix)
        settles: dict[str, Callable[[], None]] = {
            "ack": partial(old.ack, "late"),
            "fail": partial(old.fail, "late"),
            "fail for good": partial(old.fail, "late", permanent=True),
            "release": old.release,
            "extend": partial(old.extend, 60),
        }
        with pytest.raises(LeaseLost) as lost:
            settles[late]()
        after = dump(client, hive.prefix)
    assert (lost.value.queue, lost.value.job_id, lost.value.token) == ("q", "J", old.token)
    meta = key(hive, "q", "meta").encode()
    for words in (before, after):
        words[meta].pop(b"stale", None)  # refused settles are counted, and nothing else is
    assert after == before
    q.options(id="J").dispatch(2)
    assert q.lease() is None, "the new holder's lease is gone"
    new.ack("in time")
    assert hive.queue("q:fail").stats().created == 0


def test_a_stale_settle_is_counted(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.dispatch(1)
    old = take(q)
    clock.run(q, seconds=31)
    with pytest.raises(LeaseLost):
        old.ack()
    assert q.stats().stale == 1


@pytest.mark.parametrize("missing", ["jobs", "leases", "both"])
def test_a_running_job_without_its_record_stops_nobody_else(
    clock: Clock, hive: Hive, server: Server, missing: str
) -> None:
    q = hive.queue("q")
    for name in ("J", "A", "B"):
        q.options(id=name).dispatch(name)
    leases = {name: take(q) for name in ("J", "A", "B")}
    with server.client() as client:
        for part in ("jobs", "leases") if missing == "both" else (missing,):
            client.hdel(key(hive, "q", part), "J")
    q.options(id="C").dispatch("C")
    clock.run(q, seconds=31)
    q.sweep()
    clock.run(q, seconds=10)
    left = {"A", "B", "C"} | ({"J"} if missing == "leases" else set())
    assert set(drain(q)) == left
    assert q.stats().active == 0
    assert q.stats().anomalies >= 1
    for name in ("A", "B", "J"):
        with pytest.raises(LeaseLost):
            leases[name].ack()


def test_a_renewal_answers_for_its_own_lease_and_not_for_the_worker(clock: Clock, hive: Hive) -> None:
    """A worker that lost its jobs while it slept must hear so, however busily it polls again."""
    q = hive.queue("q")
    q.dispatch_many([1, 2])
    mine = exchange(hive, "q", want=2, worker="sleeper").leases
    kept, lost = mine
    for _ in range(4):
        clock.jump(10)
        exchange(hive, "q", worker="other", renewals=[Renewal(kept.id, kept.token)])
    assert exchange(hive, "q", want=5, worker="sleeper").leases[0].id == lost.id
    answers = exchange(
        hive, "q", worker="sleeper", renewals=[Renewal(job.id, job.token) for job in (kept, lost)]
    )
    assert answers.renewed == [1, 0]


def test_a_renewal_of_one_lease_keeps_no_other_one_alive(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    q.options(id="A").dispatch(1)
    q.options(id="B").dispatch(2)
    a, b = take(q), take(q)
    clock.jump(10)
    a.extend(60)
    clock.run(q, seconds=21)
    assert q.sweep() == ["B"]
    a.ack()
    with pytest.raises(LeaseLost):
        b.ack()


def test_a_job_whose_delivery_was_lost_is_handed_out_again_at_the_same_request(hive: Hive) -> None:
    q = hive.queue("q")
    q.dispatch_many([1, 2, 3])
    lost = exchange(hive, "q", want=2, request="r1").leases
    again = exchange(hive, "q", want=2, request="r1").leases
    assert [(job.id, job.token) for job in again] == [(job.id, job.token) for job in lost]
    assert q.stats().active == 2


def test_a_job_whose_delivery_was_lost_comes_back_although_its_worker_lives_and_polls(
    clock: Clock, hive: Hive
) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    assert len(exchange(hive, "q", want=1, request="lost").leases) == 1
    for _ in range(3):
        clock.jump(10)
        got = exchange(hive, "q", want=1, request=None).leases
    assert [one.id for one in got] == ["J"]
    assert got[0].counts.stalls == 0, "nobody had started it"
    assert got[0].attempts == 0
    assert job.state() == "active"


def test_a_lost_delivery_is_given_up_only_after_twenty(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    for _ in range(21):
        assert len(exchange(hive, "q", want=1).leases) == 1
        clock.run(q, seconds=31)
    assert job.state() == "active"
    q.sweep()
    assert job.state() == "failed"
    error = job.info().error
    assert error is not None
    assert error.kind == "stall"


def test_the_healthy_jobs_of_a_dead_worker_are_not_charged_for_the_one_that_killed_it(
    clock: Clock, hive: Hive
) -> None:
    """Only what had started stalls; the four behind it in the same worker were nobody's fault."""
    q = hive.queue("q").options(max_stalls=1)
    for name in ("poison", "a", "b", "c", "d"):
        q.options(id=name).dispatch(name)
    for _ in range(2):
        taken = exchange(hive, "q", want=5, worker="doomed").leases
        assert len(taken) == 5
        poison = next(job for job in taken if job.id == "poison")
        exchange(hive, "q", worker="doomed", renewals=[Renewal(poison.id, poison.token, True)])
        clock.run(q, seconds=31)
        q.sweep()
        clock.run(q, seconds=5)
    assert hive.job("q", "poison").state() == "failed"
    assert sorted(drain(q)) == ["a", "b", "c", "d"]
    assert all(hive.job("q", name).info().counts.stalls == 0 for name in "abcd")


def test_a_job_that_kills_whoever_runs_it_is_given_up_after_its_stalls(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q").options(max_stalls=3)
    job = q.options(id="J").dispatch(1)
    for stalls in range(4):
        assert take(q).counts.stalls == stalls
        clock.run(q, seconds=31)
        q.sweep()
        clock.run(q, seconds=20)
    assert job.state() == "failed"
    assert q.lease() is None
    info = job.info()
    assert info.counts.stalls == 3
    assert info.error is not None
    assert info.error.kind == "stall"


def test_a_stalled_job_waits_out_a_backoff_that_grows(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    for pause in (2, 4, 8):
        take(q)
        clock.run(q, seconds=30)
        assert q.sweep() == ["J"]
        assert job.state() == "delayed"
        clock.run(q, seconds=pause - 0.001)
        assert q.lease() is None
        clock.jump(0.001)


def test_all_that_lapsed_is_swept_in_batches_of_jobs_and_not_of_workers(
    clock: Clock, hive: Hive
) -> None:
    q = hive.queue("q")
    q.dispatch_many(range(250))
    for worker in range(125):
        assert len(exchange(hive, "q", want=2, worker=f"w{worker}").leases) == 2
    clock.run(q, seconds=29.9)
    q.sweep()
    clock.jump(0.1)
    sizes = [len(q.sweep()), len(q.sweep()), len(q.sweep()), len(q.sweep())]
    assert sizes == [100, 100, 50, 0]


def test_sweeping_one_dead_holders_job_leaves_the_healthy_holders_alone(
    clock: Clock, hive: Hive
) -> None:
    q = hive.queue("q")
    q.options(id="dead").dispatch(1)
    q.options(id="alive").dispatch(2)
    take(q)
    alive = take(q)
    clock.run(q, seconds=20)
    alive.extend(30)
    clock.run(q, seconds=11)
    assert q.sweep() == ["dead"]
    alive.ack("well")
    assert hive.job("q", "alive").info().result == "well"


def test_a_late_settle_after_the_new_holder_finished_breaks_nothing(clock: Clock, hive: Hive) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    old = take(q)
    clock.run(q, seconds=31)
    q.sweep()
    clock.run(q, seconds=3)
    take(q).ack("new")
    with pytest.raises(LeaseLost):
        old.fail("late")
    assert job.state() == "succeeded"
    assert job.info().result == "new"
    assert q.stats().active == 0
    adds_up(q)


def test_a_token_whose_number_comes_again_after_lost_data_is_still_no_other_holders(
    hive: Hive, server: Server
) -> None:
    """The server forgets the last second: the counter repeats, the whole token does not."""
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    with server.client() as client:
        names = list(client.scan_iter(f"{hive.prefix}:*"))
        saved = {name: client.dump(name) for name in names}
        old = take(q)
        client.delete(*client.scan_iter(f"{hive.prefix}:*"))
        for name, value in saved.items():
            client.restore(name, 0, value)
    new = take(q)
    assert new.token.split(".")[0] == old.token.split(".")[0]
    with pytest.raises(LeaseLost):
        old.ack("old")
    new.ack("new")
    assert hive.job("q", "J").info().result == "new"


def test_each_settle_counts_once_and_the_same_one_again_is_known(hive: Hive) -> None:
    q = hive.queue("q")
    job = q.options(id="J").dispatch(1)
    lease = take(q)
    done = Settle("J", lease.token, "done", body=b"j1")
    assert exchange(hive, "q", settles=[done]).settled == ["OK"]
    assert exchange(hive, "q", settles=[done]).settled == ["DUP"]
    assert exchange(hive, "q", settles=[Settle("J", lease.token, "fail", "error")]).settled == ["STALE"]
    assert job.state() == "succeeded"
    assert (q.stats().succeeded, q.stats().duplicates, q.stats().stale) == (1, 1, 1)


@pytest.mark.parametrize("late", ["ack", "fail", "release", "extend"])
def test_by_hand_a_lapse_is_final_though_nobody_else_has_looked(
    clock: Clock, hive: Hive, late: str
) -> None:
    q = hive.queue("q")
    job = q.dispatch(1)
    lease = take(q, 30)
    clock.run(q, seconds=31)
    arguments: dict[str, list[Any]] = {"fail": ["late"], "extend": [30]}
    with pytest.raises(LeaseLost):
        getattr(lease, late)(*arguments.get(late, []))
    assert job.state() == "delayed"
    assert job.info().counts.stalls == 1


def test_a_token_offered_for_another_job_first_is_stale_there_and_settles_its_own(hive: Hive) -> None:
    """Both in one call: what is settled together must answer as if one came behind the other."""
    q = hive.queue("q")
    q.options(id="J").dispatch(1)
    token = exchange(hive, "q", want=1).leases[0].token
    offers = [Settle("other", token, "done"), Settle("J", token, "done"), Settle("J", token, "done")]
    assert exchange(hive, "q", settles=offers[:2]).settled == ["STALE", "OK"]
    assert exchange(hive, "q", settles=offers[2:]).settled == ["DUP"]
