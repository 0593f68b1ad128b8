"""A lease is kept as long as its worker lives, given back when that leaves, and never outlived."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from taskhive import Hive, Job
from tests.servers import Server, until
from tests.worker.conftest import Start
from tests.worker.workers import Worker, living, over

HANDLERS = """
import collections, ctypes, itertools, os, time
from taskhive import Hive
hive = Hive()
CLOCK = time.CLOCK_BOOTTIME

def note(path, *words):
    "One line of a ledger: whole, whoever else writes."
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())
    os.close(file)

@hive.handler(timeout=None, min_backoff=0, max_backoff=0)
def wait(flag, job):
    print("begun", job.id)
    while not os.path.exists(flag): time.sleep(0.005)
    return job.stalls

@hive.handler(timeout=None)
def c_loop(seconds):
    began = time.perf_counter()
    collections.deque(itertools.repeat(None, 20_000_000), maxlen=0)
    turns = int(20_000_000 * seconds / (time.perf_counter() - began))
    print("begun")
    began = time.perf_counter()
    collections.deque(itertools.repeat(None, turns), maxlen=0)
    return time.perf_counter() - began

@hive.handler(max_crashes=1, min_backoff=0, max_backoff=0)
def nap(seconds, ledger, job, crash=False):
    began = time.clock_gettime(CLOCK)
    if crash and not job.crashes:
        ctypes.string_at(0)
    time.sleep(seconds)
    note(ledger, os.getppid(), job.id, began, time.clock_gettime(CLOCK))
    return job.id
