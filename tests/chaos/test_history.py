"""The checker of chaos is fed a bad history for each of its rules, and takes none of them."""

from __future__ import annotations

import pytest

from tests.chaos.history import History, Job, Line, read, violations


def signs(id: str, fence: int, *moments: float, end: bool = True) -> list[Line]:
    """One attempt: a start, beats, and an end unless it was cut short."""
    words = ["start", *["beat"] * (len(moments) - 1)]
    if end:
        words[-1] = "end"
    return [Line(word, id, fence, at) for word, at in zip(words, moments, strict=True)]


def good() -> History:
    return History(
        lines=[
            *signs("a", 1, 1.0, 1.1, end=False),
            *signs("a", 4, 1.2, 1.3),
            *signs("b", 2, 1.0, 1.2),
            *signs("c", 3, 1.0, 1.5),
        ],
        jobs=[Job("a", True, "succeeded", 1), Job("b", False, "succeeded"), Job("c", True, "cancelled")],
        created=3,
        ended=3,
    )


def test_a_good_history_is_taken() -> None:
    assert violations(good()) == []


def lost(history: History) -> None:
    history.jobs.append(Job("d", False, "unknown"))


def active_for_ever(history: History) -> None:
    history.jobs[0].state = "active"


def succeeded_without_an_end(history: History) -> None:
    history.lines = [line for line in history.lines if line.fence != 4 or line.what != "end"]


def overlap(history: History) -> None:
    history.lines.append(Line("beat", "a", 1, 1.25))


def ended_twice(history: History) -> None:
    history.lines.append(Line("end", "b", 2, 1.3))


def never_started(history: History) -> None:
    history.lines.append(Line("beat", "b", 9, 1.3))


def old_lease_after_new(history: History) -> None:
    history.lines += signs("b", 1, 2.0, 2.1)


def charged_too_often(history: History) -> None:
    history.jobs[1].put_back = 2


def stuck(history: History) -> None:
    history.waiting = 1


def wrong_sum(history: History) -> None:
    history.created = 4


def no_failure_job(history: History) -> None:
    history.jobs[2].state, history.failed = "failed", 1


def two_failure_jobs(history: History) -> None:
    history.jobs[2].state, history.failed, history.failure_jobs = "failed", 1, 2


def never_dispatched(history: History) -> None:
    history.lines += signs("z", 8, 1.0, 1.1)


def dead_worker(history: History) -> None:
    history.dead_workers = 1


@pytest.mark.parametrize(
    "spoil",
    [
        lost,
        active_for_ever,
        succeeded_without_an_end,
        overlap,
        ended_twice,
        never_started,
        old_lease_after_new,
        charged_too_often,
        stuck,
        wrong_sum,
        no_failure_job,
        two_failure_jobs,
        never_dispatched,
        dead_worker,
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_bad_history_is_refused_for_one_reason(spoil: object) -> None:
    history = good()
    assert callable(spoil)
    spoil(history)
    assert len(violations(history)) == 1


def test_ids_that_may_overlap_may() -> None:
    history = good()
    history.jobs[0].strict = False
    overlap(history)
    assert violations(history) == []


def test_a_line_that_was_cut_off_is_no_line() -> None:
    text = '{"what": "start", "id": "a", "fence": 1, "at": 1.0, "pid": 2}\n{"what": "e'
    assert read(text) == [Line("start", "a", 1, 1.0, 2)]
