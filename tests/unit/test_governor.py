"""What the governor decides, fed with machines that behave as computed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from taskhive.governor import GIB, Bounds, Load, Sample, begin, decide
from tests.unit.plant import Plant

SIZES = [1, 2, 4, 8, 16, 64]


@pytest.mark.parametrize("cores", SIZES)
def test_cpu_bound_attempts_settle_at_the_cores(cores: int) -> None:
    plant = Plant(cores, Bounds(most=512), noise=0.05)
    assert plant.run(120) == cores
    assert plant.turns() == 0


def test_a_container_that_is_granted_two_of_many_cores_starts_two() -> None:
    assert begin(Bounds(), 2.0).target == 2
    assert begin(Bounds(), 1.5).target == 2
    assert begin(Bounds(), 0.2).target == 1


def test_a_quota_of_part_of_a_core_more_is_rounded_up_and_stays() -> None:
    plant = Plant(1.5, noise=0.05)
    assert plant.run(120) == 2
    assert plant.turns() == 0


@pytest.mark.parametrize("cores", [2, 4, 16])
def test_attempts_that_sleep_rise_until_the_cpu_target(cores: int) -> None:
    plant = Plant(cores, Bounds(most=512), wants={"fetch": 0.1}, noise=0.1)
    target = plant.run(60)
    assert plant.sample().busy >= 0.9 * cores
    assert target <= 3 * cores / 0.1
    assert plant.turns() == 0


def test_attempts_that_sleep_are_more_than_the_cores_divided_by_what_they_want() -> None:
    """Those that want a core are now two, now none: the cores alone would leave a fifth of them idle."""
    plant = Plant(2, Bounds(most=512), wants={"fetch": 0.1})
    target = plant.run(60)
    assert target > 20
    plain = math.ceil(0.9 * 2 / 0.1)
    reason = f"{target}: 1.8 of 2 cores free, attempts use 0.1; {target - plain} more fill their gaps"
    assert plant.state.reason == reason


def test_on_many_cores_few_more_fill_the_gaps() -> None:
    """What swings does so by the root of what there is."""

    def more(cores: int) -> float:
        return Plant(cores, Bounds(most=4096), wants={"fetch": 0.1}).run(120) / (cores / 0.1)

    assert more(2) > 2 > 1.3 > more(64)


def test_waiting_for_each_other_is_no_want() -> None:
    assert Load(20.0, 1.5, 5.6).want == pytest.approx(1.5 / 14.4)
    assert Load(2.0, 1.0, 1.0).want == pytest.approx(1.0)


def test_several_threads_want_what_they_get_and_what_they_wait_for() -> None:
    assert Load(1.0, 2.0, 2.0).want == pytest.approx(4.0)


def test_what_a_slot_wants_follows_from_how_many_attempts_are_in_it() -> None:
    """Four attempts of a quarter each, that compute for a fifth of their time."""
    assert Load(1.0, 0.8, 0.0, attempts=4.0).want == pytest.approx(0.8)
    assert Load(2.0, 1.0, 0.0, attempts=1.0).want == pytest.approx(0.5)


@pytest.mark.parametrize(("rivals", "most"), [(0, 0.3), (1, 1.1), (None, 1.6)])
def test_waiting_for_each_other_makes_no_neighbour(rivals: int | None, most: float) -> None:
    """Attempts that sleep wait much where there are many; others want no more than they have threads."""
    sample = Sample(
        at=0.0, span=0.5, cores=2.0, busy=2.0, loads={"fetch": Load(40.0, 1.85, 21.0)}, rivals=rivals
    )
    state = begin(Bounds(), 2.0)
    for step in range(20):
        state = decide(Bounds(), state, replace(sample, at=step / 2))
    assert state.others is not None
    assert most / 2 <= state.others <= most


def test_one_thread_of_others_now_and_then_is_no_neighbour() -> None:
    sample = Sample(at=0.0, span=0.5, cores=2.0, busy=2.0, loads={"fetch": Load(40.0, 1.85, 21.0)})
    state = begin(Bounds(), 2.0)
    for step in range(40):
        state = decide(Bounds(), state, replace(sample, at=step / 2, rivals=int(step % 2 == 0)))
    assert state.others == pytest.approx(0.15 * 0.9 + 0.1 * 1.5, abs=0.1)


def test_attempts_that_sleep_rise_no_further_than_max() -> None:
    plant = Plant(4, Bounds(most=10), wants={"fetch": 0.1})
    assert plant.run(60) == 10
    assert plant.state.reason == "10 (the most allowed): 3.6 of 4 cores free, attempts use 0.1"


def test_a_mix_finds_its_own_number() -> None:
    plant = Plant(4, Bounds(most=512), wants={"fetch": 0.1, "crunch": 1.0}, noise=0.05)
    target = plant.run(60)
    assert 6 <= target <= 10
    assert plant.sample().busy >= 0.9 * 4
    assert plant.turns() == 0


def test_attempts_of_several_threads_get_as_many_cores_as_they_want() -> None:
    assert Plant(8, wants={"blas": 4.0}).run(60) == 2


@pytest.mark.parametrize("cores", [2, 4, 8, 16])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_neighbour_pushes_the_target_down_and_lets_it_up_again(cores: int, noise: float) -> None:
    plant = Plant(cores, noise=noise)
    plant.run(30)
    plant.neighbour, came = 1.0, plant.now
    assert plant.run(20) == cores - 1
    assert plant.history[-1][0] - came <= 5
    plant.neighbour, left = 0.0, plant.now
    assert plant.run(20) == cores
    assert plant.history[-1][0] - left <= 10


def test_a_neighbour_is_noticed_while_attempts_sleep() -> None:
    plant = Plant(4, Bounds(most=512), wants={"fetch": 0.1})
    alone = plant.run(60)
    plant.neighbour, came = 2.0, plant.now
    assert plant.run(20) < alone - 10
    first = next(at for at, _ in plant.history if at > came)
    assert first - came <= 5


def test_nobody_gives_way_to_a_polite_neighbour() -> None:
    plant = Plant(4, neighbour=4.0, polite=True)
    assert plant.run(60) == 4


def test_a_machine_full_of_others_still_gets_the_least() -> None:
    plant = Plant(4, Bounds(least=2), neighbour=40.0)
    assert plant.run(60) == 2
    assert plant.state.reason.startswith("2 (the least allowed): 0.0 of 4 cores free")


@pytest.mark.parametrize("others", [0.0, 0.3, 0.75, 0.8, 0.9, 1.2, 1.75, 1.8])
@pytest.mark.parametrize("want", [1.0, 0.9, 0.5, 0.1])
def test_a_steady_load_turns_the_target_at_most_once_a_minute(others: float, want: float) -> None:
    plant = Plant(4, Bounds(most=512), wants={"work": want}, neighbour=others, noise=0.15)
    plant.run(600)
    targets = [target for _, target in plant.history]
    turns = [
        plant.history[i][0]
        for i in range(2, len(targets))
        if (targets[i] - targets[i - 1]) * (targets[i - 1] - targets[i - 2]) < 0
    ]
    assert all(b - a >= 60 for a, b in itertools.pairwise(turns)), plant.history


def test_a_lower_cpu_target_leaves_cores_alone() -> None:
    assert Plant(16, Bounds(target_cpu=0.5)).run(60) == 8


def test_idle_slots_prove_nothing_about_more_of_them() -> None:
    plant = Plant(4, Bounds(most=512), wants={"fetch": 0.1}, supply=2)
    assert plant.run(60) == 4
    plant.supply = 1000
    assert plant.run(60) > 25


def test_an_idle_worker_gets_its_cores_back_when_the_neighbour_leaves() -> None:
    plant = Plant(4, neighbour=3.0)
    assert plant.run(30) < 4
    plant.supply = plant.neighbour = 0
    assert plant.run(10) == 4


def test_memory_holds_the_target_before_it_runs_out() -> None:
    plant = Plant(4, Bounds(most=64), wants={"load": 0.1}, memory=8 * GIB, used=2 * GIB, each=GIB // 2)
    assert plant.run(120) == 11
    assert plant.state.reason == "11: 0.5 of 8.0 GiB free, attempts use 0.5 GiB"
    assert plant.turns() == 0


def test_memory_that_a_neighbour_takes_brings_the_target_down() -> None:
    plant = Plant(4, wants={"load": 0.2}, memory=8 * GIB, used=GIB, each=GIB // 2)
    before = plant.run(60)
    plant.used = 5 * GIB
    assert plant.run(20) < before


def test_memory_pressure_holds_and_hard_pressure_lowers() -> None:
    plant = Plant(4, Bounds(most=64), wants={"load": 0.1}, memory=8 * GIB, pressure=0.2)
    assert plant.run(30) == 4
    assert plant.state.reason.startswith("4: held, memory is waited for 20% of the time")
    plant.pressure = 0.6
    assert plant.run(30) == 1


def test_a_quota_that_is_used_up_holds_the_target() -> None:
    plant = Plant(2, Bounds(most=64), wants={"fetch": 0.1}, throttled=0.4)
    assert plant.run(30) == 2
    assert plant.state.reason == "2: held, the quota is used up in 40% of its periods"


def test_a_quota_that_is_always_used_up_brings_the_target_to_its_cores() -> None:
    plant = Plant(2, Bounds(most=64), wants={"fetch": 0.1})
    assert plant.run(60) > 10
    plant.throttled = 0.9
    assert plant.run(60) == 2


@pytest.mark.parametrize("span", [-3.0, 0.0, 7.0, 3600.0])
def test_a_gap_in_the_clock_decides_nothing(span: float) -> None:
    plant = Plant(4)
    plant.run(30)
    before = plant.state
    odd = replace(plant.sample(), span=span, busy=400.0, at=plant.now + span)
    after = decide(plant.bounds, before, odd)
    assert after == before


def test_a_gap_breaks_off_what_was_about_to_happen() -> None:
    plant = Plant(4)
    plant.run(30)
    plant.neighbour = 2.0
    while plant.state.falls_since is None:
        plant.run(0.5)
    assert decide(plant.bounds, plant.state, replace(plant.sample(), span=60.0)).falls_since is None


def test_wants_are_kept_by_handler_while_the_mix_changes() -> None:
    plant = Plant(4, Bounds(most=64), wants={"fetch": 0.1})
    plant.run(30)
    plant.wants = {"crunch": 1.0}
    plant.run(30)
    assert plant.state.target == 4
    assert plant.state.wants["fetch"] == pytest.approx(0.1, abs=0.02)


def test_the_reason_says_what_is_free_and_what_attempts_use() -> None:
    plant = Plant(4, wants={"work": 0.9})
    plant.run(30)
    assert plant.state.reason == "4: 3.6 of 4 cores free, attempts use 0.9"


def test_the_first_reason_says_that_nothing_was_measured() -> None:
    assert begin(Bounds(), 2.0).reason == "2: 2 cores granted, nothing measured yet"


def test_short_wake_ups_on_an_idle_machine_are_no_sign_of_want() -> None:
    # Of an attempt that wakes up often the waiting is several times its CPU time.
    load = {"tick": Load(4.0, 0.1, 0.4)}
    state = begin(Bounds(), 4.0)
    for step in range(60):
        state = decide(Bounds(), state, Sample(at=step / 2, span=0.5, cores=4.0, busy=0.6, loads=load))
    assert state.others == pytest.approx(0.5, abs=0.05)
