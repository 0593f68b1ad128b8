"""Whatever a handler does to its child, the outcome is the tabled one and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from taskhive import Hive
from tests.worker.conftest import Start
from tests.worker.torture import CHILDREN, INNOCENTS, Torture, mark
from tests.worker.torture_rows import FRESH, ROWS, handlers

REPETITIONS = 2


@pytest.mark.timeout(400)
@pytest.mark.parametrize("start_at_import", ["", FRESH], ids=["forked", "fresh interpreters"])
def test_no_misdeed_of_a_handler_reaches_beyond_its_child(
    start: Start,
    hive: Hive,
    tmp_path: Path,
    start_at_import: str,
    record_property: Callable[[str, object], None],
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    word = mark()
    worker = start(
        handlers(start_at_import),
        "--concurrency",
        str(CHILDREN),
        TORTURE_MARK=word,
        TMPDIR=str(temporary),
    ).ready()
    assert len(worker.of("worker.no_fork")) == bool(start_at_import)
    torture = Torture(hive, worker, word, temporary)
    torture.run(REPETITIONS)
    assert worker.stop() == 0
    assert torture.figures["innocents"] == INNOCENTS * REPETITIONS * len(ROWS)
    record_property("report", ", ".join(f"{name} {n}" for name, n in torture.figures.items()))
