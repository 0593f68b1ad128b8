"""What must be killed is killed, whatever it does, and it is told why and where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from taskhive import Hive
from tests.servers import until
from tests.worker.conftest import Start
from tests.worker.workers import Worker, box, living, over

HEAD = """
import collections, ctypes, itertools, os, re, signal, subprocess, sys, threading, time
from taskhive import Hive, SoftTimeout, current_job
hive = Hive()

@hive.handler
def innocent(n):
    time.sleep(0.05)
    return [n, os.getpid()]
"""

HANGS = {
    "c_loop": "    collections.deque(itertools.repeat(None), maxlen=0)",
    "regex": '    re.match(r"(a+)+$", "a" * 40 + "b")',
    "sleep": "    time.sleep(600)",
    "stubborn": """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
""",
    "deadlock": "    lock = threading.Lock(); lock.acquire(); lock.acquire()",
}


BALLAST = "    ballast = b'x' * 40_000_000"


def hanging(name: str, options: str) -> str:
    body = f"    print('begun')\n{BALLAST}\n{HANGS[name]}"
    return f"{HEAD}\n@hive.handler({options})\ndef victim():\n{body}\n"


def beside_innocents(hive: Hive, worker: Worker, victim: Any) -> None:
    """The victim fails, four innocents that ran beside it do not even notice."""
    innocents = hive.queue("innocent").dispatch_many(range(4))
    assert over(hive, victim, *innocents) == ["failed", *["succeeded"] * 4]
    assert [job.info().result[0] for job in innocents] == [0, 1, 2, 3]
    assert all(job.info().attempts == 1 for job in innocents)
    after = hive.queue("innocent").dispatch(9)
    over(hive, after)
    assert worker.process.poll() is None


@pytest.mark.parametrize("name", sorted(HANGS))
def test_a_handler_that_hangs_is_killed_and_its_black_box_says_where(
    start: Start, hive: Hive, name: str
) -> None:
    worker = start(hanging(name, "timeout=0.5, max_timeouts=0")).ready()
    victim = hive.queue("victim").dispatch()
    beside_innocents(hive, worker, victim)
    error, facts = victim.info().error, box(victim)
    assert error is not None
    assert (error.kind, facts["verdict"]) == ("timeout", "timeout")
    assert facts["signal"] == "SIGKILL"
    assert 'handlers.py", line' in facts["stack"]
    assert " in victim" in facts["stack"]
    assert facts["wall"] >= 0.5
    assert facts["cpu"] > 0
    assert facts["peak_memory"] > 30_000_000  # above what it was forked with
    assert "child.py" not in facts["stack"]
    assert facts["output"] == ["begun"]


def test_a_killed_child_is_replaced_by_a_fork(start: Start, hive: Hive) -> None:
    worker = start(hanging("sleep", "timeout=0.3, max_timeouts=0"), "--concurrency", "1").ready()
    zygote = worker.zygote()
    before = {child.pid for child in zygote.children()}
    over(hive, hive.queue("victim").dispatch())
    job = hive.queue("innocent").dispatch(1)
    over(hive, job)
    assert job.info().result[1] not in before
    assert worker.zygote().pid == zygote.pid


def test_a_kill_takes_the_whole_tree_also_who_left_the_group(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(timeout=1, max_timeouts=0)
def tree(folder):
    leaf = f"echo $$ > {folder}/leaf; exec sleep 600"
    middle = f"echo $$ > {folder}/middle; setsid sh -c '{leaf}' & exec sleep 600"
    top = f"echo $$ > {folder}/top; sh -c \\"{middle}\\" & exec sleep 600"
    subprocess.Popen(["sh", "-c", top])
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            open(f"{folder}/escaped", "w").write(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    time.sleep(600)
"""
    ).ready()
    victim = hive.queue("tree").dispatch(str(tmp_path))
    names = ("top", "middle", "leaf", "escaped")

    def pids() -> list[int]:
        texts = [(tmp_path / name).read_text() for name in names if (tmp_path / name).exists()]
        return [int(text) for text in texts if text.strip()]

    until(lambda: len(pids()) == len(names) or victim.state() == "failed", "the tree stands")
    family = [psutil.Process(pid) for pid in pids() if psutil.pid_exists(pid)]
    beside_innocents(hive, worker, victim)
    assert len(pids()) == len(names), "the tree was killed before it stood"
    until(lambda: not living(family), f"nobody of the tree is left: {family}")


