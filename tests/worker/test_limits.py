"""Memory and CPU time of attempts, held by a real worker."""

from __future__ import annotations

import itertools
import signal
import sys

import pytest

from taskhive import Hive
from tests.servers import DEADLINE, until
from tests.worker.conftest import Start
from tests.worker.workers import box, over

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured by /proc")

HEAD = """
import os, subprocess, sys, time
from taskhive import Hive, current_job
hive = Hive()
ballast = bytearray(64 << 20)  # the zygote's: nobody is charged for it

def take(mib):
    kept = []
    for _ in range(mib // 8):
        kept.append(bytearray(8 << 20))
        time.sleep(0.002)
    return kept

def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
"""


def test_an_attempt_that_takes_too_much_memory_is_killed_and_told_how_much(
    start: Start, hive: Hive
) -> None:
    start(
        HEAD
        + """
@hive.handler(memory="200MiB", max_timeouts=0)
def eat(mib): return len(take(mib))

@hive.handler(memory="200MiB", max_timeouts=0)
def nest(mib):
    code = "import time; b = bytearray(%d << 20); time.sleep(60)" % mib
    subprocess.run([sys.executable, "-S", "-c", code])
"""
    ).ready()
    small, large = hive.queue("eat").dispatch(100), hive.queue("eat").dispatch(4000)
    below = hive.queue("nest").dispatch(400)
    assert over(hive, small, large, below) == ["succeeded", "failed", "failed"]
    for job in (large, below):
        found = job.info().error
        assert found is not None
        assert found.kind == "memory"
        assert "over its 200 MiB" in found.message
        assert box(job)["verdict"] == "memory"
        assert 200 * MIB < box(job)["peak_memory"] < 1000 * MIB
    assert job.info().counts.crashes == 0


def test_a_forked_tree_is_not_charged_twice(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(memory="200MiB", max_timeouts=0)
def family(processes, mib):
    kept = take(mib)
    r, w = os.pipe()
    pids = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            os.close(w)
            os.read(r, 1)
            os._exit(0)
        pids.append(pid)
    spin(1.0)
    os.close(w)
    for pid in pids: os.waitpid(pid, 0)
    return "done"
"""
    ).ready()
    job = hive.queue("family").dispatch(5, 120)
    assert over(hive, job) == ["succeeded"], box(job)


def test_cpu_time_is_that_of_the_whole_tree(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(cpu_timeout=0.4, max_timeouts=0)
def below():
    subprocess.run([sys.executable, "-S", "-c", "while True: pass"])

@hive.handler(cpu_timeout=0.4, max_timeouts=0)
def quiet():
    time.sleep(1.0)
    return "waiting costs nothing"
"""
    ).ready()
    hungry, quiet = hive.queue("below").dispatch(), hive.queue("quiet").dispatch()
    assert over(hive, hungry, quiet) == ["failed", "succeeded"]
    found = hungry.info().error
    assert found is not None
    assert found.kind == "cpu"
    assert box(hungry)["verdict"] == "cpu"
    assert box(hungry)["cpu"] >= 0.4


def test_the_next_attempt_gets_the_next_budget_of_the_limit_that_was_passed(
    start: Start, hive: Hive
) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(memory=["100MiB", "200MiB", "600MiB"], timeout=[0.7, 30], min_backoff=0, max_backoff=0)
def climb(flag):
    if current_job().attempt == 1:
        time.sleep(60)
    if current_job().attempt == 3:
        raise ValueError("an error between changes nothing")
    return len(take(300))
"""
    ).ready()
    job = hive.queue("climb").dispatch("x")
    assert over(hive, job) == ["succeeded"]
    killed = [event["verdict"] for event in worker.of("attempt.killed")]
    assert killed == ["timeout", "memory", "memory"]
    assert job.info().counts.timeouts == 3


def test_what_a_dispatch_allows_beats_the_handler(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(max_timeouts=0)
def eat(mib): return len(take(mib))
"""
    ).ready()
    limited = hive.queue("eat").options(memory="80MiB").dispatch(800)
    free = hive.queue("eat").dispatch(160)
    assert over(hive, limited, free) == ["failed", "succeeded"]


def test_a_child_that_has_gathered_too_much_is_replaced_between_jobs(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
kept = []
@hive.handler(max_memory_per_child="100MiB")
def leak(mib):
    kept.extend(take(mib))
    return os.getpid()
""",
        "--concurrency",
        "1",
    ).ready()
    pids = []
    for _ in range(6):
        job = hive.queue("leak").dispatch(64)
        assert over(hive, job) == ["succeeded"]
        pids.append(job.info().result)
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]


def test_a_kill_by_somebody_else_is_not_taken_for_the_kernels(start: Start, hive: Hive) -> None:
    start(HEAD + "@hive.handler(max_crashes=0)\ndef pid(): os.kill(os.getpid(), 9)\n").ready()
    job = hive.queue("pid").dispatch()
    assert over(hive, job) == ["failed"]
    assert box(job)["verdict"] == "killed from outside"


def test_max_concurrency_is_kept_beside_free_slots(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(max_concurrency=1)
def one(path):
    with open(path, "a") as file: file.write("+")
    time.sleep(0.05)
    with open(path, "a") as file: file.write("-")
""",
        "--concurrency",
        "4",
    ).ready()
    path = f"/proc/{worker.pid}/cwd/marks"
    jobs = hive.queue("one").dispatch_many([path] * 12)
    over(hive, *jobs)
    with open(path) as file:
        assert file.read() == "+-" * 12


