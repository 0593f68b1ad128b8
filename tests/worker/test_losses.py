"""A worker that loses a part of itself, or its server, loses no job and leaves nobody behind."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil

from taskhive import Hive
from tests.servers import Server, until
from tests.worker.conftest import Start
from tests.worker.workers import Worker, box, living, over

HANDLERS = """
import os, subprocess, time
from taskhive import Hive
hive = Hive()

@hive.handler(timeout=None, min_backoff=0, max_backoff=0)
def work(flag, job):
    below = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("begun", below.pid)
    while not os.path.exists(flag): time.sleep(0.01)
    below.kill()
    return job.crashes
"""
SHORT_LEASE = ("--concurrency", "1", "--lease", "2")


def begun(worker: Worker, count: int = 1) -> psutil.Process:
    """What the handler started below it, in a session of its own."""
    until(lambda: len(worker.of("output")) >= count, f"it has begun: {worker.story()}")
    return psutil.Process(int(worker.of("output")[count - 1]["line"].split()[1]))


def test_kill_9_of_the_supervisor_leaves_no_process_and_another_worker_finishes_its_job(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    worker = start(HANDLERS, *SHORT_LEASE).ready()
    job = hive.queue("work").dispatch(str(tmp_path / "go"))
    family = [begun(worker), *worker.family()]
    worker.process.kill()
    until(lambda: not living(family), f"nothing is left: {living(family)}")
    (tmp_path / "go").touch()
    start(None, *SHORT_LEASE).ready()
    assert over(hive, job) == ["succeeded"]
    assert job.info().result == 0


def test_kill_9_of_the_zygote_leaves_no_process_and_the_worker_starts_another(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    worker = start(HANDLERS, *SHORT_LEASE).ready()
    job = hive.queue("work").dispatch(str(tmp_path / "go"))
    family = [begun(worker), *worker.family()]
    worker.zygote().kill()
    worker.until("zygote.lost")
    until(lambda: not living(family), f"nothing is left: {living(family)}")
    (tmp_path / "go").touch()
    assert over(hive, job) == ["succeeded"]
    assert job.info().result == 1
    assert worker.stop() == 0


def test_the_children_of_a_frozen_supervisor_are_dead_before_anybody_else_has_their_job(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    frozen = start(HANDLERS, *SHORT_LEASE).ready()
    job = hive.queue("work").dispatch(str(tmp_path / "go"))
    below = begun(frozen)
    children = [below, *frozen.zygote().children()]
    frozen.process.send_signal(signal.SIGSTOP)
    other = start(None, *SHORT_LEASE).ready()
    begun(other)
    assert living(children) == []
    (tmp_path / "go").touch()
    assert over(hive, job) == ["succeeded"]
    frozen.process.send_signal(signal.SIGCONT)
    frozen.until("worker.was_frozen")
    assert job.info().result == 0
    assert frozen.stop() == 0


def test_a_server_away_for_less_than_a_lease_costs_no_attempt(
    start: Start, hive: Hive, tmp_path: Path, valkey: Server
) -> None:
    worker = start(HANDLERS, "--concurrency", "1", "--lease", "15").ready()
    job = hive.queue("work").dispatch(str(tmp_path / "go"))
    begun(worker)
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    try:
        (tmp_path / "go").touch()
        child = worker.zygote().children()[0]
        until(lambda: "idle" in " ".join(child.cmdline()), "the attempt is over")
    finally:
        valkey.process.send_signal(signal.SIGCONT)
    assert over(hive, job) == ["succeeded"]
    assert job.info().attempts == 1


HARM = """
import os, signal, time
from taskhive import Hive
hive = Hive()

@hive.handler(timeout=0.5, max_timeouts=0)
def deaf(): signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(600)

@hive.handler(timeout=0.5, max_timeouts=0)
def stopped(): os.kill(os.getpid(), signal.SIGSTOP)

@hive.handler
def doubled(): return "copy" if os.fork() == 0 else "itself"
"""


def test_a_handler_that_is_deaf_or_comes_back_twice_has_one_outcome(start: Start, hive: Hive) -> None:
    start(HARM).ready()
    deaf, stopped, doubled = (hive.queue(name).dispatch() for name in ("deaf", "stopped", "doubled"))
    assert over(hive, deaf, stopped, doubled) == ["failed", "failed", "succeeded"]
    assert doubled.info().result == "itself"
    for job in (deaf, stopped):
        assert box(job)["verdict"] == "timeout"
        assert box(job)["stack"].startswith("(no stack")
