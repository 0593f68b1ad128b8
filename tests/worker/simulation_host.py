"""A real supervisor between played edges, as one process of a simulation."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from taskhive.commands import Commands
from taskhive.exchanger import Runner
from taskhive.logs import Log
from taskhive.spawner import Reports, Spawner
from taskhive.supervisor import Supervisor
from taskhive.worker_options import WorkerOptions
from tests.worker.simulation_ledger import Violation
from tests.worker.simulation_server import PlayedCommands, PlayedRunner
from tests.worker.simulation_time import HostLoop, SimulatedClock, Universe
from tests.worker.simulation_zygote import PlayedZygote

if TYPE_CHECKING:
    from tests.worker.simulation import Simulation

LEASE, GRACE = 3.0, 2.0


class Story(Log):
    """The log of one supervisor, as a line of the common trace."""

    def __init__(self, universe: Universe, name: str, trace: list[str]) -> None:
        self._universe, self._name, self._trace = universe, name, trace

    def event(self, name: str, level: str = "info", **facts: Any) -> None:
        shown = {key: value for key, value in facts.items() if key != "pid"}
        self._trace.append(f"{self._universe.now:.6f} {self._name} {name} {shown}")

    def plain(self, text: str) -> None:
        self._trace.append(text)


class PlayedWorld:
    """The edges of one simulated worker."""

    def __init__(self, simulation: Simulation, host: HostLoop) -> None:
        self.seed: int | None = simulation.rng.getrandbits(32)
        self.where = "a model"
        self.zygotes: list[PlayedZygote] = []
        self._simulation = simulation
        self._host = host

    def settle_in(self, signalled: Callable[[int], None]) -> None:
        pass

    def spawner(self, options: WorkerOptions, reports: Reports) -> Spawner:
        it = self._simulation
        made = PlayedZygote(
            it.universe, self._host, it.chances, it.ledger, it.catalog, reports, bool(self.zygotes)
        )
        self.zygotes.append(made)
        return made

    def connect(self, options: WorkerOptions, catalog: dict[str, Any]) -> tuple[Runner, Commands]:
        server = self._simulation.server
        return PlayedRunner(server, self._host), cast(Commands, PlayedCommands(server))

    async def bell(
        self,
        commands: Commands,
        queues: Collection[str],
        rung: Callable[[str], None],
        hinted: Callable[[str, str], None],
    ) -> None:
        self._simulation.server.listeners[self._host] = (rung, hinted)
        for queue in queues:
            rung(queue)
        await self._host.create_future()

    def watch(
        self,
        catalog: dict[str, Any],
        reload: Callable[[list[str]], Awaitable[dict[str, Any] | None]],
    ) -> Awaitable[None]:
        return self._host.create_future()

    def tidy(self, spawners: Sequence[Spawner]) -> None:
        pass

    async def close(self) -> None:
        self._simulation.server.listeners.pop(self._host, None)


class Host:
    """One simulated worker."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.name = name
        self.loop = HostLoop(simulation.universe, name)  # type: ignore[abstract]
        self.world = PlayedWorld(simulation, self.loop)
        self._simulation = simulation
        self.supervisor: Supervisor | None = None
        self.over: asyncio.Task[int] | None = None
        self.is_told = False
        options = WorkerOptions(
            files=("played",),
            concurrency=simulation.rng.randint(1, 3),
            lease=LEASE,
            grace=GRACE,
            name=name,
        )
        log = Story(simulation.universe, name, simulation.trace)

        def start() -> None:
            clock = SimulatedClock(simulation.universe)
            self.supervisor = Supervisor(options, log, self.world, clock)
            self.over = self.loop.create_task(self.supervisor.run())

        self.loop.act(start)

    @property
    def is_over(self) -> bool:
        return self.loop.is_dead or (self.over is not None and self.over.done())

    def stop(self) -> None:
        """SIGTERM; it is heard when the process is not frozen."""
        assert self.supervisor is not None
        if self.is_told:
            return
        self.is_told = True
        told = self.supervisor.signalled
        self._simulation.universe.after(0, lambda: told(int(signal.SIGTERM)), self.loop)

    def kill(self) -> None:
        """kill -9: its zygote finds its socket closed, and ends."""
        self.loop.is_dead = True
        self._simulation.server.listeners.pop(self.loop, None)
        for zygote in self.world.zygotes:
            zygote.kill_all("supervisor lost")
            zygote.is_alive = False

    def bury(self) -> None:
        """Let its tasks end, so that the interpreter finds none that wait."""
        if self.over is not None and not self.over.done():
            self.loop.is_dead = self.loop.is_frozen = False
            self.loop.act(self.over.cancel)

    def check(self) -> None:
        """It lives or it ended well; and what it trusts to be its own is its own."""
        if self.loop.errors:
            raise Violation(f"{self.name}: {self.loop.errors[0]}")
        if self.over is not None and self.over.done():
            error = self.over.exception()
            if error is not None:
                raise Violation(f"{self.name} ended by {error!r}") from error
            if self.over.result() != 0:
                raise Violation(f"{self.name} ended with {self.over.result()}")
        if self.supervisor is None or self.is_over:
            return
        now = self._simulation.universe.now
        for queue, line in self.supervisor.lines.items():
            entries = self._simulation.server.queues[queue].entries
            for token, attempt in line.held.items():
                if now >= attempt.trusted_until:
                    continue
                entry = entries.get(attempt.job.id)
                if entry is None or entry.lease is None or entry.lease.token != token:
                    raise Violation(f"{self.name} trusts {token} of {attempt.job.id}, which is over")
