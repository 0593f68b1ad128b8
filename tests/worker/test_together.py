"""Attempts that share a child, in threads or on its loop: what they share, and what they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from taskhive import Hive, Job, JobCancelled
from tests.servers import until
from tests.worker.conftest import Start
from tests.worker.workers import box, over

HEAD = """
import asyncio, collections, itertools, os, threading, time
from pathlib import Path
from taskhive import AsyncHive, Hive, SoftTimeout, current_job
hive = Hive()
meeting = threading.Barrier(4)

def began(name):
    Path("writing " + name).write_text(str(os.getpid()))
    os.rename("writing " + name, "began " + name)

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.005)
"""
FOUR = ("--concurrency", "4")

HANGING = (
    HEAD
    + """
@hive.handler(isolation="thread", timeout=30, max_timeouts=0)
def shared(name, job):
    began(name)
    if name == "stuck":
        while True:
            time.sleep(0.01)
    wait_for("go " + name)
    return [os.getpid(), job.attempt, job.timeouts, job.crashes]
"""
)


def kind(job: Job[Any]) -> str:
    error = job.info().error
    assert error is not None
    return error.kind


def begun(tmp_path: Path, *names: str) -> None:
    until(lambda: all((tmp_path / f"began {name}").exists() for name in names), f"{names} begin")


def test_jobs_that_wait_for_each_other_run_in_threads_of_one_child(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(isolation="thread")
def meet(number, job):
    meeting.wait(30)
    return [number, os.getpid(), threading.get_ident(), current_job() is job, job.id]
""",
        *FOUR,
    ).ready()
    jobs = hive.queue("meet").dispatch_many(range(8))
    told = hive.gather(jobs, timeout=60)
    assert [one[0] for one in told] == list(range(8))
    assert len({pid for _, pid, *_ in told}) == 1
    assert all(mine for *_, mine, _ in told)
    assert [one[4] for one in told] == [job.id for job in jobs]


def test_async_handlers_share_the_loop_of_one_child(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
waiting = []

@hive.handler(isolation="thread")
async def meet(number, job):
    turn = asyncio.Event()
    waiting.append(turn)
    if len(waiting) == 4:
        for one in waiting: one.set()
        waiting.clear()
    await asyncio.wait_for(turn.wait(), 30)
    print("number", number)
    end = time.thread_time() + 0.05
    while time.thread_time() < end: pass
    return [os.getpid(), threading.get_ident(), id(asyncio.get_running_loop()), current_job() is job]
""",
        *FOUR,
    ).ready()
    jobs = hive.queue("meet").dispatch_many(range(4))
    told = hive.gather(jobs, timeout=60)
    assert len({tuple(one[:3]) for one in told}) == 1
    assert all(mine for *_, mine in told)
    for number, job in enumerate(jobs):
        costs = job.attempts()[-1].costs
        assert costs is not None
        assert costs["output"] == [f"number {number}"]
        assert 0.04 < costs["cpu"] < 0.2, "its own steps, not those of the others"


def test_what_each_says_is_kept_apart(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(isolation="thread")
def speak(word):
    job = current_job()
    meeting.wait(30)
    for n in range(50):
        print(word, end="")
        print("", n)
    job.progress(len(word), total=10)
    print("no line end:", word, end="")
    meeting.wait(30)
    return word
""",
        *FOUR,
    ).ready()
    words = ["a", "bb", "ccc", "dddd"]
    jobs = hive.queue("speak").dispatch_many(words)
    assert hive.gather(jobs, timeout=60) == words
    for word, job in zip(words, jobs, strict=True):
        lines = [f"{word} {n}" for n in range(50)] + [f"no line end: {word}"]
        costs = job.attempts()[-1].costs
        assert costs is not None
        assert costs["output"] == lines
        progress = job.progress()
        assert progress is not None
        assert progress.done == len(word)