"""


def begun(worker: Worker, id: str) -> None:
    until(lambda: any(e["line"] == f"begun {id}" for e in worker.of("output")), f"{id} has begun")


def intervals(ledger: Path) -> list[tuple[str, str, float, float]]:
    """What the handlers wrote: the zygote, the job, from, to."""
    rows = [line.split() for line in ledger.read_text().splitlines()]
    return [(zygote, id, float(start), float(end)) for zygote, id, start, end in rows]


def uncharged(*jobs: Job[Any]) -> bool:
    return all(
        (info.attempts, sum((c.retries, c.timeouts, c.stalls, c.crashes))) == (1, 0)
        for info, c in ((job.info(), job.info().counts) for job in jobs)
    )


def test_a_c_loop_longer_than_its_lease_is_never_taken_for_dead(start: Start, hive: Hive) -> None:
    workers = [start(HANDLERS, "--lease", "2").ready() for _ in range(2)]
    job = hive.queue("c_loop").options(id="J").dispatch(5.0)
    assert over(hive, job) == ["succeeded"]
    assert uncharged(job)
    assert job.info().result > 2
    assert not any(worker.of("attempt.lost") or worker.of("settle.stale") for worker in workers)


def test_a_server_away_for_longer_than_a_lease_ends_explicit_ids_and_lets_others_finish(
    start: Start, hive: Hive, tmp_path: Path, valkey: Server
) -> None:
    worker = start(HANDLERS, "--lease", "1.5").ready()
    flag = tmp_path / "go"
    plain = hive.queue("wait").dispatch(str(flag))
    strict = hive.queue("wait").options(id="J").dispatch(str(flag))
    begun(worker, plain.id)
    begun(worker, "J")
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    try:
        worker.until("attempt.lost", job="wait/J")
        assert not worker.of("attempt.lost", job=f"wait/{plain.id}")
        flag.touch()
    finally:
        valkey.process.send_signal(signal.SIGCONT)
    assert over(hive, plain, strict) == ["succeeded"] * 2
    assert uncharged(plain)  # it was renewed or settled by the attempt that went on
    assert not worker.of("attempt.lost", job=f"wait/{plain.id}")


def test_a_lost_lease_kills_the_child_and_writes_nothing(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    worker = start(HANDLERS, "--concurrency", "1").ready()
    queue = hive.queue("wait")
    job = queue.dispatch(str(tmp_path / "never"))
    begun(worker, job.id)
    children = worker.zygote().children()
    queue.destroy()
    worker.until("attempt.lost", job=f"wait/{job.id}")
    until(lambda: not living(children), "its child is killed")
    (tmp_path / "go").touch()
    other = queue.dispatch(str(tmp_path / "go"))
    assert over(hive, other) == ["succeeded"]
    stats = queue.stats()
    assert (stats.succeeded, stats.failed, stats.cancelled, stats.active) == (1, 0, 0, 0)
    assert not worker.of("settle.stale")


def test_what_the_grace_does_not_suffice_for_is_given_back_uncharged(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    worker = start(HANDLERS, "--concurrency", "1", "--grace", "0.2").ready()
    flag = tmp_path / "go"
    jobs = [hive.queue("wait").dispatch(str(flag)) for _ in range(2)]
    begun(worker, jobs[0].id)
    assert worker.stop() == 0
    stats = hive.queue("wait").stats()
    assert (stats.ready, stats.active) == (2, 0)
    flag.touch()
    start(None).ready()
    assert over(hive, *jobs) == ["succeeded"] * 2
    assert uncharged(*jobs)


def test_ten_rolling_restarts_under_load_lose_and_charge_nothing(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    queue, jobs = hive.queue("nap"), []
    words = ("--grace", "0.05")
    running = [start(HANDLERS, *words).ready(), start(None, *words).ready()]
    for restart in range(10):
        jobs += [queue.dispatch(0.02 * (n % 8), str(ledger)) for n in range(12)]
        jobs += [queue.options(id=f"{restart}-{n}").dispatch(0.1, str(ledger)) for n in range(4)]
        leaving = running.pop(0)
        leaving.process.send_signal(signal.SIGTERM)
        running.append(start(None, *words).ready())
        assert leaving.ended() == 0, leaving.story()
    assert set(over(hive, *jobs)) == {"succeeded"}
    assert uncharged(*jobs)
    stats = queue.stats()
    assert (stats.ready, stats.active, stats.delayed, stats.blocked, stats.failed) == (0, 0, 0, 0, 0)
    assert stats.succeeded == len(jobs)
    ends = [id for _, id, _, _ in intervals(ledger)]
    assert {job.id for job in jobs} == set(ends)


def test_a_job_that_crashed_once_runs_alone_on_its_worker(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    start(HANDLERS, "--concurrency", "3").ready()
    queue = hive.queue("nap")
    before = [queue.dispatch(0.05, str(ledger)) for _ in range(10)]
    poison = [queue.dispatch(0.2, str(ledger), crash=True) for _ in range(2)]
    after = [queue.dispatch(0.05, str(ledger)) for _ in range(30)]
    assert set(over(hive, *before, *poison, *after)) == {"succeeded"}
    assert [job.info().counts.crashes for job in poison] == [1, 1]
    assert uncharged(*before, *after)
    rows = intervals(ledger)
    names = {job.id for job in poison}
    for _, id, start_, end in rows:
        if id in names:
            beside = [row for row in rows if row[1] != id and row[2] < end and row[3] > start_]
            assert beside == []


def test_a_cancel_ends_its_own_job_and_never_the_next_one(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    start(HANDLERS, "--concurrency", "2").ready()
    queue = hive.queue("nap")
    spared: list[Job[Any]] = []
    hit: list[Job[Any]] = []
    for round_ in range(30):
        jobs = [queue.dispatch(0.002 * (n % 4), str(ledger)) for n in range(20)]
        for number, job in enumerate(jobs):
            if (number + round_) % 2:
                job.cancel()
                hit.append(job)
            else:
                spared.append(job)
    assert set(over(hive, *spared)) == {"succeeded"}
    assert uncharged(*spared)
    ends = over(hive, *hit)
    assert "cancelled" in ends
    assert set(ends) <= {"succeeded", "cancelled"}  # some may have ended before
    stats = queue.stats()
    assert (stats.succeeded, stats.cancelled) == (
        len(spared) + ends.count("succeeded"),
        ends.count("cancelled"),
    )
    assert (stats.failed, stats.active, stats.ready) == (0, 0, 0)
