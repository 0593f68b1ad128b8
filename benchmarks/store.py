"""What the store costs: `python -m benchmarks.store` starts servers of its own and measures them.

Variants that are compared run in turns, round by round, on one server, and a figure is the median of
its rounds: on a shared machine a single run says little, and two runs one after the other say less.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, Series, Target, alternate, repeated, table
from benchmarks.servers import Server, programs, running
from taskhive import Hive, codec
from taskhive.address import read_url
from taskhive.broker import Broker
from taskhive.commands import Commands
from taskhive.core import IO_TIMEOUT
from taskhive.effects import Flow
from taskhive.parcels import AS_SET, Leased, Settle
from taskhive.session import Session

CHUNK, BATCH = 1000, 128
LEASE_MS = 600_000
"""Longer than any measurement: a lease that lapsed in the middle would be swept, and counted."""
TEXT = "x" * 95
PAYLOAD = codec.encode_call((TEXT,), {})
assert len(PAYLOAD) == 100, "the jobs of all measurements carry 100 bytes"
BARE = "#!lua\nreturn ARGV[1]"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: enough for steady medians, or just enough to see that all works."""

    rounds: int
    calls: int
    exchanges: int
    kept: int
    deep: int
    shallow: int


WHOLE = Scale(rounds=60, calls=200, exchanges=4, kept=100_000, deep=1_000_000, shallow=10_000)
QUICK = Scale(rounds=12, calls=100, exchanges=2, kept=20_000, deep=100_000, shallow=10_000)


class Client:
    """The commands of the store and the broker that runs them, as a worker has them."""

    def __init__(self, server: Server) -> None:
        target = read_url(server.url)
        self.session = Session(target, 10.0)
        self.commands = Commands(self.session, "th")
        self.broker = Broker(target, Path, IO_TIMEOUT)

    def bare(self) -> Callable[[], object]:
        """One round trip of the least a script can do, packed and sent as a dispatch is."""
        run, command = self.broker.run, self.session.command
        run(command(None, b"SCRIPT", b"LOAD", BARE.encode()))
        sha = hashlib.sha1(BARE.encode()).hexdigest().encode()
        return lambda: run(command(None, b"EVALSHA", sha, b"0", PAYLOAD))

    def exchange(self, queue: str, leases: list[Leased], want: int, ttl_ms: int) -> list[Leased]:
        settles = [Settle(job.id, job.token, "done", ttl_ms=ttl_ms) for job in leases]
        flow: Flow[Any] = self.commands.exchange(
            queue, want=want, lease_ms=LEASE_MS, worker="bench", settles=settles
        )
        taken: list[Leased] = self.broker.run(flow).leases
        return taken

    def close(self) -> None:
        self.broker.close()


@contextlib.contextmanager
def connected(program: Path) -> Iterator[tuple[Server, Hive, Client]]:
    """A fresh server, a program that dispatches, and a worker's client."""
    with (
        running(program) as server,
        Hive(server.url) as hive,
        contextlib.closing(Client(server)) as worker,
    ):
        yield server, hive, worker


def fill(hive: Hive, queue: str, jobs: int) -> None:
    for start in range(0, jobs, CHUNK):
        hive.queue(queue).dispatch_many([TEXT] * min(CHUNK, jobs - start))


def dispatching(program: Path, scale: Scale) -> Iterator[Row]:
    """One job at a time, and a thousand, beside the barest script call."""
    with connected(program) as (server, hive, worker), server.client() as plain:
        queue = hive.queue("single")
        bare = worker.bare()
        sha = hashlib.sha1(BARE.encode()).hexdigest()
        many = repeated(lambda: hive.queue("many").dispatch_many([TEXT] * CHUNK), 3)
        got = alternate(
            {
                "single": repeated(lambda: queue.dispatch(TEXT), scale.calls),
                "bare": repeated(bare, scale.calls),
                "library": repeated(lambda: plain.evalsha(sha, 0, PAYLOAD), scale.calls),
                "many": lambda: many() / CHUNK,
            },
            scale.rounds,
        )
        yield Row("bare EVALSHA, our client, µs", got["bare"])
        yield Row("bare EVALSHA, redis-py, µs", got["library"])
        yield Row("dispatch, µs", got["single"])
        yield Row("dispatch / bare EVALSHA", got["single"].by(got["bare"]), Target(1.6))
        yield Row("dispatch / redis-py EVALSHA", got["single"].by(got["library"]))
        yield Row("dispatch, jobs/s", got["single"].each(_per_second))
        yield Row("dispatch_many, jobs/s", got["many"].each(_per_second), Target(80_000, at_least=True))
        yield Row(
            "dispatch_many / dispatch, jobs/s",
            got["single"].by(got["many"]),
            Target(5, at_least=True),
        )
        yield Row("bare EVALSHA in the server, µs", _in_server(server, bare, scale))
        yield Row("dispatch in the server, µs", _in_server(server, lambda: queue.dispatch(TEXT), scale))


