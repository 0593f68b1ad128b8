"""The scripts beside the model, step by step, with everything that can go wrong on the way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.servers import Server, programs
from tests.store import long_walk
from tests.store.walk_report import Report
from tests.store.walker import Walker
from tests.store.walker_crew import MOVES, PAUSES, Crew
from tests.store.walker_wire import Scripts, Wire

STEPS = 20_000
WALK = 100
CHOICES = [move for move, weight in MOVES.items() for _ in range(weight)]


class Walk(RuleBasedStateMachine):
    """One walk. Hypothesis chooses who moves and the luck it has, and shortens what fails.

    The choices inside a move follow from that luck: drawn one by one they would cost more than the
    server does, and a walk of a hundred steps would be too long to be drawn at all.
    """

    def __init__(self, wire: Wire, texts: Scripts, prefix: str, report: Report) -> None:
        super().__init__()
        self.walker = Walker(wire, texts, prefix)
        self.crew = Crew(self.walker, random.Random(0))
        self.report = report
        self.broken = False

    @rule(step=st.sampled_from(CHOICES), luck=st.binary(min_size=4, max_size=4))
    def move(self, step: str, luck: bytes) -> None:
        """One rule for all: of several, Hypothesis leaves some out for the whole of a walk."""
        self.crew.rng.seed(luck)
        self.walker.advance(self.crew.rng.choice(PAUSES))
        self.broken = True
        getattr(self.crew, step)()
        self.broken = False

    def teardown(self) -> None:
        try:
            if not self.broken:
                self.crew.drain()
                self.report.add(self.walker, drained=True)
        finally:
            self.walker.clean_up()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(server.socket) as wire:
        yield wire


@pytest.mark.timeout(600)  # of which most is for shortening a walk that failed
def test_the_scripts_do_what_the_model_does_whatever_happens_on_the_way(
    wire: Wire, server: Server, prefix: str, record_property: Callable[[str, object], None]
) -> None:
    report, numbers, texts = Report(), itertools.count(), Scripts()
    wanted = STEPS // len(programs())

    @seed(f"a walk on {server.program.name}")  # another one on each kind of server
    def walk() -> Walk:
        return Walk(wire, texts, f"{prefix}-{next(numbers)}", report)

    run_state_machine_as_test(
        walk,  # type: ignore[arg-type]
        settings=settings(
            max_examples=wanted // WALK,
            stateful_step_count=WALK,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
        ),
    )
    record_property("report", str(report))
    assert report.steps >= wanted
    assert report.drained == report.walks
    assert report.violations == 0
    assert not report.shortfalls(), str(report)


def walked(wire: Wire, prefix: str, seed: int) -> str:
    walker = Walker(wire, Scripts(), prefix)
    crew = Crew(walker, random.Random(seed))
    while walker.figures["steps"] < 150:
        crew.step()
    crew.drain()
    walker.clean_up()
    return walker.trace.hexdigest()


def test_the_same_seed_is_the_same_walk_and_another_seed_another_one(wire: Wire, prefix: str) -> None:
    first = walked(wire, f"{prefix}-1", 7)
    assert walked(wire, f"{prefix}-2", 7) == first
    assert walked(wire, f"{prefix}-3", 8) != first


def test_a_walk_at_length_is_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert long_walk.main(["--steps", "600", "--seed", "1"]) == 0
    printed = capsys.readouterr().out
    assert "violations: 0" in printed
    assert "drained to empty" in printed
