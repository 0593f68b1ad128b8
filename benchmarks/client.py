"""What a program that dispatches jobs and waits for them sees: `python -m benchmarks.client`.

A worker with as many children as there are cores runs beside. The Executor is measured in turns with the
standard library's pool of processes, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor as AnyExecutor
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.measure import Row, Series, Target, alternate, repeated, table
from taskhive import AsyncHive, Executor, Hive
from taskhive.context import CurrentJob
from taskhive.testing import server, worker

SECRET = "a-secret-of-this-benchmark-alone-long-enough"
HANDLERS = """
from taskhive import Hive
hive = Hive()
hive.accept_calls("calls")

@hive.handler
def nothing(value=None):
    return value
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int
    trips: int
    calls: int
    waiters: int


WHOLE = Scale(rounds=5, trips=300, calls=10_000, waiters=1000)
QUICK = Scale(rounds=2, trips=50, calls=1000, waiters=200)


def same(value: int) -> int:
    return value


@contextmanager
def place() -> Iterator[tuple[str, Hive]]:
    """A server, and a hive whose jobs a worker runs."""
    with tempfile.TemporaryDirectory() as folder, server() as url:
        file = Path(folder, "nothing.py")
        file.write_text(HANDLERS)
        with worker(file, url=url, concurrency=os.cpu_count() or 1, secret=SECRET) as hive:
            yield url, hive


def round_trips(hive: Hive, scale: Scale) -> Row:
    queue = hive.queue("nothing")

    def one_round() -> float:
        times = []
        for _ in range(scale.trips):
            started = time.perf_counter()
            queue.dispatch().result(timeout=60)
            times.append(time.perf_counter() - started)
        return statistics.median(times) * 1000

    figures = alternate({"trip": one_round}, scale.rounds)
    return Row("dispatch and result, p50, ms", figures["trip"], Target(2.0))


def mapped(pool: AnyExecutor, calls: int, chunksize: int) -> Callable[[], float]:
    def one_round() -> float:
        started = time.perf_counter()
        count = sum(1 for _ in pool.map(same, range(calls), chunksize=chunksize))
        assert count == calls
        return calls / (time.perf_counter() - started)

    return one_round


def executors(hive: Hive, scale: Scale) -> list[Row]:
    rows = []
    with Executor(hive) as ours, ProcessPoolExecutor() as theirs:
        # A round with the larger one takes a fiftieth of a second: one alone says nothing.
        for chunksize, least, times in ((1, 0.5, 1), (64, 1.0, 12)):
            pools = {"ours": ours, "theirs": theirs}
            figures = alternate(
                {name: mapped(pool, scale.calls, chunksize) for name, pool in pools.items()},
                scale.rounds * times,
            )
            what = f"map, chunksize={chunksize}"
            rows += [
                Row(f"{what}, calls/s", figures["ours"]),
                Row("  ... of a ProcessPoolExecutor", figures["theirs"]),
                Row("  ... ratio", figures["ours"].by(figures["theirs"]), Target(least, at_least=True)),
            ]
    return rows


def waiters(url: str, prefix: str, scale: Scale) -> list[Row]:
    """Many results awaited at once, and the connections that this takes."""

    async def main() -> tuple[float, float]:
        named = {"client_name": "waiters"}
        async with (
            AsyncHive(url, prefix=prefix, secret=SECRET, client_options=named) as hive,
            AsyncHive(url, prefix=prefix, secret=SECRET) as other,
        ):
            queue = other.queue("nothing")
            await (await queue.dispatch()).result()
            started = time.perf_counter()
            jobs = [
                hive.job("nothing", job.id) for job in await queue.dispatch_many(range(scale.waiters))
            ]
            waiting = asyncio.gather(*(job.result() for job in jobs))
            await asyncio.sleep(0)
            assert await waiting == list(range(scale.waiters))
            took = time.perf_counter() - started
            with redis.Redis(unix_socket_path=url.removeprefix("unix://")) as client:
                mine = [one for one in client.client_list() if one["name"] == "waiters"]
            return took * 1000, len(mine)

    took, connections = zip(*(asyncio.run(main()) for _ in range(scale.rounds)), strict=True)
    return [
        Row(f"{scale.waiters} results awaited at once, ms", Series(took)),
        Row("  ... connections", Series(connections), Target(1.0)),
    ]


def progress(scale: Scale) -> Row:
    job = CurrentJob("id", "queue", 1, 1)
    numbers = iter(range(10**9))
    plain = repeated(lambda: next(numbers), 100_000)
    said = repeated(lambda: job.progress(next(numbers), 100), 100_000)
    figures = alternate({"plain": plain, "said": said}, scale.rounds)
    cost = figures["said"].by(figures["plain"], lambda a, b: a - b)
    return Row("progress, nothing due, µs", cost, Target(1.0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--check", action="store_true", help="fail if a target is missed")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    scale = QUICK if options.quick else WHOLE
    with place() as (url, hive):
        rows = [round_trips(hive, scale), *executors(hive, scale)]
        rows += waiters(url, hive.prefix, scale)
    rows.append(progress(scale))
    title = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    print(table(title, rows))
    if options.json:
        facts = {"title": title, "rows": [row.facts() for row in rows]}
        options.json.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    return 1 if options.check and any(row.missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
