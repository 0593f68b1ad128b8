"""Budgets of attempts, held against the trees of their children."""

from __future__ import annotations

from taskhive.guard import Guard
from taskhive.limits import Budget, Confirm, LookAgain, Passed
from taskhive.meter import NOTHING, Shares, Tree

MIB = 1 << 20


def tree(mib: int, cpu: float = 0.0, processes: int = 1) -> Tree:
    return Tree(processes, cpu, 0.0, mib * MIB, mib * MIB, mib * MIB // processes)


class Trees(dict[int, Tree]):
    def measure(self, pid: int) -> Tree:
        return self.get(pid, NOTHING)


def test_an_attempt_without_limits_is_never_measured() -> None:
    guard = Guard(Trees().measure, 2.0)
    assert guard.began(1, 7, Budget()) is None
    assert guard.look(1, 7, 1.0) is None


def test_memory_is_counted_from_the_fork_and_cpu_from_the_start() -> None:
    trees = Trees({7: tree(50, cpu=1.0)})
    guard = Guard(trees.measure, 2.0)
    guard.ready(1, 7)
    trees[7] = tree(90, cpu=9.0)  # an earlier attempt took that, and left 40 MiB behind
    assert guard.began(1, 7, Budget(memory=100 * MIB, cpu=2.0)) is not None
    trees[7] = tree(130, cpu=10.0)
    assert isinstance(guard.look(1, 7, 1.0), LookAgain)
    trees[7] = tree(151, cpu=10.0)
    assert guard.look(1, 7, 1.1) == Passed("memory", "took 101 MiB, over its 100 MiB")
    assert guard.peak(1) == 101 * MIB
    trees[7] = tree(60, cpu=11.0)
    assert guard.look(1, 7, 1.2) == Passed("cpu", "used 2.0 s of CPU time, over its 2 s")
    assert guard.peak(1) == 101 * MIB
    assert guard.growth(1, 7) == 10 * MIB


def test_a_confirmation_that_comes_after_the_end_is_dropped() -> None:
    trees = Trees({7: tree(50)})
    guard = Guard(trees.measure, 2.0)
    guard.ready(1, 7)
    guard.began(1, 7, Budget(memory=100 * MIB))
    trees[7] = tree(240, processes=4)
    assert guard.look(1, 7, 1.0) == Confirm()
    guard.over(1)
    assert guard.confirmed(1, 7, Shares(4, 500 * MIB, 0), 1.1, 2) is None


def test_a_confirmed_tree_is_judged_by_what_it_really_has() -> None:
    trees = Trees({7: tree(50)})
    guard = Guard(trees.measure, 2.0)
    guard.ready(1, 7)
    guard.began(1, 7, Budget(memory=100 * MIB))
    trees[7] = tree(240, processes=4)
    guard.look(1, 7, 1.0)
    assert isinstance(guard.confirmed(1, 7, Shares(4, 100 * MIB, 0), 1.1, 2), LookAgain)
    assert isinstance(guard.confirmed(1, 7, Shares(4, 500 * MIB, 0), 1.2, 2), Passed)


def test_a_child_that_is_gone_is_forgotten() -> None:
    trees = Trees({7: tree(50)})
    guard = Guard(trees.measure, 2.0)
    guard.ready(1, 7)
    guard.began(1, 7, Budget(cpu=1.0))
    guard.gone(1)
    assert guard.look(1, 7, 1.0) is None
    assert guard.base(1) == guard.peak(1) == 0
