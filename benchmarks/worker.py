"""What the worker costs: `python -m benchmarks.worker` measures it beside what people use today.

Variants that are compared run in turns, round by round, on one server; a figure is the median of its
rounds. Ratios are what to look at: bare figures say little on a shared machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import peers
from benchmarks.measure import Row, Series, Target, alternate, table
from benchmarks.servers import Server, programs, running
from taskhive import Hive

ROOT = Path(__file__).resolve().parents[1]
HANDLERS = ROOT / "benchmarks" / "jobs.py"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done."""

    rounds: int
    noops: int
    spins: int
    stamps: int
    kills: int
    idle: float


WHOLE = Scale(rounds=7, noops=30_000, spins=2_000, stamps=500, kills=5, idle=10.0)
QUICK = Scale(rounds=1, noops=1_000, spins=100, stamps=20, kills=1, idle=1.0)


@contextlib.contextmanager
def worker(server: Server, *words: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker on the measured handlers, ready."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_URL": server.url, **env}
    process = subprocess.Popen(
        [sys.executable, "-m", "taskhive", str(HANDLERS), *words],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        with Hive(server.url) as hive:
            hive.queue("stamp").dispatch().result(timeout=60)
        yield process
    finally:
        process.terminate()
        process.wait()


def drained(hive: Hive, queue: str, *args: object) -> Callable[[int], float]:
    """Jobs a second through a worker that runs, from a queue that was filled before."""
    q = hive.queue(queue)

    def measure(jobs: int) -> float:
        q.pause()
        done = q.stats().succeeded
        hive.dispatch_many(q.bind(*args) for _ in range(jobs))
        started = time.perf_counter()
        q.resume()
        while (left := jobs - (q.stats().succeeded - done)) > 0:
            # Asking costs the worker's cores too: seldom, and more often towards the end.
            so_far = time.perf_counter() - started
            time.sleep(min(0.5, max(0.002, so_far / (jobs - left or 1) * left / 2)))
        return jobs / (time.perf_counter() - started)

    return measure


def throughput(server: Server, hive: Hive, scale: Scale) -> list[Row]:
    """No-op jobs through two children, beside the peers."""
    pool = peers.Executor()
    ours = drained(hive, "noop")
    variants: dict[str, Callable[[], float]] = {
        "ours": lambda: ours(scale.noops),
        "executor": lambda: pool.noops(max(500, scale.noops // 5)),
    }
    if peers.is_there("huey"):
        huey = peers.huey(server)
        variants["huey"] = lambda: huey.noops(max(500, scale.noops // 10), lambda m: m.noop())
    if peers.is_there("celery"):
        celery = peers.celery(server)
        variants["celery"] = lambda: celery.noops(max(300, scale.noops // 30), lambda m: m.noop.delay())
    found = alternate(variants, scale.rounds)
    targets = {"huey": Target(2.5, True), "celery": Target(15, True), "executor": None}
    rows = [Row("no-op jobs/s, two children", found["ours"], Target(25_000, True))]
    for name in ("executor", "huey", "celery"):
        if name in found:
            rows.append(Row(f"  {name}", found[name]))
            rows.append(Row(f"  times {name}", found["ours"].by(found[name]), targets[name]))
    pool.pool.shutdown()
    return rows


def efficiency(hive: Hive, scale: Scale) -> list[Row]:
    """Jobs of 5 ms of pure Python, beside two forks that do nothing else."""
    ours = drained(hive, "spin", 0.005)
    found = alternate(
        {"ours": lambda: ours(scale.spins), "bare": lambda: peers.bare(scale.spins, 0.005)},
        max(1, scale.rounds // 2),
    )
    part = found["ours"].by(found["bare"])
    return [Row("5 ms jobs, part of bare forks", part, Target(0.97, True))]


def latency(hive: Hive, scale: Scale) -> list[Row]:
    """From dispatch to the first line of the handler, on a worker with nothing to do."""
    waits = []
    for _ in range(scale.stamps):
        sent = time.monotonic()
        waits.append((hive.queue("stamp").dispatch().result(timeout=60) - sent) * 1000)
        time.sleep(0.002)
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return [
        Row("dispatch to first line, p50 ms", Series((statistics.median(waits),)), Target(1)),
        Row("dispatch to first line, p99 ms", Series((cuts[98],)), Target(4)),
    ]


def freshness(hive: Hive, scale: Scale) -> list[Row]:
    """What a process of its own costs a job, one job after the other."""

    def one(queue: str) -> float:
        started = time.perf_counter()
        for _ in range(scale.stamps // 10):
            hive.queue(queue).dispatch().result(timeout=60)
        return (time.perf_counter() - started) / (scale.stamps // 10) * 1000

    found = alternate({"fresh": lambda: one("fresh"), "pooled": lambda: one("stamp")}, scale.rounds)
    more = found["fresh"].by(found["pooled"], lambda a, b: a - b)
    return [Row("a fresh process, ms more", more, Target(8))]


def kills(server: Server, scale: Scale, imports: str = "") -> list[Row]:
    """From the limit of a C loop to the first line of its successor, which finds it reaped."""
    what = f"  where handlers import {imports}, ms" if imports else "C loop: limit to next job, ms"
    if imports and not peers.is_there(imports):
        print(f"  {imports} is not installed: left out", file=sys.stderr)
        return []
    late = []
    with (
        worker(server, "--concurrency", "1", BENCH_IMPORTS=imports),
        Hive(server.url) as hive,
        tempfile.TemporaryDirectory() as folder,
    ):
        queue = hive.queue("c_loop")
        for number in range(scale.kills):
            note = Path(folder, str(number))
            victim = queue.dispatch(str(note))
            while not note.exists():
                time.sleep(0.001)
            began, pid = note.read_text().split()
            first_line, is_reaped = queue.dispatch("", int(pid)).result(timeout=60)
            if not is_reaped or victim.state() != "failed":
                raise RuntimeError("the successor ran beside the C loop, so this measures nothing")
            late.append((first_line - float(began) - 2) * 1000)
    return [Row(what, Series(tuple(late)), Target(30))]


def memory(server: Server) -> list[Row]:
    """What one more child takes beside 100 MB that were loaded before the fork."""
    with worker(server, "--concurrency", "2", BENCH_PRELOAD_MIB="100") as process:
        zygote = psutil.Process(process.pid).children()[0]
        own = [child.memory_full_info().uss / 2**20 for child in zygote.children()]
    return [Row("a child, unshared MiB", Series(tuple(own)), Target(5))]


def start(server: Server, scale: Scale) -> list[Row]:
    """From the command line to the first finished job, beside importing the same handlers."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_URL": server.url}

    def imported() -> float:
        began = time.perf_counter()
        words = [sys.executable, "-c", "import benchmarks.jobs"]
        subprocess.run(words, check=True, env=environment, cwd=ROOT)
        return time.perf_counter() - began

    def started() -> float:
        began = time.perf_counter()
        with worker(server):
            return time.perf_counter() - began

    found = alternate({"worker": started, "import": imported}, max(1, scale.rounds // 2))
    more = found["worker"].by(found["import"], lambda a, b: a - b)
    return [Row("first job, s more than the import", more, Target(0.5))]


def idle(server: Server, hive: Hive, process: subprocess.Popen[bytes], scale: Scale) -> list[Row]:
    """What a worker with nothing to do takes."""
    time.sleep(min(6.0, scale.idle))  # until who was told to leave has left
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    (served,) = (len(one.queues) for one in hive.workers() if one.pid == process.pid)

    def spent() -> float:
        return sum(sum(one.cpu_times()[:2]) for one in family)

    with server.listened() as calls:
        before = spent()
        time.sleep(scale.idle)
        part = (spent() - before) / scale.idle * 100
        each = calls() / scale.idle / served
    return [
        Row("idle: % of a core", Series((part,)), Target(1)),
        Row("idle: calls a second and queue", Series((each,)), Target(1)),
    ]


def _part(name: str, measure: Callable[[], list[Row]]) -> list[Row]:
    print(f"measuring {name} ...", file=sys.stderr)
    return measure()


def main() -> int:
    """Measure all, print a table; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="just see that all works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    scale = QUICK if options.quick else WHOLE
    rows: list[Row] = []
    with running(programs()["valkey"]) as server:
        with worker(server, "--concurrency", "2") as process, Hive(server.url) as hive:
            rows += _part("no-op jobs", lambda: throughput(server, hive, scale))
            rows += _part("5 ms jobs", lambda: efficiency(hive, scale))
            rows += _part("latency", lambda: latency(hive, scale))
            rows += _part("fresh processes", lambda: freshness(hive, scale))
            rows += _part("idle", lambda: idle(server, hive, process, scale))
        rows += _part("kills", lambda: kills(server, scale))
        rows += _part("kills beside pandas", lambda: kills(server, scale, "pandas"))
        rows += _part("memory", lambda: memory(server))
        rows += _part("start", lambda: start(server, scale))
        title = f"{server.version()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    if options.json:
        print(json.dumps({"title": title, "rows": [row.facts() for row in rows]}))
    else:
        print(table(title, rows))
    return int(any(row.missed for row in rows) and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
