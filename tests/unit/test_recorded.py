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
    bounds = Bounds(most=32)
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
