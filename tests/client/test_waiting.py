"""Waiting for many: one connection, woken by messages, through anything that happens to it."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from taskhive import ConfigurationError, Hive, ResultTimeout
from taskhive.hive import Job
from tests.servers import Server, programs, running, until
from tests.workers import ROOT


def ack(hive: Hive, *results: Any) -> None:
    for result in results:
        lease = hive.queue("q").lease(wait=30)
        assert lease is not None
        lease.ack(result)


def subscribers(place: Server, hive: Hive, queue: str = "q") -> int:
    channel = hive._core.commands.keys(queue).done
    with place.client() as client:
        return int(client.pubsub_numsub(channel)[0][1])


def test_gather_has_the_results_in_the_order_of_the_jobs(hive: Hive) -> None:
    jobs = hive.queue("echo").dispatch_many(range(500))
    assert hive.gather(jobs, timeout=60) == list(range(500))
    assert hive.gather([]) == []


def test_a_job_does_not_wait_for_queues_that_are_empty(hive: Hive) -> None:
    # The worker has many more queues than children, and asks them all in turn when it is idle.
    for number in range(20):
        assert hive.queue("echo").dispatch(number).result(timeout=30) == number
        assert hive.queue("flaky").dispatch().result(timeout=30) == "now"


def test_any_number_of_waiters_of_a_blocking_program_takes_one_connection(
    place: Server, idle: Hive
) -> None:
    with Hive(place.url, prefix=idle.prefix, client_options={"client_name": idle.prefix}) as hive:
        for many in (1, 1000):
            sent = idle.queue("q").dispatch_many(range(many))
            jobs = [hive.job("q", job.id) for job in sent]
            with ThreadPoolExecutor(1) as beside:
                waiting = beside.submit(hive.gather, jobs, timeout=60)
                ack(idle, *range(many))
                assert waiting.result(60) == list(range(many))
            with place.client() as client:
                assert sum(one["name"] == idle.prefix for one in client.client_list()) == 1


def test_gather_raises_the_first_failure_or_hands_it_back(hive: Hive) -> None:
    good, bad = hive.queue("echo").dispatch(1), hive.queue("fails").dispatch("built-in")
    with pytest.raises(ValueError, match="bad number"):
        hive.gather([good, bad], timeout=30)
    value, error = hive.gather([good, bad], timeout=30, return_exceptions=True)
    assert value == 1
    assert isinstance(error, ValueError)


def test_jobs_come_as_they_end(idle: Hive) -> None:
    jobs = idle.queue("q").dispatch_many([0, 1, 2])
    coming = idle.as_completed(list(reversed(jobs)), timeout=30)
    for job in jobs:  # taken in the order of their dispatch
        ack(idle, "x")
        assert next(coming) is job
    assert next(coming, None) is None


def test_as_completed_times_out_with_how_many_are_missing(idle: Hive) -> None:
    jobs = idle.queue("q").dispatch_many([0, 1])
    ack(idle, "x")
    seen: list[Job[Any]] = []
    with pytest.raises(ResultTimeout) as caught:
        seen.extend(idle.as_completed(jobs, timeout=0.5))
    assert caught.value.waiting == 1


BAR = """
import sys
from taskhive import Hive
hive = Hive(sys.argv[1], prefix=sys.argv[2])
jobs = hive.queue("q").dispatch_many(range(3))
hive.queue("q").purge("ready")
print(len(list(hive.as_completed(jobs, timeout=30, progress=True))))
"""


def test_a_bar_is_shown_in_a_terminal_and_nowhere_else(place: Server, prefix: str) -> None:
    words = [sys.executable, "-c", BAR, place.url, prefix]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    plain = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert (plain.stdout, plain.stderr) == ("3\n", "")
    screen, terminal = os.openpty()
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, stderr=terminal, check=True)
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while data := os.read(screen, 65536):
            shown += data
    os.close(screen)
    assert b"3/3" in shown


def test_a_wrong_timeout_is_refused_also_for_a_job_that_has_ended(idle: Hive) -> None:
    job = idle.queue("q").dispatch()
    ack(idle, "x")
    assert job.result(30) == "x"
    for wrong in (-1, "soon", float("nan")):
        with pytest.raises(ConfigurationError, match="timeout"):
            job.result(wrong)  # type: ignore[arg-type]


NOTEBOOK = """
import sys, types
for name in ("ipykernel", "IPython"):  # what there is in the process of a notebook's cells
    sys.modules[name] = types.ModuleType(name)
