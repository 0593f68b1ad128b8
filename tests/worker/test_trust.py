"""How long a lease is trusted: one supervisor in counted time, with what happens chosen by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskhive.slot import Attempt
from taskhive.supervisor import Supervisor
from tests.store.model_values import Item, Lease, Spec
from tests.worker.simulation import Simulation
from tests.worker.simulation_host import LEASE, Host
from tests.worker.simulation_server import PlayedRunner, Request


class Stage:
    """One worker without faults, that has started."""

    def __init__(self) -> None:
        self.simulation = Simulation(1, is_calm=True)
        self.simulation._join()
        self.universe, self.server = self.simulation.universe, self.simulation.server
        (self.host,) = self.simulation.hosts
        self.universe.turn(1.0)  # it has looked for jobs, and found none

    def until(self, enough: Callable[[], bool]) -> None:
        self.universe.turn(self.universe.now + 60, enough)
        assert enough()

    def dispatch(self, id: str) -> None:
        """A job that may not run beside itself."""
        self.server.dispatch(Item(id, b'{"strict": true}', Spec(request=f"r{id}")))

    def lease(self, id: str) -> Lease | None:
        return self.server.main.entries[id].lease

    def began(self, id: str) -> bool:
        return any(stay.id == id for stay in self.simulation.ledger.stays)

    def attempt(self, id: str) -> Attempt:
        (found,) = (one for one in supervisor(self.host).lines["work"].held.values() if one.job.id == id)
        return found


def supervisor(host: Host) -> Supervisor:
    assert host.supervisor is not None
    return host.supervisor


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    for host in stage.simulation.hosts:
        host.bury()
    stage.universe.turn(stage.universe.now + 1)


def test_an_attempt_whose_lease_came_late_does_not_outlive_it_when_its_supervisor_is_frozen(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zygote had been told to wait for longer, when there was no such lease yet."""
    send = PlayedRunner._send

    def lose_the_answer(runner: PlayedRunner, request: Request, answer: Any) -> None:
        if stage.lease("j1") is not None:
            send(runner, request, answer)
        else:
            stage.universe.after(0.002, lambda: stage.server.act(request))
            runner._fail(answer, 0.9)

    stage.simulation.chances.length = lambda: 60.0  # type: ignore[method-assign]
    monkeypatch.setattr(PlayedRunner, "_send", lose_the_answer)
    stage.dispatch("j1")
    stage.until(lambda: stage.began("j1"))
    stage.host.loop.freeze()
    lease = stage.lease("j1")
    assert lease is not None
    over = (lease.until - 1_000_000) / 1000
    assert over < stage.universe.now + LEASE - 0.5
    stage.universe.turn(over)
    (stay,) = stage.simulation.ledger.stays
    assert stay.fate == "switch"


def test_an_attempt_that_waited_for_as_long_as_its_lease_is_not_begun(stage: Stage) -> None:
    """It would be killed by the next look at the clock, and be charged with a stall."""
    lengths = iter((1.5, 0.1))
    stage.simulation.chances.length = lambda: next(lengths)  # type: ignore[method-assign]
    pool = supervisor(stage.host).pool
    stage.host.loop.act(lambda: pool.aim(2, frozenset()))
    stage.dispatch("j1")
    stage.until(lambda: stage.began("j1"))
    stage.dispatch("j2")
    stage.until(lambda: stage.lease("j2") is not None)
    # The machine is full meanwhile: it is taken in, and must wait.
    stage.host.loop.act(lambda: pool.aim(1, frozenset()))
    stage.until(lambda: bool(pool.backlog))
    waiting = stage.attempt("j2")
    # Not for as long as a lease: then it would look at them all before anything else.
    stage.universe.turn(waiting.trusted_until - LEASE + 0.4)
    stage.host.loop.freeze()
    stage.universe.turn(waiting.trusted_until - 0.4)
    stage.host.loop.thaw()
    stage.until(lambda: stage.began("j2"))
    assert waiting.started is None
    assert stage.simulation.ledger.figures["stalls"] == 0
