"""How the number of jobs at once follows the machine: `python -m benchmarks.concurrency`.

Starts a server and workers of its own. A machine that is busy with something else gives other
figures: that is what is measured. With `--plot FILE` targets and cores in use are drawn over time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.concurrency_runs import Run, work
from benchmarks.measure import Row, Series, Target, table
from benchmarks.plot import Drawn, plot
from benchmarks.servers import programs, running
from taskhive.machine import Machine
from tests.groups import memory_group

WORKLOADS: dict[str, dict[str, float]] = {
    "CPU-bound": {"crunch": 0.1},
    "sleeps 90 %": {"fetch": 0.2},
    "sleeps 50 %": {"parse": 0.1},
    "a mix": {"crunch": 0.1, "fetch": 0.2},
}
TAIL = 5.0
"""Seconds of work more than is measured, so that nobody runs dry while the last ones end."""
SETTLED = 20.0
"""Seconds that auto has to come to rest: from two slots to forty, in steps of half as many again."""
BURNER = "while True: pass"
MIB = 1 << 20


def throughput(
    url: str, prefix: str, jobs: dict[str, float], warm: float, seconds: float, *words: str
) -> float:
    """CPU seconds of work a second, once the worker has settled."""
    with work(url, prefix, *words) as run:
        run.feed(jobs, warm + seconds + TAIL)
        time.sleep(warm)
        began = time.monotonic()
        time.sleep(seconds)
        ended = time.monotonic()
        return run.done(began, ended) / (ended - began)


def sweep(url: str, cores: float, seconds: float, rounds: int) -> list[Row]:
    """Throughput of auto beside that of the best fixed number, for each workload.

    The sweep names the best one; then it and auto are measured in turns. The best figure of the sweep
    itself is the luckiest of many, and nobody could stay near it.
    """
    whole = max(1, round(cores))
    rows = []
    for number, (name, jobs) in enumerate(WORKLOADS.items()):
        prefixes = (f"s{number}-{n}" for n in itertools.count())

        def fixed(
            count: int, jobs: dict[str, float] = jobs, prefixes: Iterator[str] = prefixes
        ) -> float:
            return throughput(
                url, next(prefixes), jobs, min(3.0, 2 * seconds), seconds, "--concurrency", str(count)
            )

        counts = (1, *(whole * n for n in (1, 2, 3, 5, 10, 16, 20, 24, 32)))
        tried = {count: fixed(count) for count in counts}
        best = max(tried, key=lambda count: tried[count])
        shown = " ".join(f"{count}:{tried[count]:.2f}" for count in counts)
        print(f"  {name}: {shown}", file=sys.stderr)
        warm = SETTLED if seconds > 1 else seconds
        ratios = [
            throughput(url, next(prefixes), jobs, warm, seconds) / fixed(best) for _ in range(rounds)
        ]
        rows.append(Row(f"{name}: auto of fixed {best}", Series(tuple(ratios)), Target(0.95, True)))
    return rows


def neighbour(url: str, settle: float) -> tuple[list[Row], Drawn]:
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
    before, beside = run.target_at(came), run.target_at(left)
    down = next((at - came for at, n, _ in run.targets if came < at < left and n < before), math.inf)
    up = next((at - left for at, n, _ in run.targets if at > left and n > beside), math.inf)
    for at, target, why in run.targets:
        print(f"  {at:6.1f} s  {target:3d}  {why}", file=sys.stderr)
    title = "CPU-bound, a neighbour burns a core (grey)"
    return [
        Row("a neighbour comes: s until fewer", Series((down,)), Target(5)),
        Row("it leaves: s until more", Series((up,)), Target(10)),
    ], drawn_of(title, run, left + settle, (came, left))


def pressure(url: str, seconds: float) -> list[Row]:
    """Jobs that sleep and hold 100 MiB each, in a group that is granted 1 GiB: memory is the limit."""
    with memory_group(1 << 30) as group:
        if group is None:
            print("  no control group may be made here: left out", file=sys.stderr)
            return []
        with work(url, "pressure", "--max", "64", inside=group) as run:
            run.hive.queue("hold").dispatch_many([[100, 5.0]] * int(80 * seconds))
            time.sleep(seconds)
            killed = run.hive.queue("hold").stats().failed
            reason = run.targets[-1][2]
    print(f"  {reason}", file=sys.stderr)
    most = max(target for _, target, _ in run.targets)
    by_memory = float("GiB" in reason)
    return [
        Row("1 GiB, jobs of 100 MiB: held by it", Series((by_memory,)), Target(1, True)),
        Row("  most slots", Series((float(most),)), Target(10)),
        Row("  jobs that the kernel killed", Series((float(killed),)), Target(0)),
    ]


def memory(url: str, rounds: int) -> list[Row]:
    """How far a job comes that grows by 100 MiB in 50 ms, past its limit of 1 GiB."""
    peaks = []
    with work(url, "memory", "--concurrency", "1") as run:
        for _ in range(rounds):
            job = run.hive.queue("grow").dispatch(4096, 2000.0)
            with contextlib.suppress(Exception):
                job.result(timeout=60)
            peaks.append((job.attempts()[-1].black_box or {}).get("peak_memory", 0) / MIB)
    return [Row("memory limit 1 GiB: killed at MiB", Series(tuple(peaks)), Target(1178))]


def beside(url: str, cores: float, jobs: int) -> list[Row]:
    """How long 10 ms jobs wait beside as many 5 s jobs as there are slots."""
    slots = max(1, round(cores))
    with work(url, "beside", "--concurrency", str(slots)) as run:
        run.hive.queue("slow").dispatch_many([5.0] * slots * 3)
        time.sleep(1.0)
        sent = []
        for _ in range(jobs):
            sent.append(run.hive.queue("quick").dispatch(time.time()))
            time.sleep(0.1)
        waits = [float(job.result(timeout=60)) for job in sent]
    p95 = statistics.quantiles(waits, n=20, method="inclusive")[18]
    return [Row("10 ms jobs beside 5 s jobs: p95 s", Series((p95,)), Target(1))]


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
    return Drawn(title, [(at, target) for at, target, _ in run.targets], until, list(burning), run.used)


def settle(url: str, name: str, cores: float, seconds: float) -> tuple[list[Row], Drawn]:
    """Where the target comes to rest under steady load, and whether it rests."""
    with work(url, f"settle-{name.replace(' ', '-').replace('%', 'p')}") as run:
        run.feed(WORKLOADS[name], seconds)
        time.sleep(seconds)
    path = " ".join(str(target) for _, target, _ in run.targets)
    print(f"  {name}: {path}  ({run.targets[-1][2]})", file=sys.stderr)
    used = [part for at, part in run.used if at > seconds / 2]
    last = float(run.targets[-1][1])
    rows = [
        Row(f"{name}: slots", Series((last,)), Target(cores) if name == "CPU-bound" else None),
        Row("  part of the cores in use", Series(tuple(used)), Target(0.9, True)),
        Row("  turns a minute", Series((run.turns() * 60 / max(60.0, seconds),)), Target(1)),
    ]
    return rows, drawn_of(name, run, seconds)


PARTS = ("settle", "neighbour", "pressure", "memory", "beside", "sweep")


def main(words: list[str] | None = None) -> int:
    """Measure, print a table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.concurrency")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="default: all")
    parser.add_argument("--quick", action="store_true", help="just see that all works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="draw what was measured, such as docs/concurrency.svg")
    parser.add_argument("--computed", action="store_true", help="draw a machine that is not there")
    asked = parser.parse_args(words)
    if asked.computed:
        plot(asked.plot or Path("concurrency.svg"), computed())
        return 0
    parts = asked.parts or PARTS
    grant = Machine().grant()
    quick = asked.quick
    load = os.getloadavg()[0]
    title = f"{grant.words()}, {grant.memory / (1 << 30):.1f} GiB; load before: {load:.1f}"
    drawn: list[Drawn] = []
    rows: list[Row] = []

    def measuring(part: str) -> bool:
        if part in parts:
            print(f"measuring {part} ...", file=sys.stderr)
        return part in parts

    with running(next(iter(programs().values()))) as server:
        if measuring("settle"):
            for name in WORKLOADS:
                more, panel = settle(server.url, name, grant.cores, 4.0 if quick else 60.0)
                rows += more
                drawn.append(panel)
        if measuring("neighbour"):
            more, panel = neighbour(server.url, 4.0 if quick else 15.0)
            rows += more
            drawn.append(panel)
        if measuring("pressure"):
            rows += pressure(server.url, 4.0 if quick else 40.0)
        if measuring("memory"):
            rows += memory(server.url, 1 if quick else 5)
        if measuring("beside"):
            rows += beside(server.url, grant.cores, 5 if quick else 100)
        if measuring("sweep"):
            rows += sweep(server.url, grant.cores, 0.5 if quick else 8.0, 1 if quick else 3)
    if asked.json:
        print(json.dumps({"title": title, "rows": [row.facts() for row in rows]}))
    else:
        print(table(title, rows))
    if asked.plot is not None and drawn:
        plot(asked.plot, drawn)
    return int(any(row.missed for row in rows) and not quick)


if __name__ == "__main__":
    sys.exit(main())
