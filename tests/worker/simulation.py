"""Several real supervisors on one model of the queue, in counted time, under faults that a seed chooses.

The supervisor, its pool, exchangers, lines and verdicts are the shipped ones; played are the clock, the
children and the server. Safety is checked at every step, liveness at the end, when faults have ceased.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from taskhive.handler_options import HandlerOptions
from tests.store.model_values import Item, Spec
from tests.worker.simulation_children import Chances
from tests.worker.simulation_host import LEASE, Host
from tests.worker.simulation_ledger import Ledger, Violation
from tests.worker.simulation_server import Server
from tests.worker.simulation_time import Universe

TIMEOUT = 6.0
TROUBLED_FOR = 10.0
DRAINED_WITHIN = 400.0


class Simulation:
    """One seed."""

    def __init__(self, seed: int, is_calm: bool = False) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.universe = Universe()
        self.chances = Chances(self.rng, LEASE, TIMEOUT)
        self.chances.is_calm = is_calm
        self.ledger = Ledger()
        self.server = Server(self.universe, self.chances, self.ledger)
        self.trace: list[str] = []
        self.hosts: list[Host] = []
        self.figures: Counter[str] = Counter()
        self.ids: list[str] = []
        self.fingerprint = ""
        self.is_leaving = False
        options = HandlerOptions(
            timeout=TIMEOUT,
            max_retries=3,
            max_crashes=2,
            max_stalls=4,
            min_backoff=0.05,
            max_backoff=0.5,
            isolation=self.rng.choices(("process", "fresh", "thread"), (60, 15, 25))[0],
            max_jobs_per_child=3 if self.rng.random() < 0.15 else None,
        )
        self.catalog: dict[str, Any] = {
            "handlers": {name: options.portable() for name in ("work", "work:fail")},
            "url": None,
            "prefix": None,
            "threads": [],
            "files": [],
        }

    # What happens

    def run(self) -> None:
        """Trouble, then calm: in the end everything has ended and everybody has left."""
        try:
            with self._named():
                self._run()
        finally:
            self.fingerprint = self._fingerprint()
            self.is_leaving = True
            for host in self.hosts:
                host.bury()
            self.universe.turn(self.universe.now + 1)

    def _run(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(2, 5)):
            self._join()
        for _ in range(rng.randint(8, 20)):
            self.universe.at(rng.uniform(0, TROUBLED_FOR), self._dispatch)
        if not self.chances.is_calm:
            for _ in range(rng.randint(3, 8)):
                self.universe.at(rng.uniform(0.3, TROUBLED_FOR), self._trouble)
        self._pass(TROUBLED_FOR, lambda: False)
        self.chances.is_calm = True
        self.server.away_until = 0.0
        if all(host.is_over for host in self.hosts):
            self._join()
        self._pass(self.universe.now + DRAINED_WITHIN, self._is_drained)
        self._check_drained()
        self.is_leaving = True
        for host in self.hosts:
            if not host.is_over:
                host.stop()
        self._pass(self.universe.now + 60, lambda: all(h.is_over for h in self.hosts))
        for host in self.hosts:
            if not host.is_over:
                raise Violation(f"{host.name} does not leave")

    def _pass(self, until: float, enough: Callable[[], bool]) -> None:
        while self.universe.now < until and not enough():
            self.universe.turn(self.universe.now + 0.25, enough)
            for host in self.hosts:
                host.check()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Names that are drawn by chance are drawn from the seed."""
        rng = random.Random(self.seed)

        def nonce() -> str:
            return f"n{rng.getrandbits(48):012x}"

        with (
            mock.patch("taskhive.supervisor.nonce", nonce),
            mock.patch("taskhive.exchanger.nonce", nonce),
        ):
            yield

    def _join(self) -> None:
        if not self.is_leaving:
            self.hosts.append(Host(self, f"w{len(self.hosts) + 1}"))

    def _dispatch(self) -> None:
        rng = self.rng
        again = self.ids and rng.random() < 0.25
        strict = bool(again) or rng.random() < 0.6
        id = rng.choice(self.ids) if again else f"j{self.figures['dispatched']}"
        spec = None
        if strict:
            delay = rng.randint(1, 2000) if rng.random() < 0.2 else None
            spec = Spec(request=f"r{self.figures['dispatched']}", delay=delay, update_data=True)
            if not again:
                self.ids.append(id)
        self.figures["dispatched"] += 1
        self.server.dispatch(Item(id, json.dumps({"strict": strict}).encode(), spec))

    def _trouble(self) -> None:
        rng, universe = self.rng, self.universe
        running = [host for host in self.hosts if not host.is_over]
        kind = rng.choice(
            ("freeze", "freeze", "block", "kill", "stop", "zygote", "child", "child", "away", "cancel")
        )
        self.figures[kind] += 1
        if kind == "away":
            self.server.away_until = universe.now + rng.uniform(0.3, 3 * LEASE)
        elif kind == "cancel" and self.ids:
            self.server.cancel(rng.choice(self.ids), rng.choice(("kill", "kill", "ask")))
        elif running:
            host = rng.choice(running)
            match kind:
                case "freeze" | "block":
                    if not host.loop.is_frozen:
                        host.loop.freeze()
                        longest = 2.5 * LEASE if kind == "freeze" else 0.8 * LEASE
                        universe.after(rng.uniform(0.2, longest), host.loop.thaw)
                case "kill":
                    host.kill()
                    universe.after(rng.uniform(0.1, 2.0), self._join)
                case "stop":
                    host.stop()
                    universe.after(rng.uniform(0.0, 2.0), self._join)
                case "zygote":
                    living = [one for one in host.world.zygotes if one.is_alive]
                    if living:
                        living[-1].lose()
                case "child":
                    pids = [(zygote, pid) for zygote in host.world.zygotes for pid in zygote.children]
                    if pids:
                        zygote, pid = rng.choice(pids)
                        zygote._kill(pid, "killed")

    # What must hold

    def _is_drained(self) -> bool:
        return not self.server.main.entries and not self.server.lane.entries

    def _check_drained(self) -> None:
        for queue in self.server.queues.values():
            if queue.entries:
                raise Violation(f"never ended: {list(queue.entries.items())[:3]}")
        for id in self.ids:
            if id not in self.server.main.ended:
                raise Violation(f"{id} was dispatched and is neither done, failed nor cancelled")

    def _fingerprint(self) -> str:
        """Of all that was said and done."""
        told = "\n".join([*self.trace, *map(repr, self.ledger.stays), repr(self.server.main.counters)])
        return hashlib.sha256(told.encode()).hexdigest()


def simulate(seed: int, is_calm: bool = False) -> Simulation:
    """One seed from its beginning to its end; a violation names it."""
    simulation = Simulation(seed, is_calm)
    try:
        simulation.run()
    except AssertionError as error:
        raise Violation(f"seed {seed} at {simulation.universe.now:.3f} s: {error}") from error
    return simulation
