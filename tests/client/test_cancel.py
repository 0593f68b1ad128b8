"""Cancelling: what waits is gone, what runs is killed or asked, and nobody else is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskhive import Hive, JobCancelled
from tests.client.cancel_storm import storm
from tests.servers import until


def test_what_waits_is_gone_at_once(idle: Hive) -> None:
    q = idle.queue("q")
    ready, delayed = q.dispatch(), q.options(delay=60).dispatch()
    for job in (ready, delayed):
        assert job.cancel()
        assert job.state() == "cancelled"
        with pytest.raises(JobCancelled):
            job.result(timeout=30)
        assert not job.cancel()
    first = q.options(id="x").dispatch(1)
    lease = q.lease()
    assert lease is not None
    blocked = q.options(id="x", update_data=True).dispatch(2)
    assert blocked.state() == "blocked"
    assert blocked.cancel()
    lease.ack()
    for job in (first, blocked):
        with pytest.raises(JobCancelled):
            job.result(timeout=30)
    assert q.stats().ready == q.stats().blocked == 0


def test_what_runs_is_killed(hive: Hive, tmp_path: Path) -> None:
    job = hive.queue("stops").dispatch(str(tmp_path))
    until((tmp_path / job.id).exists, "it runs")
    assert hive.queue("stops").cancel(job.id)
    with pytest.raises(JobCancelled) as caught:
        job.result(timeout=30)
    assert (caught.value.kind, caught.value.job_id) == ("cancelled", job.id)
    assert hive.queue("add").dispatch(1, 2).result(timeout=30) == 3


def test_a_cooperative_cancel_asks_and_what_is_answered_stands(hive: Hive, tmp_path: Path) -> None:
    job = hive.queue("stops").dispatch(str(tmp_path))
    until((tmp_path / job.id).exists, "it runs")
    assert job.cancel(cooperative=True)
    assert job.result(timeout=30) == "asked"
    assert job.state() == "succeeded"


def test_a_cancel_with_a_grace_asks_first(hive: Hive, tmp_path: Path) -> None:
    job = hive.queue("stops").dispatch(str(tmp_path))
    until((tmp_path / job.id).exists, "it runs")
    assert job.cancel(grace=0.05)
    with pytest.raises(JobCancelled):
        job.result(timeout=30)


def test_a_storm_of_cancels_hits_nobody_else(hive: Hive) -> None:
    told = storm(hive, 400)
    assert told["spared"] == 400
    assert told["cancelled"] + told["killed"] + told["late"] == 400
    assert told["cancelled"] > 0
    assert told["killed"] > 0


def test_joining_changes_nothing_and_waits_for_what_is_there(idle: Hive) -> None:
    q = idle.queue("q")
    first = q.options(id="x").dispatch("first")
    joined = q.options(id="x", on_conflict="join").dispatch("second")
    assert (first.created, joined.created) == (True, False)
    assert joined.info().args == ("first",)
    lease = q.lease()
    assert lease is not None
    while_it_runs = q.options(id="x", on_conflict="join").dispatch("third")
    assert while_it_runs.state() == "active"
    lease.ack("done")
    assert [job.result(timeout=30) for job in (first, joined, while_it_runs)] == ["done"] * 3
    assert q.lease() is None
    again = q.options(id="x", on_conflict="join").dispatch("fourth")
    assert again.created  # an ended one is not there


def test_updating_changes_what_waits(idle: Hive) -> None:
    q = idle.queue("q")
    q.options(id="x").dispatch("first")
    updated = q.options(id="x", on_conflict="update", update_data=True).dispatch("second")
    assert updated.info().args == ("second",)
    assert q.stats().ready == 1


def test_equal_arguments_are_one_job_while_it_waits_or_runs(idle: Hive) -> None:
    q = idle.queue("q").options(unique=True)
    first = q.dispatch({"b": 1, "a": 2}, x=1)
    same = q.dispatch({"a": 2, "b": 1}, x=1)
    other = q.dispatch({"a": 2, "b": 1}, x=2)
    assert first.id == same.id != other.id
    assert [job.created for job in (first, same, other)] == [True, False, True]
    lease = q.lease()
    assert lease is not None
    assert not q.dispatch({"a": 2, "b": 1}, x=1).created
    lease.ack(os.getpid())
    assert same.result(timeout=30) == os.getpid()
    assert q.dispatch({"b": 1, "a": 2}, x=1).created
