"""The target as a worker sees it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

from taskhive.gauge import Gauge, Seen
from taskhive.governor import Bounds
from taskhive.logs import Log
from taskhive.machine import Grant, Reading
from taskhive.meter import NOTHING, Tree
from taskhive.regulator import Regulator, default_most


@dataclass
class Busy:
    """Two cores on which our two children and a neighbour burn."""

    now: float = 0.0
    neighbour: float = 0.0
    used: float = 0.0
    ours: float = 0.0
    waited: float = 0.0
    seen: list[Seen] = field(default_factory=list)

    def grant(self) -> Grant:
        return Grant(2.0, 1 << 34, 2, None, 2)

    def read(self) -> Reading:
        return Reading(self.now, self.used, None, 1 << 33)

    def oom_kills(self) -> int:
        return 0

    def measure(self, pid: int) -> Tree:
        return Tree(1, self.ours, self.waited, 1 << 20, 1 << 20) if pid else NOTHING

    def passes(self, running: int) -> list[Seen]:
        """Half a second, of which everybody gets a fair part."""
        self.now += 0.5
        part = min(1.0, 2.0 / (running + self.neighbour))
        self.ours += 0.5 * part
        self.waited += 0.5 * (1 - part)
        self.used += 0.5 * part * (running + self.neighbour)
        return [Seen(n, n, "work", 1.0, self.now) for n in range(1, running + 1)]


def run(machine: Busy, regulator: Regulator, seconds: float) -> None:
    for _ in range(round(seconds / 0.5)):
        regulator.look(machine.passes(regulator.target))


def test_every_change_of_the_target_is_one_event_with_its_reason() -> None:
    text = io.StringIO()
    machine = Busy()
    regulator = Regulator(Gauge(machine, machine.measure), Bounds(most=32), Log(text))
    run(machine, regulator, 20)
    assert (regulator.target, text.getvalue()) == (2, "")
    machine.neighbour = 1.0
    run(machine, regulator, 20)
    machine.neighbour = 0.0
    run(machine, regulator, 20)
    down, up = text.getvalue().splitlines()
    assert 'worker.target target=1 was=2 why="1: 0.' in down
    assert "of 2 cores free, attempts use 1" in down
    assert 'worker.target target=2 was=1 why="2: 1.' in up


def test_a_number_that_was_asked_for_is_kept() -> None:
    machine = Busy(neighbour=2.0)
    regulator = Regulator(Gauge(machine, machine.measure), Bounds(), Log(io.StringIO()), fixed=3)
    run(machine, regulator, 20)
    assert (regulator.target, regulator.reason) == (3, "3: asked for")
    assert regulator.sample is not None


def test_a_small_machine_may_still_run_many_that_wait() -> None:
    assert default_most(0.5) == 64
    assert default_most(16) == 512
    assert default_most(100) == 1024