def test_neighbours_of_one_that_passed_its_time_finish_and_are_not_charged(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    start(HANGING, *FOUR).ready()
    q = hive.queue("shared")
    neighbours = [q.dispatch("one"), q.dispatch("two")]
    stuck = q.options(timeout=0.3).dispatch("stuck")
    begun(tmp_path, "one", "two", "stuck")
    # Its time passes; its child lives for its neighbours, while another one works already.
    (tmp_path / "go later").touch()
    theirs = int((tmp_path / "began stuck").read_text())
    until(lambda: q.dispatch("later").result(timeout=60)[0] != theirs, "another child works")
    assert stuck.state() == "active"
    (tmp_path / "go one").touch()
    (tmp_path / "go two").touch()
    told = hive.gather(neighbours, timeout=60)
    assert [one[0] for one in told] == [theirs, theirs]
    assert [one[1:] for one in told] == [[1, 0, 0]] * 2
    assert over(hive, stuck) == ["failed"]
    assert kind(stuck) == "timeout"
    black_box = box(stuck)
    assert black_box["verdict"] == "timeout"
    assert "handlers.py" in black_box["stack"]
    until(lambda: not psutil.pid_exists(theirs), "the child is killed with it")


def test_one_alone_in_its_shared_child_is_killed_on_time(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(isolation="thread", timeout=0.3, max_timeouts=0)
def stuck(): collections.deque(itertools.repeat(None), maxlen=0)
""",
        *FOUR,
    ).ready()
    job = hive.queue("stuck").dispatch()
    assert over(hive, job) == ["failed"]
    assert "in stuck" in box(job)["stack"]


def test_when_one_holds_the_interpreter_only_that_one_is_charged(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(isolation="thread", timeout=1, max_timeouts=0)
def hold(name, job):
    if not Path("met").exists():
        meeting.wait(30)
        Path("met").touch()
        if name != "holder":
            time.sleep(0.5)
    if name == "holder":
        collections.deque(itertools.repeat(None), maxlen=0)
    return job.timeouts
""",
        *FOUR,
    ).ready()
    names = ["holder", "a", "b", "c"]
    jobs = dict(zip(names, hive.queue("hold").dispatch_many(names), strict=True))
    assert over(hive, *jobs.values()) == ["failed", "succeeded", "succeeded", "succeeded"]
    assert [jobs[name].result(timeout=30) for name in "abc"] == [0, 0, 0]
    assert kind(jobs["holder"]) == "timeout"
    assert worker.of("child.stuck")


def test_when_the_child_dies_only_the_one_that_kills_it_again_is_charged(
    start: Start, hive: Hive
) -> None:
    worker = start(
        HEAD
        + """
@hive.handler(isolation="thread", max_crashes=0)
def crash(name, job):
    again = Path("met").exists()
    if not again:
        meeting.wait(30)
        Path("met").touch()
    if name == "crasher":
        os._exit(3)
    if not again:
        wait_for("the end")
    return [os.getpid(), job.crashes]
""",
        *FOUR,
    ).ready()
    jobs = hive.queue("crash").dispatch_many(["crasher", "a", "b", "c"])
    assert over(hive, *jobs) == ["failed", "succeeded", "succeeded", "succeeded"]
    assert [job.result(timeout=30)[1] for job in jobs[1:]] == [0] * 3
    assert (kind(jobs[0]), box(jobs[0])["verdict"]) == ("crash", "os._exit(3)")
    assert worker.of("child.crashed")[0]["jobs"] == 4


@pytest.mark.parametrize("form", ["def", "async def"])
def test_a_cancel_ends_one_and_leaves_its_neighbours_and_its_child(
    start: Start, hive: Hive, tmp_path: Path, form: str
) -> None:
    pause = "await asyncio.sleep(0.01)" if form == "async def" else "time.sleep(0.01)"
    start(
        HEAD
        + f"""
@hive.handler(isolation="thread")
{form} shared(name):
    Path("began " + name).touch()
    try:
        while not Path("go " + name).exists():
            {pause}
    except asyncio.CancelledError:
        Path("cancelled " + name).touch()
        raise
    return os.getpid()
""",
        *FOUR,
    ).ready()
    q = hive.queue("shared")
    stays, goes = q.dispatch("stays"), q.dispatch("goes")
    begun(tmp_path, "stays", "goes")
    assert goes.cancel()
    with pytest.raises(JobCancelled):
        goes.result(timeout=60)
    assert (tmp_path / "cancelled goes").exists()
    (tmp_path / "go stays").touch()
    (tmp_path / "go after").touch()
    assert stays.result(timeout=60) == q.dispatch("after").result(timeout=60)


def test_a_cancelled_one_that_does_not_hear_goes_when_its_neighbours_have_ended(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    start(
        HEAD
        + """
@hive.handler(isolation="thread")
def shared(name):
    began(name)
    while not Path("go " + name).exists():
        try:
            time.sleep(0.01)
        except BaseException:
            pass
    return os.getpid()
""",
        *FOUR,
    ).ready()
    q = hive.queue("shared")
    stays, deaf = q.dispatch("stays"), q.dispatch("deaf")
    begun(tmp_path, "stays", "deaf")
    assert deaf.cancel()
    (tmp_path / "go after").touch()
    theirs = int((tmp_path / "began deaf").read_text())
    until(lambda: q.dispatch("after").result(timeout=60) != theirs, "another child works")
    (tmp_path / "go stays").touch()
    assert stays.result(timeout=60) == theirs
    with pytest.raises(JobCancelled):
        deaf.result(timeout=60)


@pytest.mark.parametrize("form", ["def", "async def"])
def test_the_soft_limit_is_raised_in_the_one_it_is_of(start: Start, hive: Hive, form: str) -> None:
    pause = "await asyncio.sleep(0.01)" if form == "async def" else "time.sleep(0.01)"
    seen = "asyncio.CancelledError" if form == "async def" else "SoftTimeout"
    start(
        HEAD
        + f"""
@hive.handler(isolation="thread", max_timeouts=0)
{form} shared(name):
    try:
        while name == "slow":
            {pause}
    except {seen}:
        print("told")
        raise
    return name
""",
        *FOUR,
    ).ready()
    q = hive.queue("shared")
    slow = q.options(soft_timeout=0.2).dispatch("slow")
    assert q.options(soft_timeout=5).dispatch("quick").result(timeout=60) == "quick"
    assert over(hive, slow) == ["failed"]
    assert kind(slow) == "timeout"
    assert box(slow)["output"] == ["told"]


def test_one_with_a_limit_that_cannot_be_told_apart_has_a_child_of_its_own(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    start(HANGING, *FOUR).ready()
    q = hive.queue("shared")
    shared = [q.dispatch("one"), q.dispatch("two")]
    bounded = q.options(memory="1GiB").dispatch("three")
    begun(tmp_path, "one", "two", "three")
    for name in ("one", "two", "three"):
        (tmp_path / f"go {name}").touch()
    first, second = hive.gather(shared, timeout=60)
    assert first[0] == second[0] != bounded.result(timeout=60)[0]


def test_they_dispatch_and_ask_beside_each_other(start: Start, hive: Hive) -> None:
    start(
        HEAD
        + """
@hive.handler(isolation="thread")
def ask(number):
    meeting.wait(30)
    for _ in range(20):
        job = hive.queue("elsewhere").dispatch(number)
        assert hive.job("elsewhere", job.id).info().args == (number,)
    return number

@hive.handler(isolation="thread")
async def ask_async(number):
    async with AsyncHive() as mine:
        job = await mine.queue("elsewhere").dispatch(number)
        return (await job.info()).args[0]
""",
        *FOUR,
    ).ready()
    for queue in ("ask", "ask_async"):
        jobs = hive.queue(queue).dispatch_many(range(4))
        assert hive.gather(jobs, timeout=60) == [0, 1, 2, 3]
    assert hive.queue("elsewhere").stats().ready == 84


def test_a_draining_worker_gives_those_back_that_do_not_end(
    start: Start, hive: Hive, tmp_path: Path
) -> None:
    worker = start(HANGING, *FOUR, "--grace", "0.5").ready()
    q = hive.queue("shared")
    jobs = [q.dispatch("one"), q.dispatch("two"), q.dispatch("ends")]
    begun(tmp_path, "one", "two", "ends")
    (tmp_path / "go ends").touch()
    assert worker.stop() == 0
    assert [str(job.state()) for job in jobs] == ["ready", "ready", "succeeded"]
    assert [job.info().counts.crashes + job.info().counts.stalls for job in jobs] == [0, 0, 0]


def test_status_tells_each_of_them(start: Start, hive: Hive, tmp_path: Path) -> None:
    start(HANGING, *FOUR).ready()
    jobs = [hive.queue("shared").dispatch(name) for name in ("one", "two")]
    begun(tmp_path, "one", "two")

    def told() -> set[str | None]:
        return {slot.job for worker in hive.workers() for slot in worker.slots} - {None}

    until(lambda: told() == {job.id for job in jobs}, "both are told")
    assert len({slot.pid for slot in hive.workers()[0].slots if slot.job}) == 1
