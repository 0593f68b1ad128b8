"""Real supervisors in counted time, beside a model of the queue, under faults chosen by a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from taskhive.pool import Pool
from taskhive.sharing import Sharing
from taskhive.slot import Slot
from taskhive.supervisor import Supervisor
from tests.worker.simulation import simulate
from tests.worker.simulation_ledger import Violation
from tests.worker.simulation_report import Report
from tests.worker.simulation_zygote import PlayedZygote

SEEDS = 128
"""For each of four parts, so that two processes share them."""


@pytest.mark.parametrize("part", range(4))
def test_no_fault_loses_a_job_runs_it_beside_itself_or_charges_it_wrongly(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    report = Report()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        report.add(simulate(seed))
    record_property("report", str(report))
    assert not report.shortfalls()


def test_without_faults_nothing_is_put_back_or_swept() -> None:
    report = Report()
    for seed in range(20):
        report.add(simulate(seed, is_calm=True))
    figures = report.figures
    assert figures["attempts"] == figures["settled done"] == figures["answers OK"] > 200
    assert figures["swept"] == figures["stalls"] == figures["answers STALE"] == 0


def test_the_same_seed_tells_the_same_story() -> None:
    first, second, other = simulate(7), simulate(7), simulate(8)
    assert first.trace == second.trace
    assert first.fingerprint == second.fingerprint != other.fingerprint


def _simulate_until_found() -> None:
    for seed in range(300):
        simulate(seed)


def _ignores_the_switch(pool: Pool, *words: Any) -> None:
    _exited(pool, *words[:4])


def _kills_without_an_answer(sharing: Sharing, slot: Slot) -> None:
    slot.answered = slot.asked
    _left(sharing, slot)


_exited = Pool.exited
_left = Sharing.left


@pytest.mark.parametrize(
    ("where", "name", "mistake", "found"),
    [
        (PlayedZygote, "_look", lambda self: None, "overlaps itself"),
        (Pool, "exited", _ignores_the_switch, "settled as"),
        (Supervisor, "_check_trust", lambda self, *_, **__: None, "overlaps itself|trusts|never ended"),
        (Pool, "_was_unread", staticmethod(lambda *_: False), "settled as again crash, but it was: ."),
        (Sharing, "suspect", lambda self, slot: None, "settled as again (timeout|crash)"),
        (Sharing, "left", _kills_without_an_answer, "settled as again timeout, but it was.*held"),
    ],
    ids=[
        "no switch",
        "the switch counts as a crash",
        "no local deadline",
        "the next one is charged",
        "one of several is charged",
        "one that was held is charged",
    ],
)
def test_known_mistakes_are_found(
    where: type, name: str, mistake: Callable[..., None], found: str
) -> None:
    with mock.patch.object(where, name, mistake), pytest.raises(Violation, match=found):
        _simulate_until_found()
