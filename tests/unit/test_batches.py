"""How many short attempts travel together, and how long their ends wait."""

from __future__ import annotations

import pytest

from taskhive import batches
from taskhive.tally import Tally


def tally(*walls: float) -> Tally:
    made = Tally()
    for wall in walls:
        made.add(wall, 0)
    return made


@pytest.mark.parametrize(
    ("walls", "size"),
    [
        ([], 1),
        ([0.00002] * 50, batches.MOST),
        ([0.0005] * 50, 21),
        ([0.0045] * 50, 3),
        ([0.0085] * 50, 2),
        ([0.0105] * 50, 1),
        ([5.0] * 5, 1),
    ],
)
def test_what_waits_in_a_child_is_over_in_a_moment(walls: list[float], size: int) -> None:
    made = tally(*walls)
    assert batches.size(made, "process") == size
    waiting = (size - 1) * (made.mean or 0.0)
    assert waiting <= batches.SECONDS


@pytest.mark.parametrize("isolation", ["fresh", "thread"])
def test_only_attempts_of_pooled_children_wait_in_them(isolation: str) -> None:
    assert batches.size(tally(*[0.001] * 50), isolation) == 1


def test_no_short_one_is_sent_behind_one_that_may_be_long() -> None:
    made = tally(*[0.001] * 50, 0.2)
    assert batches.size(made, "process") == 1
    for _ in range(200):
        made.add(0.001, 0)
    assert batches.size(made, "process") > 1


def test_ends_wait_for_others_less_than_what_waits_in_a_child_lasts() -> None:
    for wall in (0.00005, 0.001, 0.005, 0.009):
        made = tally(*[wall] * 50)
        patience = batches.patience(made, batches.size(made, "process"))
        assert 0 < patience <= wall / 2 + 1e-9
    assert batches.patience(tally(1.0), 1) == 0.0
