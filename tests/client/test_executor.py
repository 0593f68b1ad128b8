"""An Executor is what a pool of processes is, over workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskhive import (
    ConfigurationError,
    Executor,
    Hive,
    JobCrashed,
    NotEncodable,
    PayloadTooLarge,
    QueueFull,
    embedded,
)
from tests.servers import Server, until
from tests.workers import ROOT


@pytest.fixture
def pool(hive: Hive) -> Iterator[Executor]:
    with Executor(hive) as made:
        yield made


class OwnError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def fail(code: int) -> None:
    raise OwnError(code)


def test_functions_lambdas_and_closures_are_called_elsewhere(pool: Executor) -> None:
    factor = 3
    assert pool.submit(pow, 2, 5).result(30) == 32
    assert pool.submit(lambda x: x * factor, 4).result(30) == 12
    assert pool.submit(dict, a=1).result(30) == {"a": 1}
    assert pool.submit(os.getpid).result(30) != os.getpid()
    factor = 5
    assert pool.submit(lambda x: x * factor, 4).result(30) == 20


def test_exceptions_come_back_as_themselves_with_their_place(pool: Executor) -> None:
    with pytest.raises(OwnError) as caught:
        pool.submit(fail, 7).result(30)
    assert caught.value.code == 7
    assert caught.traceback[-1].name == "fail"
    assert isinstance(pool.submit(fail, 8).exception(30), OwnError)


def test_a_bad_call_harms_no_other(pool: Executor) -> None:
    good = [pool.submit(abs, -n) for n in range(20)]
    bad: list[concurrent.futures.Future[Any]] = [
        pool.submit(os._exit, 3),
        pool.submit(fail, 1),
        pool.submit(lambda: (_ for _ in ())),  # a generator does not pickle
        pool.submit(sys.exit, 1),
    ]
    unpicklable = pool.submit(list, (n for n in "x"))
    assert isinstance(unpicklable.exception(30), NotEncodable)
    assert isinstance(bad[0].exception(30), JobCrashed)
    assert all(one.exception(30) is not None for one in bad)
    assert [one.result(30) for one in good] == list(range(20))
    assert pool.submit(abs, -1).result(30) == 1


def test_map_keeps_the_order_in_chunks_of_any_size(pool: Executor) -> None:
    assert list(pool.map(pow, range(100), itertools.repeat(2))) == [n * n for n in range(100)]
    assert list(pool.map(abs, range(-50, 0), chunksize=7)) == list(range(50, 0, -1))
    twice = iter(range(20))  # the same input in two places gives pairs
    assert list(pool.map(pow, twice, twice, chunksize=3)) == [n ** (n + 1) for n in range(0, 20, 2)]
    assert list(pool.map(abs, [])) == []
    with pytest.raises(OwnError):
        list(pool.map(fail, [1, 2]))


def test_a_call_of_a_chunk_that_raises_stop_iteration_loses_no_other(pool: Executor) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(pool.map(lambda n: next(iter([n] * (n != 3))), range(10), chunksize=5))
    assert list(pool.map(abs, range(3), chunksize=5)) == [0, 1, 2]


def test_calls_and_results_may_be_large(pool: Executor) -> None:
    sizes = [3_000_000, 1, 3_000_000, 9_000_000]
    assert list(pool.map(len, map(bytes, sizes))) == sizes
    assert [len(made) for made in pool.map(bytes, sizes)] == sizes
    too_large = pool.submit(len, bytes(70_000_000))
    assert isinstance(too_large.exception(30), PayloadTooLarge)


def test_a_queue_that_is_full_tells_the_futures_it_did_not_take(hive: Hive) -> None:
    hive.queue("nobody").configure(max_depth=1)
    with Executor(hive, "nobody") as pool:
        first = pool.submit(abs, 1)
        until(lambda: hive.queue("nobody").stats().ready == 1, "the first one waits")
        assert isinstance(pool.submit(abs, 2).exception(30), QueueFull)
        assert first.cancel()
    hive.queue("nobody").destroy()


def test_map_takes_of_an_endless_input_what_it_needs(pool: Executor) -> None:
    taken = []

    def endless() -> Iterator[int]:
        for n in itertools.count():
            taken.append(n)
            yield n

    results = pool.map(abs, endless(), buffersize=10)
    assert list(itertools.islice(results, 25)) == list(range(25))
    assert len(taken) < 100
    results.close()  # type: ignore[attr-defined]


def test_no_result_is_missed_when_the_connection_that_hears_of_ends_breaks(
    pool: Executor, place: Server
) -> None:
    results = pool.map(abs, range(-3000, 0), chunksize=2, buffersize=100)
    with place.client() as client:
        for wanted in range(3000, 0, -1):
            assert next(results) == wanted
            if wanted % 500 == 0:
                client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def test_map_gives_up_after_its_time(pool: Executor) -> None:
    with pytest.raises(TimeoutError):
        list(pool.map(time.sleep, [30], timeout=0.2))


def test_futures_work_with_the_standard_library(pool: Executor) -> None:
    futures = [pool.submit(abs, -n) for n in range(5)]
    done, missing = concurrent.futures.wait(futures, timeout=30)
    assert (len(done), len(missing)) == (5, 0)
    assert {one.result() for one in concurrent.futures.as_completed(futures, timeout=30)} == set(
        range(5)
    )

    async def main() -> int:
        loop = asyncio.get_running_loop()
        return await asyncio.wrap_future(pool.submit(abs, -3)) + await loop.run_in_executor(
            pool, abs, -4
        )

    assert asyncio.run(main()) == 7


def test_a_call_is_cancelled_while_it_waits_and_while_it_runs(pool: Executor, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def slow() -> None:
        mark.touch()
        time.sleep(60)

    running = pool.submit(slow)
    until(mark.exists, "it runs")
    assert running.running()
    waiting = [pool.submit(time.sleep, 60) for _ in range(3)]
    for future in (running, *waiting):
        assert future.cancel()
        assert future.cancelled()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(30)
    assert pool.submit(abs, -1).result(30) == 1
    done = pool.submit(abs, -1)
    done.result(30)
    assert not done.cancel()


def test_an_initializer_runs_once_in_each_child_before_the_first_call(
    hive: Hive, tmp_path: Path
) -> None:
    log = tmp_path / "log"

    def prepare(word: str) -> None:
        os.environ["TH_TEST_WORD"] = word
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")

    with Executor(hive, initializer=prepare, initargs=("ready",)) as pool:
        words = set(pool.map(lambda _: os.environ.get("TH_TEST_WORD"), range(20)))
    assert words == {"ready"}
    pids = log.read_text().split()
    assert len(pids) == len(set(pids))


def test_a_shutdown_waits_drops_what_waits_and_takes_nothing_more(hive: Hive, tmp_path: Path) -> None:
    pool = Executor(hive, "long-calls")  # short ones are handed to a child before it is their turn
    gate = tmp_path / "gate"

    def hold() -> str:
        while not gate.exists():
            time.sleep(0.01)
        return "done"

    running = [pool.submit(hold) for _ in range(2)]
    until(lambda: all(one.running() for one in running), "both children are busy")
    waiting = [pool.submit(abs, n) for n in range(5)]
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, 1)
    assert all(one.cancelled() for one in waiting)
    gate.touch()
    pool.shutdown()
    assert [one.result(30) for one in running] == ["done", "done"]


def test_after_ctrl_c_nobody_waits_for_the_calls(hive: Hive, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def endless() -> None:
        mark.touch()
        time.sleep(3600)

    futures: list[concurrent.futures.Future[None]] = []

    def program() -> None:
        with Executor(hive, "long-calls") as pool:
            futures.extend(pool.submit(endless) for _ in range(5))
            until(mark.exists, "one of them runs")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program()
    assert all(one.cancelled() for one in futures)


def test_wrong_settings_are_refused(hive: Hive, place: Server) -> None:
    with pytest.raises(ConfigurationError, match="TASKHIVE_SECRET"):
        Executor(Hive(place.url))
    with pytest.raises(ConfigurationError, match="--concurrency"):
        Executor(hive, max_workers=3)
    with pytest.raises(ConfigurationError, match="initializer"):
        Executor(hive, initializer=3)  # type: ignore[arg-type]


SCRIPT = """
import os, sys
from taskhive import Executor

def square(n):
    return n * n

if __name__ == "__main__":
    with Executor(max_workers=2) as pool:
        print(list(pool.map(square, range(5))), pool.submit(os.getpid).result() != os.getpid())
        print(pool._queue)
"""


def test_without_a_url_a_worker_is_started_and_stopped(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="th-") as made:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        home = Path(made, "d")
        ran = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_DIR": str(home)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        try:
            said, queue, _ = ran.stdout.split("\n")
            assert (said, ran.stderr) == ("[0, 1, 4, 9, 16] True", "")
            processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
            assert queue.startswith("calls-")
            assert queue not in processes.stdout
        finally:
            embedded.stop(home)
