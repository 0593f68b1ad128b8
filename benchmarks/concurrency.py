"""How the number of jobs at once follows the machine: `python -m benchmarks.concurrency`.

Starts a server and workers of its own. A machine that is busy with something else gives other
figures: that is what is measured. With `--plot FILE` the targets over time are drawn (needs
matplotlib).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.servers import programs, running
from taskhive import Hive
from taskhive.machine import Machine

HANDLERS = Path(__file__).with_name("concurrency_handlers.py")
ROOT = HANDLERS.parents[1]
WORKLOADS: dict[str, dict[str, float]] = {
    "CPU-bound": {"crunch": 0.1},
    "sleeps 90 %": {"fetch": 0.2},
    "sleeps 50 %": {"parse": 0.1},
    "a mix": {"crunch": 0.1, "fetch": 0.2},
}
BURNER = "while True: pass"
MIB = 1 << 20


@dataclass
class Run:
    """One worker at work, and what it said of its target."""

    hive: Hive
    process: subprocess.Popen[str]
    began: float = field(default_factory=time.monotonic)
    targets: list[tuple[float, int, str]] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

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

    def done(self) -> int:
        return sum(self.hive.queue(queue).stats().succeeded for queue in self.hive.queues())

    def feed(self, jobs: dict[str, float], seconds: float) -> None:
        """Enough for the most that could be done, so that no slot is ever idle for want of jobs."""
        for queue, each in jobs.items():
            self.hive.queue(queue).dispatch_many([each] * int(40 * seconds / each))


@contextlib.contextmanager
def work(url: str, prefix: str, *words: str) -> Iterator[Run]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_PREFIX": prefix}
    command = [sys.executable, "-m", "taskhive", str(HANDLERS), "--url", url, "--log-format", "json"]
    process = subprocess.Popen(
        [*command, "--grace", "0", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    with Hive(url, prefix=prefix) as hive:
        run = Run(hive, process)
        reader = threading.Thread(target=run.read, daemon=True)
        reader.start()
        try:
            if not run.ready.wait(30):
                raise SystemExit("the worker did not start")
            yield run
        finally:
            process.terminate()
            process.wait()
            reader.join()


def throughput(
    url: str, prefix: str, jobs: dict[str, float], warm: float, seconds: float, *words: str
) -> float:
    """Jobs per second, once the worker has settled."""
    with work(url, prefix, *words) as run:
        run.feed(jobs, warm + seconds)
        time.sleep(warm)
        before, began = run.done(), time.monotonic()
        time.sleep(seconds)
        return (run.done() - before) / (time.monotonic() - began)


def sweep(url: str, cores: float, warm: float, seconds: float) -> None:
    """Throughput of auto beside that of fixed numbers, for each workload."""
    whole = max(1, round(cores))
    print(f"{'jobs':<14}{'best fixed':>14}{'jobs/s':>10}{'auto jobs/s':>13}{'auto/best':>11}")
    for number, (name, jobs) in enumerate(WORKLOADS.items()):
        counts = sorted({1, whole, 2 * whole, 4 * whole, 9 * whole})
        fixed = {
            count: throughput(
                url, f"f{number}-{count}", jobs, min(warm, 3.0), seconds, "--concurrency", str(count)
            )
            for count in counts
        }
        auto = throughput(url, f"a{number}", jobs, warm, seconds)
        best = max(fixed, key=lambda count: fixed[count])
        print(f"{name:<14}{best:>14}{fixed[best]:>10.1f}{auto:>13.1f}{auto / fixed[best]:>11.0%}")


def neighbour(url: str, settle: float) -> tuple[Run, float, float]:
    """A neighbour comes and burns a core, and leaves again."""
    with work(url, "neighbour") as run:
        run.feed({"crunch": 0.1}, 3 * settle)
        time.sleep(settle)
        burner = subprocess.Popen([sys.executable, "-S", "-c", BURNER])
        came = time.monotonic() - run.began
        time.sleep(settle)
        burner.kill()
        burner.wait()
        left = time.monotonic() - run.began
        time.sleep(settle)
    down = next((at - came for at, _, _ in run.targets if came < at < left), None)
    up = next((at - left for at, _, _ in run.targets if at > left), None)
    shown = [f"{'-' if one is None else f'{one:.1f} s'}" for one in (down, up)]
    print(f"a neighbour burns a core: down after {shown[0]}, up {shown[1]} after it left")
    for at, target, why in run.targets:
        print(f"  {at:6.1f} s  {target:3d}  {why}")
    return run, came, left


def memory(url: str) -> None:
    """How far a job comes that grows by 100 MiB in 50 ms, past its limit of 1 GiB."""
    with work(url, "memory", "--concurrency", "1") as run:
        peaks = []
        for _ in range(3):
            job = run.hive.queue("grow").dispatch(4096, 2000.0)
            with contextlib.suppress(Exception):
                job.result(timeout=60)
            attempts = run.hive._run(run.hive._core.commands.attempts("grow", job.id, None))
            peaks.append((attempts[-1].black_box or {}).get("peak_memory", 0) / MIB)
    words = ", ".join(f"{peak:.0f}" for peak in peaks)
    print(f"memory limit 1024 MiB, 100 MiB in 50 ms: killed at {words} MiB (promised: below 1178)")


def beside(url: str, cores: float) -> None:
    """How long 10 ms jobs wait beside as many 5 s jobs as there are slots."""
    slots = max(1, round(cores))
    with work(url, "beside", "--concurrency", str(slots)) as run:
        run.hive.queue("slow").dispatch_many([5.0] * slots * 3)
        time.sleep(1.0)
        jobs = []
        for _ in range(60):
            jobs.append(run.hive.queue("quick").dispatch(time.time()))
            time.sleep(0.1)
        waits = sorted(float(job.result(timeout=60)) for job in jobs)
    at = waits[int(0.95 * len(waits))]
    print(
        f"10 ms jobs beside {slots} slots of 5 s jobs wait {at:.2f} s, 95 of 100 times (promised: 1 s)"
    )


@dataclass
class Drawn:
    """One panel of the plot."""

    title: str
    targets: list[tuple[float, int]]
    until: float
    burning: list[tuple[float, float]] = field(default_factory=list)
    """When a neighbour burns a core."""


def plot(path: Path, runs: list[Drawn]) -> None:
    """Targets over time, one panel a run; grey where a neighbour burns."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(runs), 1, figsize=(8, 2.1 * len(runs)), squeeze=False)
    for run, (axis,) in zip(runs, axes, strict=True):
        times = [at for at, _ in run.targets] + [run.until]
        values = [target for _, target in run.targets]
        axis.step(times, [*values, values[-1]], where="post", color="#1f6feb")
        for left, right in run.burning:
            axis.axvspan(left, right, color="#bbbbbb", alpha=0.5)
        axis.set_title(run.title, fontsize=10, loc="left")
        axis.set_ylim(0, max(values) + 1)
        axis.set_xlim(0, run.until)
        axis.set_ylabel("slots")
    axes[-1][0].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def computed() -> list[Drawn]:
    """The same on four idle cores that are computed, not measured: for a machine that is never idle."""
    from taskhive.governor import Bounds
    from tests.unit.plant import Plant

    def panel(title: str, wants: dict[str, float], *spans: tuple[float, float]) -> Drawn:
        plant = Plant(4, Bounds(most=64), wants=wants, noise=0.05)
        begun = plant.now
        for neighbour, seconds in spans:
            plant.neighbour = neighbour
            plant.run(seconds)
        burning = [(20.0, 40.0)] if len(spans) == 3 else []
        targets = [(at - begun, target) for at, target in plant.history]
        return Drawn(title, targets, plant.now - begun, burning)

    return [
        panel("CPU-bound", {"crunch": 1.0}, (0.0, 30.0)),
        panel("sleeps 90 %", {"fetch": 0.1}, (0.0, 30.0)),
        panel("half CPU-bound, half sleeping 90 %", {"crunch": 1.0, "fetch": 0.1}, (0.0, 30.0)),
        panel(
            "CPU-bound, a neighbour burns a core (grey)",
            {"crunch": 1.0},
            (0.0, 20.0),
            (1.0, 20.0),
            (0.0, 20.0),
        ),
    ]


