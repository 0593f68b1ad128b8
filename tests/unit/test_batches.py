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
        ([0.0005] * 50, 51),
        ([0.0045] * 50, 7),
        ([0.0085] * 50, 4),
        ([0.0105] * 50, 1),
        ([5.0] * 5, 1),
    ],
)
def test_what_waits_in_a_child_is_over_in_a_moment(walls: list[float], size: int) -> None:
    made = tally(*walls)
    assert batches.size(made, "process") == size
    waiting = (size - 1) * (made.mean or 0.0)
    assert waiting <= 1.5 * batches.SECONDS


@pytest.mark.parametrize("isolation", ["fresh", "thread"])
def test_only_attempts_of_pooled_children_wait_in_them(isolation: str) -> None:
    assert batches.size(tally(*[0.001] * 50), isolation) == 1


def test_no_short_one_is_sent_behind_one_that_may_be_long() -> None:
    made = tally(*[0.001] * 50, 0.2)
    assert batches.size(made, "process") == 1
    for _ in range(200):
        made.add(0.001, 0)
    assert batches.size(made, "process") > 1


def test_ends_wait_for_others_while_no_child_is_about_to_run_out() -> None:
    made = tally(*[0.005] * 50)
    assert 0 < batches.patience(made, 0.005) < 0.005
    assert batches.patience(made, 1.0) <= batches.SECONDS
    assert batches.patience(made, 0.0) == batches.patience(made, batches.ASKING) == 0.0


def test_the_ends_of_very_short_attempts_wait_for_nothing_more() -> None:
    assert batches.patience(tally(*[0.0001] * 50), 0.01) == 0.0
