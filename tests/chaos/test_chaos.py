"""Whatever is killed, frozen, cut off or restarted, no job is lost and no id runs beside itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.history import violations
from tests.chaos.long_chaos import chaos, shortfalls

SECONDS = 20.0


@pytest.mark.timeout(300)
def test_chaos_loses_nothing_and_runs_no_id_beside_itself(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run, history, report = chaos(tmp_path, SECONDS, seed=1)
    record_property("report", report)
    assert violations(history) == []
    assert shortfalls(run, history, SECONDS) == [], "the run is void"
