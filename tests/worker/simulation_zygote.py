"""A zygote that is only played: it makes played children, and kills them when it hears nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from taskhive import linux
from taskhive.errors import HandlerError
from taskhive.spawner import Reports
from tests.worker.simulation_children import Chances, PlayedChild, PlayedLink
from tests.worker.simulation_ledger import Ledger
from tests.worker.simulation_time import Channel, HostLoop, Universe


class PlayedZygote:
    """Makes children, and kills them when it does not hear from its supervisor."""

    def __init__(
        self,
        universe: Universe,
        host: HostLoop,
        chances: Chances,
        ledger: Ledger,
        catalog: dict[str, Any],
        reports: Reports,
        may_break: bool,
    ) -> None:
        self.universe, self.host, self.chances, self.ledger = universe, host, chances, ledger
        self.pid = 0
        self.children: dict[int, PlayedChild] = {}
        self.is_alive = False
        self._catalog = catalog
        self._reports = reports
        self._trusted_until = float("inf")
        self._may_break = may_break
        self._orders = Channel(universe, chances.soon)
        self._reported = Channel(universe, chances.soon)

    async def start(self) -> dict[str, Any]:
        await asyncio.sleep(self.chances.rng.uniform(0.05, 0.3))
        if self._may_break and self.chances.happens(20):
            raise HandlerError("a broken edit")
        self.pid, self.is_alive = self.universe.pid(), True
        return self._catalog

    def fork(self, slot: int) -> PlayedLink:
        if not self.is_alive:
            raise ConnectionError("the zygote is gone")
        child = PlayedChild(self, slot, self.universe.pid())
        self._soon(lambda: self._forked(child))
        return child.link

    def _forked(self, child: PlayedChild) -> None:
        if self.chances.happens(2):
            child.is_alive = False
            self._report(lambda: self._reports.forked(child.slot, 0, "no memory"))
            return
        self.children[child.pid] = child
        self._report(lambda: self._reports.forked(child.slot, child.pid, ""))
        child.start()

    def reap(self, child: PlayedChild, code: int, why: str) -> None:
        self.children.pop(child.pid, None)

        def tell() -> None:
            child.bequeath()
            self._reports.exited(child.slot, code, 0.0, 0, why == "switch")

        self._report(tell)

    def signal(self, pid: int, number: int, group: bool = False) -> None:
        def arrive() -> None:
            child = self.children.get(pid)
            if child is not None and number == linux.STACK_SIGNAL and self.chances.rng.random() < 0.8:
                child.link.written = 100

        self._soon(arrive)

    def kill(self, pid: int) -> None:
        self._soon(lambda: self._kill(pid, "ordered"))

    def _kill(self, pid: int, why: str) -> None:
        if pid in self.children:
            self.children[pid].die(-9, why)

    def pulse(self, trusted_until: float) -> None:
        def arrive() -> None:
            self._trusted_until = trusted_until
            self.universe.at(trusted_until + 0.001, self._look)

        self._soon(arrive)

    def _look(self) -> None:
        """The switch that a dead man lets go."""
        if self.universe.now > self._trusted_until:
            self._trusted_until = float("inf")
            if self.children:
                self.ledger.figures["dead man's switches"] += 1
            self.kill_all("switch")

    def kill_all(self, why: str) -> None:
        for pid in list(self.children):
            self._kill(pid, why)

    def lose(self) -> None:
        """It is killed: its children die with it, and nobody tells how."""
        if self.is_alive:
            self.is_alive = False
            children = list(self.children.values())
            self.kill_all("zygote lost")

            def tell() -> None:
                for child in children:
                    child.bequeath()
                self._reports.lost(self)

            self._reported.send(tell, self.host)  # behind what it has said: that is in the socket

    async def stop(self) -> None:
        self.is_alive = False
        self.kill_all("stopped")
        await asyncio.sleep(0.01)

    def _soon(self, call: Callable[[], None]) -> None:
        def arrive() -> None:
            if self.is_alive:
                call()

        self._orders.send(arrive)

    def _report(self, call: Callable[[], None]) -> None:
        if self.is_alive:
            self._reported.send(call, self.host)
