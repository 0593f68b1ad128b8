"""Handlers as users write them, run by a real worker."""

from __future__ import annotations

import signal

import pytest

from taskhive import Hive
from tests.servers import until
from tests.worker.conftest import Start
from tests.worker.workers import box, over

HEAD = """
import os, sys, time
from taskhive import Hive, PermanentError, Retry, current_job
hive = Hive()
"""


def test_a_handler_gets_its_arguments_and_its_result_is_kept(start: Start, hive: Hive) -> None:
    start(HEAD + "@hive.handler\ndef add(a, b=1, *, c=0): return [a + b, c]\n").ready()
    job = hive.queue("add").dispatch(2, 3, c="x")
    assert over(hive, job) == ["succeeded"]
    assert job.info().result == [5, "x"]


def test_a_handler_is_still_a_plain_function_and_a_way_to_its_queue(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(name="double")
def twice(n): return n * 2

@hive.handler
def outer(n):
    job = twice.dispatch(n)
    many = hive.queue("double").dispatch_many([1, 2])
    return [twice(n), job.id, [one.id for one in many], hive.queue("double").stats().created]
"""
    ).ready()
    job = hive.queue("outer").dispatch(21)
    assert over(hive, job) == ["succeeded"]
    plain, one, many, created = job.info().result
    assert (plain, created) == (42, 3)
    inner = [hive.job("double", id) for id in [one, *many]]
    over(hive, *inner)
    assert [one.info().result for one in inner] == [42, 2, 4]


def test_an_async_handler_runs(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
import asyncio
@hive.handler
async def soon(n):
    await asyncio.sleep(0.01)
    return (await hive_says(n))

async def hive_says(n): return n + 1
"""
    ).ready()
    jobs = hive.queue("soon").dispatch_many([1, 2, 3])
    over(hive, *jobs)
    assert [job.info().result for job in jobs] == [2, 3, 4]


def test_a_handler_knows_its_job(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(min_backoff=0, max_backoff=0)
def who(job):
    if job.attempt == 1:
        raise ValueError("once more")
    me = current_job()
    return [me is job, job.id, job.queue, job.attempt, job.retries, job.fence, bool(job.worker)]
"""
    ).ready()
    job = hive.queue("who").options(id="J").dispatch()
    over(hive, job)
    same, id, queue, attempt, retries, fence, has_worker = job.info().result
    assert (same, id, queue, attempt, retries, has_worker) == (True, "J", "who", 2, 1, True)
    assert fence >= 2


def test_outside_a_handler_there_is_no_current_job() -> None:
    from taskhive import NoCurrentJob, current_job

    with pytest.raises(NoCurrentJob):
        current_job()


def test_a_module_with_a_bare_handle_serves_the_queue_of_its_name(start: Start, hive: Hive) -> None:
    worker = start(
        "def handle(data, job): return [data, job.id]\n"
        "def handle_failure(data, job, error): print('told of', data, error.message)\n"
    ).ready()
    job = hive.queue("handlers").options(id="J").dispatch({"a": 1})
    over(hive, job)
    assert job.info().result == [{"a": 1}, "J"]
    assert worker.of("worker.started")[0]["queues"] == "handlers,handlers:fail"


def test_a_bare_handle_may_serve_a_queue_of_another_name(start: Start, hive: Hive) -> None:
    start("def handle(data, job): return data\n", "--queue", "mail").ready()
    job = hive.queue("mail").dispatch(7)
    over(hive, job)
    assert job.info().result == 7


def test_several_files_are_served_by_one_worker(start: Start, hive: Hive, tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    (tmp_path / "one.py").write_text(HEAD + "@hive.handler\ndef a(): return 'a'\n")
    (tmp_path / "two.py").write_text(HEAD + "@hive.handler\ndef b(): return 'b'\n")
    start(None, "one.py", "two.py").ready()
    jobs = [hive.queue(name).dispatch() for name in "ab"]
    over(hive, *jobs)
    assert [job.info().result for job in jobs] == ["a", "b"]


def test_retries_follow_the_backoff_and_the_wish_of_the_handler(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(max_retries=2, min_backoff=0.01, max_backoff=0.02)
def flaky(): raise ValueError("no")

@hive.handler(max_retries=5, min_backoff=100)
def wishful(job):
    if job.attempt < 3: raise Retry(after=0.01)
    return job.retries

@hive.handler(max_retries=5, min_backoff=100, backoff=lambda attempt, error: 0.01 * attempt)
def own(job):
    if job.attempt < 3: raise ValueError(job.attempt)
    return job.retries

@hive.handler(max_retries=5)
def hopeless(): raise PermanentError("not an image")

@hive.handler(max_retries=5, permanent=(KeyError,))
def foreign(): raise KeyError("gone")

@hive.handler(max_retries=0)
def leaves(): sys.exit(3)
"""
    ).ready()
    names = ["flaky", "wishful", "own", "hopeless", "foreign", "leaves"]
    jobs = {name: hive.queue(name).dispatch() for name in names}
    over(hive, *jobs.values())
    info = {name: job.info() for name, job in jobs.items()}
    assert info["flaky"].counts.retries == 2
    assert (info["wishful"].result, info["own"].result) == (2, 2)
    errors = {name: info[name].error for name in ("flaky", "hopeless", "foreign", "leaves")}
    assert {name: error and error.kind for name, error in errors.items()} == {
        "flaky": "error",
        "hopeless": "permanent",
        "foreign": "permanent",
        "leaves": "error",
    }
    assert all(info[name].counts.retries == 0 for name in ("hopeless", "foreign", "leaves"))