def exchanging(program: Path, scale: Scale) -> Iterator[Row]:
    """A worker's one trip: 128 jobs settled, 128 leased."""
    with connected(program) as (_, hive, worker):
        variants = {}
        for name, ttl_ms in (("kept", AS_SET), ("dropped", 0)):
            fill(hive, name, (scale.rounds + 2) * scale.exchanges * BATCH)
            variants[name] = _exchanges(worker, name, ttl_ms, scale.exchanges)
        got = alternate(variants, scale.rounds)
        least = Target(50_000, at_least=True)
        yield Row("exchange 128+128, jobs/s", got["kept"].each(_per_second), least)
        yield Row("  the same with result_ttl=0", got["dropped"].each(_per_second), least)


def deepening(program: Path, scale: Scale) -> Iterator[Row]:
    """The same trip with many more jobs waiting."""
    with connected(program) as (_, hive, worker):
        variants = {}
        for name, depth in (("deep", scale.deep), ("shallow", scale.shallow)):
            fill(hive, name, depth)
            one = _exchanges(worker, name, AS_SET, 1)

            def refilled(name: str = name, one: Callable[[], float] = one) -> float:
                hive.queue(name).dispatch_many([TEXT] * BATCH)
                return one()

            variants[name] = refilled
        got = alternate(variants, 2 * scale.rounds)
        yield Row(
            f"exchange, {scale.deep:,} / {scale.shallow:,} wait",
            got["deep"].by(got["shallow"]),
            Target(1.3),
        )


def remembering(program: Path, scale: Scale, wait: float) -> Iterator[Row]:
    """The bytes of a waiting job, and what is left of it when it is done."""
    with running(program) as server:
        # Whatever comes with the first jobs is not of the jobs.
        with Hive(server.url) as hive, contextlib.closing(Client(server)) as worker:
            fill(hive, "kept", CHUNK)
            leases = worker.exchange("kept", [], BATCH, 0)
            while leases:
                leases = worker.exchange("kept", leases, BATCH, 0)
        before = server.memory()
        with Hive(server.url) as hive:
            fill(hive, "kept", scale.kept)
        yield _bytes_row("waiting job of 100 bytes, bytes", server, before, scale.kept, 325)
        with contextlib.closing(Client(server)) as worker:
            leases = worker.exchange("kept", [], BATCH, 0)
            while leases:
                leases = worker.exchange("kept", leases, BATCH, 0)
        yield _bytes_row("  left when settled, result_ttl=0", server, before, scale.kept, None)
        if wait:
            time.sleep(wait)
            yield _bytes_row(f"  left {wait:.0f} s later", server, before, scale.kept, 1)


def _bytes_row(what: str, server: Server, before: int, jobs: int, limit: float | None) -> Row:
    figure = (server.memory() - before) / jobs
    return Row(what, Series((figure,)), None if limit is None else Target(limit))


def _exchanges(worker: Client, queue: str, ttl_ms: int, times: int) -> Callable[[], float]:
    """A variant for `alternate`: microseconds per job that was settled and replaced."""
    leases = worker.exchange(queue, [], BATCH, ttl_ms)

    def one_round() -> float:
        nonlocal leases
        started = time.perf_counter()
        for _ in range(times):
            leases = worker.exchange(queue, leases, BATCH, ttl_ms)
        seconds = time.perf_counter() - started
        if len(leases) != BATCH:
            raise RuntimeError(f"{queue} ran dry: its exchanges were not of {BATCH} jobs")
        return seconds / times / BATCH * 1e6

    return one_round


def _in_server(server: Server, action: Callable[[], object], scale: Scale) -> Series:
    """Microseconds that the server itself counts for one script call."""
    figures = []
    with server.client() as plain:
        for _ in range(scale.rounds // 4):
            plain.config_resetstat()
            for _ in range(scale.calls):
                action()
            figures.append(float(server.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]))
    return Series(tuple(figures))


def _per_second(microseconds: float) -> float:
    return 1e6 / microseconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller queues")
    parser.add_argument(
        "--full", action="store_true", help="also wait until what was settled is forgotten"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--server", choices=("valkey", "redis", "both"), default="both")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    scale = QUICK if options.quick else WHOLE
    found = programs()
    chosen = sorted(found) if options.server == "both" else [options.server]
    missing = [name for name in chosen if name not in found]
    if missing or not chosen:
        print(f"there is no {' and no '.join(missing) or 'server'} program here", file=sys.stderr)
        return 2
    results: dict[str, Any] = {"python": platform.python_version(), "servers": {}}
    missed = 0
    for name in chosen:
        with running(found[name]) as server:
            version = server.version()
        rows: list[Row] = []
        rows += dispatching(found[name], scale)
        rows += exchanging(found[name], scale)
        rows += deepening(found[name], scale)
        rows += remembering(found[name], scale, 100.0 if options.full else 0.0)
        print(table(f"{version}, Python {platform.python_version()}", rows), end="\n\n", flush=True)
        results["servers"][version] = [row.facts() for row in rows]
        missed += sum(row.missed for row in rows)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
