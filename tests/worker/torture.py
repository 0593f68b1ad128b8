"""Drives one worker through every misdeed, beside innocents, and looks for what is left behind."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

import psutil

from taskhive import Hive
from tests.servers import until
from tests.worker.torture_rows import ROWS, Row
from tests.worker.workers import Worker, box, over

INNOCENTS, CHILDREN = 4, 3
PER_CHILD = 3
"""Descriptors of a child: a socket, a pipe, a memory file."""
MOST_GROWTH = 10 * 1024 * 1024


class Torture:
    """One worker under torture."""

    def __init__(self, hive: Hive, worker: Worker, mark: str, temporary: Path) -> None:
        self.figures: Counter[str] = Counter()
        self._hive, self._worker, self._mark, self._temporary = hive, worker, mark, temporary
        self._supervisor = psutil.Process(worker.pid)

    def run(self, repetitions: int) -> None:
        """Each row so often; what the first time leaves open is what any later time may."""
        descriptors = memory = 0
        for _ in range(repetitions):
            for row in ROWS:
                self._do(row)
            self._quiet()
            if not descriptors:
                descriptors, memory = self._others(), self._supervisor.memory_info().rss
        until(
            lambda: self._others() <= descriptors,
            f"no descriptor is left: {descriptors} before, {self._descriptors()} after",
        )
        assert list(self._temporary.iterdir()) == []
        growth = self._supervisor.memory_info().rss - memory
        assert growth < MOST_GROWTH, f"the supervisor grew by {growth:,} bytes"

    def _do(self, row: Row) -> None:
        """One misdeed beside innocents: its outcome as tabled, and they do not even notice."""
        innocent = self._hive.queue("innocent")
        beside = innocent.dispatch_many(range(INNOCENTS // 2))
        victim = self._hive.queue(row.name).dispatch()
        beside += innocent.dispatch_many(range(INNOCENTS // 2, INNOCENTS))
        states = over(self._hive, victim, *beside)
        info = victim.info()
        told = f"{row.name}: {states[0]} {info.error} {self._worker.story()[-3000:]}"
        assert states[0] == row.state, told
        assert (info.error.kind if info.error else None) == row.kind, told
        if row.verdict is not None:
            assert box(victim)["verdict"] == row.verdict, told
        if row.error is not None:
            assert info.error is not None
            assert info.error.type.rpartition(".")[2] == row.error, told
            assert len(info.error.message) < 100_000
        assert states[1:] == ["succeeded"] * INNOCENTS, f"an innocent suffered from {told}"
        for number, job in enumerate(beside):
            met = job.info()
            # Its folder, its environment and its signals are what a child is born with.
            assert met.result == [number, str(self._worker.folder), False, True], told
            assert met.attempts == 1, told
        assert self._worker.process.poll() is None, told
        self.figures[f"{states[0]} {row.kind or ''}".strip()] += 1
        self.figures["innocents"] += INNOCENTS

    def _quiet(self) -> None:
        """Nobody is left but the zygote and its own children, and none of them is a zombie."""

        def strays() -> list[str]:
            zygote = self._worker.zygote()
            children = [child.pid for child in zygote.children()]
            known = {self._worker.pid, zygote.pid, *children}
            if len(children) != self._slots():
                return [f"{len(children)} children in {self._slots()} slots"]
            family = {one.pid for one in self._worker.family()}
            marked = {pid for pid in psutil.pids() if self._is_marked(pid)}
            return [str(pid) for pid in (family | marked) - known] + self._zombies()

        until(lambda: not strays(), f"no process is left: {strays()}")

    def _slots(self) -> int:
        """How many children the supervisor knows of: it holds a memory file for each."""
        return sum("taskhive-stack" in name for name in self._descriptors())

    def _descriptors(self) -> list[str]:
        found = []
        for one in Path(f"/proc/{self._worker.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(one.readlink()))
        return found

    def _others(self) -> int:
        """Descriptors that belong to no child."""
        return len(self._descriptors()) - PER_CHILD * self._slots()

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def _zombies(self) -> list[str]:
        found = []
        for one in self._worker.family():
            try:
                if one.status() == psutil.STATUS_ZOMBIE:
                    found.append(f"zombie {one.pid}")
            except psutil.NoSuchProcess:
                continue
        return found


def mark() -> str:
    """A word for the environment of a worker, by which all that it ever started is known."""
    return f"torture-{os.getpid()}-{os.urandom(6).hex()}"
