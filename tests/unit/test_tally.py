"""What is known of a handler's attempts."""

from __future__ import annotations

from taskhive.tally import KEPT, Tally


def test_nothing_is_known_before_the_first() -> None:
    tally = Tally()
    assert (tally.mean, tally.p95, tally.peak) == (None, None, 0)


def test_a_slow_first_attempt_does_not_make_a_handler_slow() -> None:
    tally = Tally()
    tally.add(0.5, 9)
    assert tally.p95 == 0.5
    for _ in range(4):
        tally.add(0.01, 7)
    assert tally.p95 == 0.01
    assert tally.peak == 9


def test_one_slow_attempt_in_a_hundred_does_not_count_ten_do() -> None:
    tally = Tally()
    for turn in range(KEPT):
        tally.add(5.0 if turn == 64 else 0.01, 1)
    assert tally.p95 == 0.01
    for turn in range(KEPT):
        tally.add(5.0 if turn % 10 == 0 else 0.01, 1)
    assert tally.p95 == 5.0


def test_a_handler_that_changed_is_known_anew() -> None:
    tally = Tally()
    for _ in range(1000):
        tally.add(5.0, 100)
    assert (tally.p95, tally.peak) == (5.0, 100)
    for _ in range(KEPT):
        tally.add(0.01, 1)
    assert (tally.p95, tally.peak) == (0.01, 1)
    assert tally.mean is not None
    assert tally.mean < 0.02


def test_the_longest_attempt_is_forgotten_after_a_few_hundred() -> None:
    tally = Tally()
    tally.add(10.0, 0)
    for _ in range(100):
        tally.add(0.0001, 0)
    assert tally.worst > 1.0
    for _ in range(300):
        tally.add(0.0001, 0)
    assert tally.worst < 0.02
