"""One worker that is watched while it follows the machine, for `benchmarks.concurrency`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskhive import Hive
from taskhive.machine import Machine

HANDLERS = Path(__file__).with_name("concurrency_handlers.py")
ROOT = HANDLERS.parents[1]
CPU = {"crunch": 1.0, "fetch": 0.1, "parse": 0.5}
"""Which part of a job's time is CPU time: by that it counts, or of a mix the cheap jobs alone would."""


@dataclass
class Run:
    """One worker at work, and what it said of its target."""

    hive: Hive
    process: subprocess.Popen[str]
    began: float = field(default_factory=time.monotonic)
    targets: list[tuple[float, int, str]] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)
    used: list[tuple[float, float]] = field(default_factory=list)
    """Which part of the granted cores was in use, sample by sample."""
    over: threading.Event = field(default_factory=threading.Event)
    ledger: Path = field(default_factory=Path)
    """What the jobs themselves wrote down."""

    def sample(self) -> None:
        """Watch the cores from outside, so that the worker is not its own witness."""
        machine = Machine()
        cores, before = machine.grant().cores, machine.read()
        while not self.over.wait(0.5):
            now = machine.read()
            part = (now.busy - before.busy) / (now.at - before.at) / cores
            self.used.append((now.at - self.began, part))
            before = now

    def turns(self) -> int:
        """How often the target changed its direction."""
        ups = [later[1] > earlier[1] for earlier, later in itertools.pairwise(self.targets)]
        return sum(a != b for a, b in itertools.pairwise(ups))

    def target_at(self, moment: float) -> int:
        return [target for at, target, _ in self.targets if at <= moment][-1]

    def read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with contextlib.suppress(ValueError):
                self._said(json.loads(line))

    def _said(self, event: dict[str, Any]) -> None:
        now = time.monotonic() - self.began
        if event["event"] == "worker.started":
            self.began = time.monotonic()
            why = str(event["concurrency"])
            self.targets.append((0.0, int(why.split(":")[0].split()[0]), why))
            self.ready.set()
        elif event["event"] == "worker.target":
            self.targets.append((now, int(event["target"]), str(event["why"])))

    def done(self, start: float, end: float) -> float:
        """CPU seconds of work done between two moments, by what the jobs themselves wrote down.

        Of a job that began before or ends after, the part that lies between: where many run at once they
        come in waves, and how many happen to end within says little.
        """
        while any(began < end for began in self._open()):
            time.sleep(0.1)
        done = 0.0
        for _, queue, seconds, began, ended in self._lines("ended"):
            part = min(float(ended), end) - max(float(began), start)
            if part > 0:
                done += float(seconds) * CPU[queue] * part / (float(ended) - float(began))
        return done

    def _open(self) -> list[float]:
        begun = sorted(float(line[-1]) for line in self._lines("began"))
        ended = {float(line[3]) for line in self._lines("ended")}
        return [moment for moment in begun if moment not in ended]

    def _lines(self, kind: str) -> list[list[str]]:
        rows = (line.split() for line in self.ledger.read_text().splitlines())
        return [row for row in rows if row[0] == kind]

    def feed(self, jobs: dict[str, float], seconds: float) -> None:
        """Enough for the most that could be done, so that no slot is ever idle for want of jobs."""
        for queue, each in jobs.items():
            self.hive.queue(queue).dispatch_many([each] * int(40 * seconds / each))


@contextlib.contextmanager
def work(url: str, prefix: str, *words: str, inside: Path | None = None) -> Iterator[Run]:
    """A worker, ready; in a control group, if one is named."""
    folder = tempfile.TemporaryDirectory()
    ledger = Path(folder.name, "ledger")
    ledger.touch()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TASKHIVE_PREFIX": prefix,
        "TASKHIVE_BENCHMARK_LEDGER": str(ledger),
    }
    command = [sys.executable, "-m", "taskhive", str(HANDLERS), "--url", url, "--log-format", "json"]
    process = subprocess.Popen(
        [*command, "--grace", "0", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    if inside is not None:
        (inside / "cgroup.procs").write_text(str(process.pid))  # it has not even imported anything yet
    with folder, Hive(url, prefix=prefix) as hive:
        run = Run(hive, process, ledger=ledger)
        threads = [threading.Thread(target=one, daemon=True) for one in (run.read, run.sample)]
        try:
            threads[0].start()
            if not run.ready.wait(30):
                raise SystemExit("the worker did not start")
            threads[1].start()
            yield run
        finally:
            process.terminate()
            process.wait()
            run.over.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            assert process.stderr is not None
            process.stderr.close()