def test_neither_limit_is_passed_in_ten_thousand_jobs_of_three_workers(start: Start, hive: Hive) -> None:
    """By a ledger that the attempts write themselves: a line as they begin, one as they end."""
    handlers = (
        HEAD
        + """
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@hive.handler(max_concurrency=2, global_concurrency=3, result_ttl=0)
def few(number):
    worker = os.getppid()  # its zygote
    os.write(ledger, b"1 %d %d\\n" % (worker, number))
    time.sleep(0.001)  # or they would hardly ever meet, on so few cores
    os.write(ledger, b"-1 %d %d\\n" % (worker, number))
"""
    )
    workers = [start(handlers, "--concurrency", "4"), *(start(None, "--concurrency", "4") for _ in "23")]
    zygotes = [worker.ready().zygote().pid for worker in workers]
    queue = hive.queue("few")
    queue.dispatch_many(range(10_000))
    until(lambda: queue.stats().succeeded == 10_000, "all have run", 3 * DEADLINE)
    ledger = (workers[0].folder / "ledger").read_text()
    lines = [tuple(map(int, line.split())) for line in ledger.splitlines()]
    assert sorted(number for sign, _, number in lines if sign == 1) == list(range(10_000))
    everywhere = list(itertools.accumulate(sign for sign, _, _ in lines))
    assert (max(everywhere), everywhere[-1]) == (3, 0)
    here = {one: [sign for sign, worker, _ in lines if worker == one] for one in zygotes}
    assert max(max(itertools.accumulate(signs), default=0) for signs in here.values()) == 2


def test_heavy_jobs_take_several_slots_and_too_heavy_ones_run_alone(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
def mark(path, sign):
    with open(path, "a") as file: file.write(sign)

@hive.handler(weight=2)
def heavy(path):
    mark(path, "H"); time.sleep(0.1); mark(path, "h")

@hive.handler(weight=9)
def huge(path):
    mark(path, "X"); time.sleep(0.1); mark(path, "x")

@hive.handler
def light(path):
    mark(path, "L"); time.sleep(0.12); mark(path, "l")
""",
        "--concurrency",
        "3",
    ).ready()
    path = f"/proc/{worker.pid}/cwd/marks"
    jobs = [
        job
        for _ in range(4)
        for name in ("heavy", "huge", "light", "light", "light")
        for job in [hive.queue(name).dispatch(path)]
    ]
    assert set(over(hive, *jobs)) == {"succeeded"}
    running: list[str] = []
    weights = {"H": 2, "X": 9, "L": 1}
    with open(path) as file:
        for sign in file.read():
            if sign.isupper():
                running.append(sign)
                weight = sum(weights[one] for one in running)
                assert weight <= 3 or running == ["X"], running
            else:
                running.remove(sign.upper())


def test_light_jobs_are_more_than_the_slots(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(weight=0.25)
def wait(path):
    with open(path, "a") as file: file.write("x")
    while os.path.getsize(path) < 4: time.sleep(0.01)
""",
        "--concurrency",
        "1",
    ).ready()
    path = f"/proc/{worker.pid}/cwd/marks"
    jobs = hive.queue("wait").dispatch_many([path] * 4)
    # Each waits for all four: they end only if all run at once, in one slot's share.
    assert set(over(hive, *jobs)) == {"succeeded"}


def test_many_quick_jobs_make_no_more_children_than_may_be_busy(start: Start, hive: Hive) -> None:
    worker = start(HEAD + "@hive.handler\ndef noop(n): pass\n", "--concurrency", "2").ready()
    jobs = hive.queue("noop").dispatch_many(list(range(3000)))
    until(lambda: hive.queue("noop").stats().succeeded == len(jobs), "all have run")
    # Two, and the one above.
    assert len(worker.zygote().children()) <= 3


def test_quick_jobs_move_beside_slow_ones_that_fill_all_slots(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
@hive.handler
def slow(path):
    while not os.path.exists(path): time.sleep(0.01)

@hive.handler
def quick(n): return n
""",
        "--concurrency",
        "1",
    ).ready()
    over(hive, *hive.queue("quick").dispatch_many(list(range(20))))
    path = f"/proc/{worker.pid}/cwd/go"
    slow = hive.queue("slow").dispatch_many([path] * 3)
    until(lambda: slow[0].state() == "active", "the slot is taken")
    assert set(over(hive, *hive.queue("quick").dispatch_many(list(range(20))))) == {"succeeded"}
    assert slow[0].state() == "active"
    open(path, "w").close()
    over(hive, *slow)


def test_a_worker_with_little_memory_runs_large_jobs_one_by_one(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
@hive.handler
def big(path):
    kept = take(80)
    with open(path, "a") as file: file.write("+")
    time.sleep(0.1)
    with open(path, "a") as file: file.write("-")
""",
        "--concurrency",
        "3",
        "--memory",
        "150MiB",
    ).ready()
    path = f"/proc/{worker.pid}/cwd/marks"
    over(hive, hive.queue("big").dispatch(path))
    over(hive, *hive.queue("big").dispatch_many([path] * 5))
    with open(path) as file:
        assert file.read() == "+-" * 6


def test_wrong_limits_of_a_handler_are_refused_with_the_line(start: Start) -> None:
    worker = start(HEAD + "@hive.handler(memory='2 apples')\ndef f(): pass\n")
    assert worker.ended() == 2
    assert "2GiB" in "".join(worker.noise)


def test_the_worker_says_how_many_it_runs_and_why(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD + "@hive.handler\ndef f(): pass\n", "--concurrency", "auto", "--min", "3", "--max", "3"
    ).ready()
    assert worker.of("worker.started")[0]["concurrency"].startswith("3: ")
    over(hive, hive.queue("f").dispatch())
    assert worker.stop(signal.SIGTERM) == 0
