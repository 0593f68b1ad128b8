"""Whether a limit is passed, and when to look again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskhive import limits
from taskhive.limits import MIB, Budget, Confirm, LookAgain, Passed, Watch, confirm, judge
from taskhive.meter import NOTHING, Shares, Tree

BASE = Tree(1, 3.0, 0.0, 80 * MIB, 60 * MIB, 60 * MIB)


def alone(charged: int, cpu: float = 0.0) -> Tree:
    """A child that took so much above what it had from the zygote."""
    return Tree(1, 3.0 + cpu, 0.0, 80 * MIB + charged, 60 * MIB + charged, 60 * MIB + charged)


def forked(each: int, processes: int) -> Tree:
    return Tree(
        processes,
        3.0,
        0.0,
        processes * (80 * MIB + each),
        processes * (60 * MIB + each),
        60 * MIB + each,
    )


def peak_when_killed(limit: int, rate: float, starts_at: float, reaction: float) -> float:
    """Bytes that a tree has which grows from some moment on, when its kill takes effect."""
    budget, watch, now = Budget(memory=limit), Watch(BASE), 0.0
    after = limits.first_look(budget, 2.0)
    for _ in itertools.count():
        now += after
        size = max(0.0, now - starts_at) * rate
        watch, said = judge(budget, watch, alone(int(size)), now, 2.0)
        if isinstance(said, Passed):
            assert said.verdict == "memory"
            return max(0.0, now + reaction - starts_at) * rate
        assert isinstance(said, LookAgain)
        after = said.after
    raise AssertionError


@settings(max_examples=150, deadline=None)
@given(st.floats(1, 32), st.floats(0, 5))
def test_a_large_limit_is_passed_by_less_than_a_seventh(gib: float, starts_at: float) -> None:
    limit = int(gib * 1024 * MIB)
    peak = peak_when_killed(limit, 100 * MIB / 0.050, starts_at, limits.REACTION)
    assert limit < peak < 1.15 * limit


@settings(max_examples=150, deadline=None)
@given(st.integers(8, 1023), st.floats(0, 2), st.floats(10, 2000))
def test_a_small_limit_is_passed_by_little_more(mib: int, starts_at: float, rate: float) -> None:
    limit = mib * MIB
    peak = peak_when_killed(limit, rate * MIB, starts_at, reaction=0.020)
    assert peak < 1.15 * limit + 0.025 * rate * MIB


def test_far_below_a_large_limit_looks_are_rare() -> None:
    _, said = judge(Budget(memory=8 << 30), Watch(BASE), alone(0), 1.0, 2.0)
    assert said == LookAgain(limits.LONGEST)


def test_close_to_a_limit_looks_are_frequent() -> None:
    _, said = judge(Budget(memory=100 * MIB), Watch(BASE), alone(99 * MIB), 1.0, 2.0)
    assert said == LookAgain(limits.SHORTEST)


def test_the_pages_of_the_zygote_are_not_charged() -> None:
    watch, said = judge(Budget(memory=10 * MIB), Watch(BASE), alone(MIB), 1.0, 2.0)
    assert isinstance(said, LookAgain)
    assert watch.peak == MIB


def test_a_single_process_over_its_limit_is_judged_at_once() -> None:
    watch, said = judge(Budget(memory=100 * MIB), Watch(BASE), alone(105 * MIB), 1.0, 2.0)
    assert said == Passed("memory", "took 105 MiB, over its 100 MiB")
    assert watch.peak == 105 * MIB


def test_a_forked_tree_is_not_charged_twice() -> None:
    budget = Budget(memory=100 * MIB)
    tree = forked(60 * MIB, 4)
    watch, said = judge(budget, Watch(BASE), tree, 1.0, 2.0)
    assert said == Confirm()
    # Four have the same 60 MiB and the zygote's 80; one sibling and the zygote have those 80 too.
    shares = Shares(4, 60 * MIB + round(80 * MIB * 4 / 6), 0)
    watch, said = confirm(budget, watch, tree, shares, 1.0, 2, 2.0)
    assert isinstance(said, LookAgain)
    assert watch.peak == pytest.approx(60 * MIB, abs=MIB)
    watch, said = judge(budget, watch, tree, 1.1, 2.0)
    assert isinstance(said, LookAgain)


def test_a_forked_tree_that_really_is_too_large_is_judged() -> None:
    budget = Budget(memory=100 * MIB)
    tree = forked(60 * MIB, 4)
    watch, _ = judge(budget, Watch(BASE), tree, 1.0, 2.0)
    shares = Shares(4, 240 * MIB + round(80 * MIB * 4 / 6), 240 * MIB)
    watch, said = confirm(budget, watch, tree, shares, 1.0, 2, 2.0)
    assert isinstance(said, Passed)
    assert watch.peak >= 240 * MIB


def test_one_process_of_a_tree_that_is_too_large_needs_no_confirmation() -> None:
    tree = Tree(2, 3.0, 0.0, 300 * MIB, 260 * MIB, 200 * MIB)
    _, said = judge(Budget(memory=100 * MIB), Watch(BASE), tree, 1.0, 2.0)
    assert isinstance(said, Passed)


def test_what_was_counted_twice_is_forgotten_when_the_tree_changes() -> None:
    budget = Budget(memory=100 * MIB)
    watch, _ = judge(budget, Watch(BASE), forked(60 * MIB, 4), 1.0, 2.0)
    shares = Shares(4, 60 * MIB + round(80 * MIB * 4 / 6), 0)
    watch, _ = confirm(budget, watch, forked(60 * MIB, 4), shares, 1.0, 2, 2.0)
    _, said = judge(budget, watch, forked(60 * MIB, 3), 2.0, 2.0)
    assert said == Confirm()


def test_a_mapped_file_that_others_map_too_is_charged_in_part() -> None:
    budget = Budget(memory=100 * MIB)
    tree = Tree(1, 3.0, 0.0, 280 * MIB, 61 * MIB, 61 * MIB)
    watch, said = judge(budget, Watch(BASE), tree, 1.0, 2.0)
    assert said == Confirm()
    _, said = confirm(budget, watch, tree, Shares(1, 120 * MIB, 20 * MIB), 1.0, 2, 2.0)
    assert isinstance(said, LookAgain)


def test_confirmations_are_not_repeated_at_once() -> None:
    budget = Budget(memory=100 * MIB)
    tree = forked(60 * MIB, 4)
    watch, _ = judge(budget, Watch(BASE), tree, 1.0, 2.0)
    shares = Shares(4, 60 * MIB + round(80 * MIB * 4 / 6), 0)
    watch, _ = confirm(budget, watch, tree, shares, 1.0, 2, 2.0)
    _, said = judge(budget, watch, forked(90 * MIB, 3), 1.01, 2.0)
    assert isinstance(said, LookAgain)
    assert said.after == pytest.approx(limits.CONFIRM_AGAIN - 0.01)
    _, said = judge(budget, watch, forked(90 * MIB, 3), 1.3, 2.0)
    assert said == Confirm()


def test_cpu_time_over_its_limit_is_judged() -> None:
    watch, said = judge(Budget(cpu=2.0), Watch(BASE), alone(0, cpu=2.1), 1.0, 2.0)
    assert said == Passed("cpu", "used 2.1 s of CPU time, over its 2 s")
    assert watch.cpu == pytest.approx(2.1)


def test_cpu_time_is_looked_at_before_all_cores_can_have_used_it() -> None:
    _, said = judge(Budget(cpu=2.0), Watch(BASE), alone(0, cpu=1.6), 1.0, 4.0)
    assert isinstance(said, LookAgain)
    assert said.after == pytest.approx(0.11)


def test_cpu_time_of_processes_that_were_never_reaped_is_not_forgotten() -> None:
    watch, _ = judge(Budget(cpu=2.0), Watch(BASE), alone(0, cpu=1.5), 1.0, 2.0)
    watch, _ = judge(Budget(cpu=2.0), watch, alone(0, cpu=0.2), 1.1, 2.0)
    assert watch.cpu == pytest.approx(1.5)


def test_who_has_ended_is_judged_no_more() -> None:
    watch = Watch(BASE, peak=7)
    assert judge(Budget(memory=1, cpu=0.001), watch, NOTHING, 1.0, 2.0) == (
        watch,
        LookAgain(limits.LONGEST),
    )
    assert confirm(Budget(memory=1), watch, NOTHING, Shares(0, 0, 0), 1.0, 1, 2.0)[0] == watch


def test_no_limit_needs_no_look() -> None:
    assert not Budget()
    assert Budget(memory=1)
    assert Budget(cpu=1.0)
