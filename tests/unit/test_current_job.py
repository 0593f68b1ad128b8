"""What a handler says about itself: often, cheaply, and the last of it is never lost."""

from __future__ import annotations

from typing import Any

import pytest

from taskhive import NoCurrentJob, current_job
from taskhive.context import CurrentJob
from tests.servers import until


def job(said: list[dict[str, Any]], **more: Any) -> CurrentJob:
    return CurrentJob("id", "queue", 1, 1, _tell=said.append, **more)


def test_the_first_progress_is_said_at_once_and_a_flood_is_held_back() -> None:
    said: list[dict[str, Any]] = []
    mine = job(said)
    for done in range(10_000):
        mine.progress(done, total=10_000, note="x")
    assert said[0] == {"done": 0, "total": 10_000, "note": "x"}
    assert len(said) < 100
    mine.flush()
    assert said[-1]["done"] == 9_999


def test_the_last_of_a_burst_is_said_though_nothing_follows() -> None:
    said: list[dict[str, Any]] = []
    mine = job(said)
    for done in range(5):
        mine.progress(done)
    until(lambda: said[-1]["done"] == 4, "the last one is said")
    assert len(said) == 2


def test_nothing_is_said_after_the_end() -> None:
    said: list[dict[str, Any]] = []
    mine = job(said)
    mine.progress(1)
    mine.progress(2)
    mine.flush()
    assert [one["done"] for one in said] == [1, 2]
    mine.progress(3)
    mine._say()
    assert [one["done"] for one in said] == [1, 2]


def test_tracking_counts_what_is_done_and_knows_the_total() -> None:
    said: list[dict[str, Any]] = []
    mine = job(said)
    assert list(mine.track(["a", "b", "c"])) == ["a", "b", "c"]
    assert said[0] == {"done": 1, "total": 3, "note": None}
    mine.flush()
    assert said[-1]["done"] == 3
    assert list(job([]).track(iter("ab"), total=2)) == ["a", "b"]


def test_a_note_that_is_no_json_is_told_to_who_gave_it() -> None:
    def tell(progress: dict[str, Any]) -> None:
        if progress["note"] is not None:
            raise TypeError("a note of JSON")

    mine = CurrentJob("id", "queue", 1, 1, _tell=tell)
    with pytest.raises(TypeError):
        mine.progress(1, note=object())
    mine.progress(2)
    mine.progress(3, note=object())
    until(lambda: mine._problem is not None, "the note was tried")
    mine._next = 0.0
    with pytest.raises(TypeError):
        mine.progress(4)


def test_there_is_no_current_job_where_no_handler_runs() -> None:
    with pytest.raises(NoCurrentJob):
        current_job()