def drawn_of(title: str, run: Run, until: float, *burning: tuple[float, float]) -> Drawn:
    return Drawn(title, [(at, target) for at, target, _ in run.targets], until, list(burning))


def settle(url: str, name: str, seconds: float) -> Drawn:
    with work(url, f"settle-{name.replace(' ', '-').replace('%', 'p')}") as run:
        run.feed(WORKLOADS[name], seconds)
        time.sleep(seconds)
    path = " ".join(str(target) for _, target, _ in run.targets)
    print(f"{name}: {path}  ({run.targets[-1][2]})")
    return drawn_of(name, run, seconds)


PARTS = ("settle", "neighbour", "memory", "beside", "sweep")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.concurrency")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="default: all")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--computed", action="store_true", help="draw a machine that is not there")
    asked = parser.parse_args(words)
    if asked.computed:
        plot(asked.plot or Path("concurrency.svg"), computed())
        return
    parts = asked.parts or PARTS
    grant = Machine().grant()
    seconds = 8.0 if asked.quick else 25.0
    print(f"{grant.words()}, {grant.memory / (1 << 30):.1f} GiB; load before: {os.getloadavg()[0]:.1f}")
    drawn: list[Drawn] = []
    with running(next(iter(programs().values()))) as server:
        if "settle" in parts:
            drawn += [settle(server.url, one, seconds) for one in WORKLOADS]
        if "neighbour" in parts:
            run, came, left = neighbour(server.url, min(seconds, 15.0))
            until = left + min(seconds, 15.0)
            drawn.append(
                drawn_of("CPU-bound, a neighbour burns a core (grey)", run, until, (came, left))
            )
        if "memory" in parts:
            memory(server.url)
        if "beside" in parts:
            beside(server.url, grant.cores)
        if "sweep" in parts:
            sweep(server.url, grant.cores, seconds / 2, seconds / 2)
    if asked.plot is not None:
        plot(asked.plot, drawn)


if __name__ == "__main__":
    main()
