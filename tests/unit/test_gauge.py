"""Counters turned into samples."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from taskhive.gauge import Gauge, Seen
from taskhive.machine import Grant, Reading
from taskhive.meter import NOTHING, Tree

MIB = 1 << 20


@dataclass
class Fake:
    """A machine whose counters the test moves."""

    reading: Reading = field(default_factory=lambda: Reading(100.0, 1000.0, None, 8 << 30))
    granted: Grant = field(default_factory=lambda: Grant(4.0, 16 << 30, 4, None, 4))
    trees: dict[int, Tree] = field(default_factory=dict)

    def grant(self) -> Grant:
        return self.granted

    def read(self) -> Reading:
        return self.reading

    def oom_kills(self) -> int:
        return self.reading.oom_kills

    def measure(self, pid: int) -> Tree:
        return self.trees.get(pid, NOTHING)

    def passes(self, seconds: float, **changes: float) -> None:
        sums = {name: getattr(self.reading, name) + by for name, by in changes.items()}
        self.reading = replace(self.reading, at=self.reading.at + seconds, **sums)


def test_two_looks_tell_what_attempts_and_others_did() -> None:
    fake = Fake(trees={7: Tree(1, 5.0, 1.0, 90 * MIB, 60 * MIB)})
    gauge = Gauge(fake, fake.measure)
    gauge.look([Seen(1, 7, "work", 2.0, 10.0)])
    fake.passes(0.5, busy=1.5)
    fake.trees[7] = Tree(1, 5.4, 1.05, 110 * MIB, 80 * MIB)
    sample = gauge.look([Seen(1, 7, "work", 2.0, 10.5)], base=50 * MIB)
    assert sample.span == 0.5
    assert sample.busy == 3.0
    load = sample.loads["work"]
    assert (load.slots, load.cpu, load.wait) == pytest.approx((2.0, 0.8, 0.1))
    assert load.attempts == pytest.approx(1.0)
    assert sample.per_slot == 60 * MIB


def test_who_could_run_and_is_neither_a_child_nor_we_is_a_rival() -> None:
    fake = Fake(trees={7: Tree(2, 5.0, 1.0, 90 * MIB, 60 * MIB, runnable=3)})
    gauge = Gauge(fake, fake.measure)
    assert gauge.look([]).rivals is None
    fake.reading = replace(fake.reading, at=101.0, runnable=6)
    assert gauge.look([Seen(1, 7, "work", 1.0, 10.0)]).rivals == 2
    fake.reading = replace(fake.reading, at=102.0, runnable=2)  # some have gone to sleep since
    assert gauge.look([Seen(1, 7, "work", 1.0, 10.0)]).rivals == 0


def test_a_child_that_was_idle_is_no_load() -> None:
    fake = Fake(trees={7: Tree(1, 5.0, 1.0, 90 * MIB, 60 * MIB)})
    gauge = Gauge(fake, fake.measure)
    gauge.look([Seen(1, 7, "work", 1.0, 10.0)])
    fake.passes(0.5)
    assert gauge.look([Seen(1, 7, "work", 1.0, 10.0)]).loads == {}


def test_what_a_reaped_child_did_is_not_taken_for_others() -> None:
    fake = Fake(trees={7: Tree(1, 5.0, 1.0, 90 * MIB, 60 * MIB)})
    gauge = Gauge(fake, fake.measure)
    gauge.look([Seen(1, 7, "work", 1.0, 10.0)])
    fake.passes(0.5, busy=0.7)
    gauge.left(Seen(1, 7, "work", 1.0, 10.3), cpu=5.25)
    gauge.left(Seen(2, 8, "work", 1.0, 0.1), cpu=0.1)  # it came and went between two looks
    sample = gauge.look([])
    assert sample.loads["work"].cpu == pytest.approx((0.25 + 0.1) / 0.5)
    assert sample.loads["work"].slots == pytest.approx(0.8)


def test_under_a_quota_only_what_is_inside_counts() -> None:
    fake = Fake(granted=Grant(2.0, 16 << 30, 64, 2.0, 64), reading=Reading(1.0, 9.0, 3.0, 1))
    gauge = Gauge(fake, fake.measure)
    fake.passes(1.0, busy=30.0, inside=1.5)
    assert gauge.look([]).busy == 1.5


def test_a_full_machine_leaves_nothing_of_a_quota() -> None:
    fake = Fake(granted=Grant(2.0, 16 << 30, 64, 2.0, 64), reading=Reading(1.0, 9.0, 3.0, 1))
    gauge = Gauge(fake, fake.measure)
    fake.passes(1.0, busy=64.0, inside=0.5)
    assert gauge.look([]).busy == 2.0


def test_stalls_and_throttling_are_parts_of_the_time() -> None:
    fake = Fake()
    gauge = Gauge(fake, fake.measure)
    fake.passes(2.0, memory_stalled=0.5, periods=20, throttled=5)
    sample = gauge.look([])
    assert (sample.memory_pressure, sample.throttled) == (0.25, 0.25)


def test_a_clock_that_stands_still_makes_no_rates() -> None:
    fake = Fake()
    assert Gauge(fake, fake.measure).look([]).span == 0.0


def test_a_kill_by_the_kernel_is_matched_with_one_exit() -> None:
    fake = Fake()
    gauge = Gauge(fake, fake.measure)
    assert not gauge.killed_by_kernel(100.0)
    fake.passes(0.5, oom_kills=1)
    gauge.look([])
    assert gauge.killed_by_kernel(100.6)
    gauge.forgive()
    assert not gauge.killed_by_kernel(100.7)


def test_a_kill_of_long_ago_explains_no_exit() -> None:
    fake = Fake()
    gauge = Gauge(fake, fake.measure)
    fake.passes(0.5, oom_kills=1)
    for _ in range(20):
        gauge.look([])
        fake.passes(0.5)
    assert not gauge.killed_by_kernel(fake.reading.at)
