"""Real workers on a real server, and somebody who breaks both; what is left is a history."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import redis

from taskhive import Hive
from taskhive import Job as Handle
from tests.chaos.history import History, Job, read
from tests.servers import Server, until
from tests.worker.workers import Worker

HANDLERS = """
import json, os, random, time
from taskhive import Hive
hive = Hive()
LEDGER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ledger")

def sign(what, job):
    words = {"what": what, "id": job.id, "fence": job.fence, "pid": os.getpid()}
    words["at"] = time.clock_gettime(time.CLOCK_BOOTTIME)
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (json.dumps(words) + "\\n").encode())
    os.close(file)

LIMITS = dict(max_crashes=50, max_stalls=50, max_retries=50, min_backoff=0, max_backoff=0.2)

@hive.handler(timeout=30, **LIMITS)
def work(seconds, trouble, job):
    sign("start", job)
    if trouble == "hopeless":
        sign("end", job)
        raise PermissionError("never")
    if trouble == "raise" and random.random() < 0.5:
        raise ValueError("once more")
    if trouble == "exit" and random.random() < 0.3:
        os._exit(3)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        sign("beat", job)
    sign("end", job)
""".replace("LIMITS = dict(", "LIMITS = dict(permanent=(PermissionError,), ")
TROUBLES = ("", "", "", "", "", "", "raise", "exit", "hopeless")
LEASE = 2.0
FAULTS = ("kill", "child", "child", "child", "zygote", "freeze", "flush", "cut", "restart", "stop")
OVER = ("succeeded", "failed", "cancelled")


class Chaos:
    """One run, from its first worker to its history."""

    def __init__(self, server: Server, folder: Path, prefix: str, seed: int, workers: int = 3) -> None:
        self.faults: Counter[str] = Counter()
        self.stale = self.swept = self.merged = 0
        self._rng = random.Random(seed)
        self._server, self._folder, self._prefix = server, folder, prefix
        self._handles: dict[str, tuple[Handle[Any], bool]] = {}
        self._workers: list[Worker] = []
        self._all: list[Worker] = []
        self._told: list[Worker] = []
        self._next: list[str] = []
        self._thaws: list[tuple[float, Worker]] = []
        (folder / "handlers.py").write_text(HANDLERS)
        for _ in range(workers):
            self._join()
        for worker in self._workers:
            worker.ready()

    def run(self, seconds: float) -> History:
        """Break things for so long, then leave all in peace until every job is over."""
        with Hive(self._server.url, prefix=self._prefix) as hive:
            end = time.monotonic() + seconds
            # On a slow machine longer: until everything has happened once.
            while time.monotonic() < end or (
                set(FAULTS) - set(+self.faults) and time.monotonic() < end + 2 * seconds
            ):
                self._dispatch(hive)
                self._fault()
                self._pause(self._rng.uniform(0.1, 0.6))
            self._thaw(float("inf"))
            until(lambda: self._is_over(hive), f"all is over: {hive.queue('work').stats()}", 90)
            history = self._history(hive)
        for worker in self._workers:
            worker.stop()
        return history

    def clean_up(self) -> None:
        for worker in self._all:
            worker.clean_up()

    # Load

    def _dispatch(self, hive: Hive) -> None:
        queue, rng = hive.queue("work"), self._rng
        for _ in range(rng.randint(1, 5)):
            words = (rng.choice((0.01, 0.05, 0.1, 0.4)), rng.choice(TROUBLES))
            if rng.random() < 0.6:
                again = [id for id, (_, strict) in self._handles.items() if strict][-5:]
                id = rng.choice(again) if again and rng.random() < 0.3 else f"j{len(self._handles)}"
                self._handles[id] = (queue.options(id=id).dispatch(*words), True)
            else:
                job = queue.dispatch(*words)
                self._handles[job.id] = (job, False)

    def _join(self) -> None:
        words = ("handlers.py", "--concurrency", "2", "--lease", str(LEASE), "--grace", "0.3")
        worker = Worker(self._folder, self._server.url, *words, prefix=self._prefix)
        self._workers.append(worker)
        self._all.append(worker)

    # Faults

    def _fault(self) -> None:
        frozen = {id(worker) for _, worker in self._thaws}
        running = [one for one in self._workers if id(one) not in frozen and one.of("worker.started")]
        if not self._next:
            self._next = self._rng.sample(FAULTS, len(FAULTS))
        if not running:
            return
        fault = self._next.pop()
        self.faults[fault] += getattr(self, f"_{fault}")(self._rng.choice(running))

    def _kill(self, worker: Worker) -> bool:
        worker.process.kill()
        self._leave(worker)
        return True

    def _stop(self, worker: Worker) -> bool:
        worker.process.send_signal(signal.SIGTERM)
        self._leave(worker)
        return True

    def _leave(self, worker: Worker) -> None:
        self._told.append(worker)
        self._workers.remove(worker)
        self._join()

    def _child(self, worker: Worker) -> bool:
        return self._kill_one(worker, lambda zygote: zygote.children())

    def _zygote(self, worker: Worker) -> bool:
        return self._kill_one(worker, lambda zygote: [zygote])

    def _kill_one(self, worker: Worker, chosen: Any) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            for zygote in psutil.Process(worker.pid).children()[:1]:
                if victims := chosen(zygote):
                    self._rng.choice(victims).kill()
                    return True
        return False

    def _freeze(self, worker: Worker) -> bool:
        worker.process.send_signal(signal.SIGSTOP)
        self._thaws.append((time.monotonic() + self._rng.uniform(0.3, 2.5 * LEASE), worker))
        return True

    def _thaw(self, now: float) -> None:
        for moment, worker in self._thaws[:]:
            if now >= moment:
                worker.process.send_signal(signal.SIGCONT)
                self._thaws.remove((moment, worker))

    def _flush(self, _: Worker) -> bool:
        with self._server.client() as client:
            client.script_flush()
        return True

    def _cut(self, _: Worker) -> bool:
        with self._server.client() as client, contextlib.suppress(redis.exceptions.RedisError):
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)
        return True

    def _restart(self, _: Worker) -> bool:
        self._server.kill()
        self._pause(self._rng.uniform(0.0, 0.5))
        self._server.start()
        return True

    def _pause(self, seconds: float) -> None:
        """Let it go on for a while; that is no waiting for anything."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._thaw(time.monotonic())
            time.sleep(0.02)

    # The end

    def _is_over(self, hive: Hive) -> bool:
        stats = hive.queue("work").stats()
        return stats.ready + stats.delayed + stats.blocked + stats.active == 0

    def _history(self, hive: Hive) -> History:
        stats, lane = hive.queue("work").stats(), hive.queue("work:fail").stats()
        self.stale, self.swept, self.merged = stats.stale, stats.swept, stats.merged
        jobs = []
        for id, (handle, strict) in self._handles.items():
            state = str(handle.state())
            counts = handle.info().counts if state in OVER else None
            put_back = (
                sum((counts.retries, counts.timeouts, counts.stalls, counts.crashes)) if counts else 0
            )
            jobs.append(Job(id, strict, state, put_back))
        return History(
            read((self._folder / "ledger").read_text()),
            jobs,
            stats.ready + stats.delayed + stats.blocked + stats.active,
            stats.created,
            stats.succeeded + stats.failed + stats.cancelled + stats.merged,
            stats.failed,
            lane.created,
            sum(one.process.poll() is not None for one in self._workers),
        )