def test_a_failure_handler_gets_the_job_and_why_it_failed(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(max_retries=1, min_backoff=0, max_backoff=0)
def work(a, b=None):
    print("trying")
    raise ValueError(f"bad {a}")

@work.on_failure
def work_failed(failure):
    hive.queue("seen").dispatch([
        failure.job_id, list(failure.args), failure.kwargs, failure.kind, failure.error.type,
        failure.error.message, "handlers.py" in failure.error.traceback, failure.counts.retries,
        failure.black_box["output"],
    ])
"""
    ).ready()
    hive.queue("work").options(id="J").dispatch(1, b=2)
    seen = hive.queue("seen").lease(wait=20)
    assert seen is not None
    assert seen.data == ["J", [1], {"b": 2}, "error", "ValueError", "bad 1", True, 1, ["trying"]]
    until(lambda: hive.queue("work:fail").stats().succeeded == 1, "the failure job succeeds")


def test_without_a_failure_handler_a_job_stays_as_a_dead_letter(start: Start, hive: Hive) -> None:
    start(HEAD + "@hive.handler(max_retries=0)\ndef work(): raise ValueError('bad')\n").ready()
    job = hive.queue("work").dispatch()
    assert over(hive, job) == ["failed"]
    assert [one.id for one in hive.queue("work").dead.jobs()] == [job.id]
    assert hive.queue("work:fail").stats().ready == 1


def test_output_is_kept_with_the_attempt_and_passed_on_with_the_id(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
import logging, subprocess
logging.basicConfig(level=logging.INFO, format="%(message)s")
@hive.handler(max_retries=0)
def loud():
    print("one"); print("no end", end="", file=sys.stderr)
    print(file=sys.stderr)
    logging.info("logged")
    sys.stdout.buffer.write(b"bytes\\n")
    subprocess.run(["echo", "from below"])
    raise ValueError
"""
    ).ready()
    job = hive.queue("loud").dispatch()
    over(hive, job)
    wanted = {"one", "no end", "logged", "bytes", "from below"}
    name = f"loud/{job.id}"
    until(lambda: wanted <= {e["line"] for e in worker.of("output", job=name)}, "all was passed on")
    assert set(box(job)["output"]) == wanted


