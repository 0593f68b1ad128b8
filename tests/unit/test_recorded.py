"""The governor on series that were recorded on real machines."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from taskhive.governor import Bounds, Load, Sample, State, begin, decide

SERIES = Path(__file__).with_name("series")


def states(name: str, **changes: float) -> list[State]:
    recorded: dict[str, Any] = json.loads((SERIES / f"{name}.json").read_text())
    bounds = Bounds(most=64)
    state = begin(bounds, recorded["cores"])
    found = [state]
    for row in recorded["samples"]:
        loads = {handler: Load(*figures) for handler, figures in row["loads"].items()}
        sample = Sample(
            cores=recorded["cores"], memory=recorded["memory"], **{**row, "loads": loads, **changes}
        )
        state = decide(bounds, state, sample)
        found.append(state)
    return found


def test_on_a_crowded_machine_one_job_at_a_time_is_left_and_stays() -> None:
    """Two cores, six other programs that want one each; jobs that compute beside jobs that sleep."""
    found = states("crowded")
    targets = [state.target for state in found]
    assert targets[0] == 2
    assert set(targets[10:]) == {1}
    assert sum(a != b for a, b in itertools.pairwise(targets)) == 1
    assert found[-1].reason.startswith("1: 0.")
    assert "of 2 cores free, attempts use" in found[-1].reason


def test_the_same_series_after_a_long_sleep_of_the_machine_decides_nothing() -> None:
    assert {state.target for state in states("crowded", span=600.0)} == {2}


def test_jobs_that_sleep_fill_the_machine_and_give_way_to_a_neighbour_while_he_is_there() -> None:
    """Two cores, jobs that sleep for 90 % of the time; from the 25th second to the 37th a neighbour."""
    found = states("sleepers")
    recorded = json.loads((SERIES / "sleepers.json").read_text())["samples"]
    by_moment = {row["at"]: state.target for row, state in zip(recorded, found[1:], strict=True)}

    def between(start: float, end: float) -> list[int]:
        return [target for at, target in by_moment.items() if start <= at < end]

    alone, beside, again = between(18, 24), between(31, 35), between(45, 60)
    assert min(alone) >= 40
    assert max(beside) <= 30
    assert min(again) >= 40
    assert "more fill their gaps" in found[-1].reason