def test_the_soft_limit_comes_first_where_it_is_asked_for(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(soft_timeout=0.2, timeout=30)
def careful():
    try:
        time.sleep(600)
    except SoftTimeout:
        return "tidied up"

@hive.handler(soft_timeout=0.2, timeout=30, max_timeouts=0)
def careless():
    while True: time.sleep(0.01)

@hive.handler(soft_timeout=0.2, timeout=30, max_timeouts=0)
async def waits():
    import asyncio
    await asyncio.sleep(600)

@hive.handler(soft_timeout=0.2, timeout=0.6, max_timeouts=0)
def deaf():
    while True:
        try: time.sleep(600)
        except SoftTimeout: pass
"""
    ).ready()
    jobs = {name: hive.queue(name).dispatch() for name in ("careful", "careless", "waits", "deaf")}
    states = over(hive, *jobs.values())
    assert states == ["succeeded", "failed", "failed", "failed"]
    assert jobs["careful"].info().result == "tidied up"
    for name in ("careless", "waits"):
        error = jobs[name].info().error
        assert error is not None
        assert (error.kind, error.type) == ("timeout", "SoftTimeout")
    assert box(jobs["deaf"])["verdict"] == "timeout"


@pytest.mark.parametrize(
    ("body", "verdict", "signal"),
    [
        ("ctypes.string_at(0)", "segfault", "SIGSEGV"),
        ("os._exit(0)", "os._exit(0)", None),
        ("os._exit(3)", "os._exit(3)", None),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed from outside", "SIGKILL"),
        ("os.abort()", "crashed", "SIGABRT"),
    ],
)
def test_a_child_that_dies_is_a_crash_and_never_a_success(
    start: Start, hive: Hive, body: str, verdict: str, signal: str | None
) -> None:
    worker = start(f"{HEAD}\n@hive.handler(max_crashes=0)\ndef victim():\n    {body}\n").ready()
    victim = hive.queue("victim").dispatch()
    beside_innocents(hive, worker, victim)
    error, facts = victim.info().error, box(victim)
    assert error is not None
    assert (error.kind, facts["verdict"], facts["signal"]) == ("crash", verdict, signal)
    if signal in ("SIGSEGV", "SIGABRT"):
        assert 'handlers.py", line' in facts["stack"]
    else:
        assert facts["stack"].startswith("(no stack")


def test_a_crash_is_tried_once_more_and_then_alone(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(min_backoff=0, max_backoff=0)
def twice(job):
    if job.crashes == 0: os._exit(1)
    return job.crashes
"""
    ).ready()
    job = hive.queue("twice").dispatch()
    over(hive, job)
    assert job.info().result == 1


def test_a_running_job_that_is_cancelled_is_killed(start: Start, hive: Hive, tmp_path: Path) -> None:
    worker = start(hanging("c_loop", "timeout=None")).ready()
    victim = hive.queue("victim").dispatch()
    worker.until("output", line="begun")
    assert victim.cancel()
    assert over(hive, victim) == ["cancelled"]
    worker.until("attempt.cancelled", job=f"victim/{victim.id}")
    job = hive.queue("innocent").dispatch(1)
    assert over(hive, job) == ["succeeded"]


def test_a_handler_asked_to_stop_may_end_as_it_likes(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(timeout=None)
def polite(job):
    print("begun")
    while not job.cancelled: time.sleep(0.01)
    return "stopped by itself"
"""
    ).ready()
    job = hive.queue("polite").dispatch()
    worker.until("output", line="begun")
    assert hive._run(hive._core.commands.cancel("polite", job.id, cooperative=True))
    assert over(hive, job) == ["succeeded"]
    assert job.info().result == "stopped by itself"


def test_a_cancelled_job_gets_the_grace_that_was_asked_for(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(timeout=None)
def tidy():
    def leave(number, frame):
        os.write(1, b"tidied up\\n"); os._exit(0)
    signal.signal(signal.SIGTERM, leave)
    print("begun")
    while True: time.sleep(0.01)
"""
    ).ready()
    job = hive.queue("tidy").dispatch()
    worker.until("output", line="begun")
    assert hive._run(hive._core.commands.cancel("tidy", job.id, grace=20.0))
    assert over(hive, job) == ["cancelled"]
    worker.until("output", line="tidied up")