def test_each_child_starts_with_what_the_user_wants_and_draws_its_own_numbers(
    start: Start, hive: Hive
) -> None:
    start(
        HEAD
        + """
import random
import numpy
ready = []
@hive.on_child_start
def prepare(): ready.append(os.getpid())

@hive.handler(isolation="fresh")
def draw(): return [random.random(), float(numpy.random.random()), ready == [os.getpid()]]
"""
    ).ready()
    jobs = hive.queue("draw").dispatch_many(range(0)) or [
        hive.queue("draw").dispatch() for _ in range(6)
    ]
    over(hive, *jobs)
    drawn = [job.info().result for job in jobs]
    assert all(ready for _, _, ready in drawn)
    assert len({one for one, _, _ in drawn}) == len(drawn)
    assert len({two for _, two, _ in drawn}) == len(drawn)


def test_fresh_isolation_gives_every_job_a_process_of_its_own(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(isolation="fresh")
def fresh(): return os.getpid()
@hive.handler
def pooled(): return os.getpid()
"""
    ).ready()
    fresh = [hive.queue("fresh").dispatch() for _ in range(6)]
    pooled = [hive.queue("pooled").dispatch() for _ in range(6)]
    over(hive, *fresh, *pooled)
    assert len({job.info().result for job in fresh}) == 6
    assert len({job.info().result for job in pooled}) < 6


def test_handlers_may_use_processes_threads_and_libraries_that_do(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
import multiprocessing, subprocess, threading
import numpy, pandas

def square(n): return n * n

@hive.handler
def many():
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, [1, 2, 3])
    found = []
    thread = threading.Thread(target=lambda: found.append(current_job().id))
    thread.start(); thread.join()
    said = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout
    frame = pandas.DataFrame({"a": numpy.arange(3)})
    return [squares, found, said.strip(), int(frame.a.sum())]
"""
    ).ready()
    job = hive.queue("many").dispatch()
    assert over(hive, job) == ["succeeded"], job.info()
    assert job.info().result == [[1, 4, 9], [job.id], "42", 3]


def test_handlers_that_start_threads_at_import_get_fresh_interpreters(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD
        + """
import threading
lock = threading.Lock()
def spin():
    while True:
        with lock: time.sleep(0.001)
threading.Thread(target=spin, name="spinner", daemon=True).start()

@hive.handler
def work():
    with lock: return "spinner" in [thread.name for thread in threading.enumerate()]
"""
    ).ready()
    jobs = [hive.queue("work").dispatch() for _ in range(4)]
    assert over(hive, *jobs) == ["succeeded"] * 4
    assert all(job.info().result for job in jobs)
    assert "spinner" in worker.of("worker.no_fork")[0]["why"]


def test_a_child_finds_no_way_to_the_server(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler
def look():
    return [name for name in os.environ if name in ("TASKHIVE_URL", "TASKHIVE_SECRET")]
"""
    ).ready()
    job = hive.queue("look").dispatch()
    over(hive, job)
    assert job.info().result == []


def test_progress_is_seen_from_outside_while_the_job_runs(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler
def slow(path):
    current_job().progress(3, total=10, note={"page": 3})
    while not os.path.exists(path): time.sleep(0.01)
    current_job().progress(10, total=10)
"""
    ).ready()
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder, "go")
        job = hive.queue("slow").dispatch(str(flag))
        commands = hive._core.commands

        def far() -> object:
            seen = hive._run(commands.progress("slow", job.id, None))
            return seen and (seen.done, seen.total, seen.note)

        until(lambda: far() == (3, 10, {"page": 3}), "progress arrives")
        flag.touch()
        over(hive, job)
        assert far() == (10, 10, None)


def test_the_first_signal_drains_and_the_second_stops_at_once(start: Start, hive: Hive) -> None:
    worker = start(
        HEAD + "@hive.handler(timeout=None)\ndef sleep():\n print('here')\n time.sleep(600)\n"
    ).ready()
    hive.queue("sleep").dispatch()
    worker.until("output")  # leased is not begun: what has not begun is given back, and nothing is left
    worker.process.send_signal(signal.SIGINT)
    worker.until("worker.draining")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ended() == 130
    assert worker.noise == []