"""


def test_a_bar_is_shown_in_a_notebook_by_tqdm(place: Server, prefix: str) -> None:
    words = [sys.executable, "-c", NOTEBOOK + BAR, place.url, prefix]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "3\n"
    assert "3/3" in ran.stderr
    assert "job/s" in ran.stderr


def test_wait_tells_the_ended_from_the_others(idle: Hive) -> None:
    jobs = idle.queue("q").dispatch_many([0, 1])
    ack(idle, "x")
    assert idle.wait(jobs, timeout=30, return_when="FIRST_COMPLETED") == ({jobs[0]}, {jobs[1]})
    assert idle.wait(jobs, timeout=0) == ({jobs[0]}, {jobs[1]})
    lease = idle.queue("q").lease()
    assert lease is not None
    lease.fail("no", permanent=True)
    assert idle.wait(jobs, timeout=30, return_when="FIRST_EXCEPTION").done == set(jobs)
    with pytest.raises(ConfigurationError, match="return_when"):
        idle.wait(jobs, return_when="SOMETIMES")


def test_any_number_of_waiters_share_one_subscription(place: Server, idle: Hive) -> None:
    jobs = idle.queue("q").dispatch_many(range(50))
    results: list[Any] = []
    threads = [threading.Thread(target=lambda j=job: results.append(j.result(60))) for job in jobs]
    for thread in threads:
        thread.start()
    until(lambda: subscribers(place, idle) == 1, "the channel is listened to")
    ack(idle, *range(50))
    for thread in threads:
        thread.join(60)
    assert sorted(results) == list(range(50))
    assert subscribers(place, idle) == 1
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("taskhive-listener") == 1


def test_a_waiter_outlives_the_loss_of_its_connection(place: Server, idle: Hive) -> None:
    job = idle.queue("q").dispatch()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(job.result(60)))
    thread.start()
    for _ in range(3):
        until(lambda: subscribers(place, idle) == 1, "the channel is listened to")
        with place.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        # The end may fall into the gap: it is in the record then.
    until(lambda: idle._listener()._tries == 0, "earlier losses make the next pause no longer")
    ack(idle, "through")
    thread.join(60)
    assert results == ["through"]


def test_nothing_is_asked_while_nothing_happens() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(programs()["valkey"], Path(directory)) as quiet,
        Hive(quiet.url) as hive,
        quiet.client() as client,
    ):
        job = hive.queue("q").dispatch()
        with pytest.raises(ResultTimeout):
            job.result(0.1)
        before = calls(client)
        with pytest.raises(ResultTimeout):
            job.result(1.2)
        assert calls(client) - before == 1


def calls(client: Any) -> int:
    stats = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "eval"))


def test_a_hive_that_waits_can_be_forked(idle: Hive) -> None:
    first = idle.queue("q").dispatch()
    ack(idle, 1)
    assert first.result(30) == 1
    second = idle.queue("q").dispatch()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writing, b".")
            code = 0 if second.result(30) == 2 else 2
        finally:
            os._exit(code)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    ack(idle, 2)
    assert second.result(30) == 2
    assert os.waitpid(child, 0)[1] == 0


def test_a_closed_hive_ends_its_listener_and_can_wait_again(place: Server, idle: Hive) -> None:
    for number in range(2):
        job = idle.queue("q").dispatch()
        ack(idle, number)
        assert job.result(30) == number
        idle.close()
        until(lambda: subscribers(place, idle) == 0, "nobody listens")
        until(
            lambda: "taskhive-listener" not in [t.name for t in threading.enumerate()],
            "the thread has ended",
        )


def test_a_forgotten_hive_takes_its_listener_along(place: Server, prefix: str) -> None:
    hive = Hive(place.url, prefix=prefix)
    job = hive.queue("q").dispatch()
    with pytest.raises(ResultTimeout):
        job.result(0.01)
    listener = hive._listener()._thread
    assert listener.is_alive()
    del hive, job
    gc.collect()
    until(lambda: not listener.is_alive(), "the thread has ended")


def test_a_handle_on_a_later_run_of_an_id_waits_for_that_run(idle: Hive) -> None:
    q = idle.queue("q")
    first = q.options(id="x").dispatch(1)
    lease = q.lease()
    assert lease is not None
    second = q.options(id="x", update_data=True).dispatch(2)
    lease.ack("one")
    assert first.result(30) == "one"
    with pytest.raises(ResultTimeout):
        second.result(0.05)
    ack(idle, "two")
    assert second.result(30) == "two"
    assert first.result(30) == "one"


def test_a_thousand_ends_are_read_in_few_trips(place: Server, idle: Hive) -> None:
    jobs = idle.queue("q").dispatch_many(range(1000))
    purged = idle.queue("q").purge("ready")
    assert purged == 1000
    with place.client() as client:
        before = calls(client)
        done, _ = idle.wait(jobs, timeout=60)
        assert calls(client) - before <= 10
    assert len(done) == 1000


def test_waiting_needs_no_thread_until_it_begins(idle: Hive) -> None:
    job: Job[Any] = idle.queue("q").dispatch()
    job.state()
    assert "taskhive-listener" not in [thread.name for thread in threading.enumerate()]
    started = time.monotonic()
    with pytest.raises(ResultTimeout):
        job.result(0.01)
    assert time.monotonic() - started < 30
