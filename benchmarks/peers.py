"""What TaskHive is measured beside: bare forks, ProcessPoolExecutor, huey and Celery, as installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.jobs import work
from benchmarks.servers import Server

_HUEY = """
from huey import RedisHuey
huey = RedisHuey("bench", url="unix://{socket}", results=False)
@huey.task()
def noop(): pass
"""
_CELERY = """
from celery import Celery
app = Celery("bench", broker="redis+socket://{socket}")
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64)
@app.task
def noop(): pass
"""


def nothing() -> None:
    """A call that costs nothing."""


def is_there(name: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(name) is not None


def bare(jobs: int, seconds: float, processes: int = 2) -> float:
    """Jobs a second of so many forks that share nothing and ask nobody."""
    started = time.perf_counter()
    children = []
    for _ in range(processes):
        pid = os.fork()
        if pid == 0:
            for _ in range(jobs // processes):
                work(seconds)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return jobs / (time.perf_counter() - started)


class Executor:
    """ProcessPoolExecutor: no server, no acknowledgement, no limits."""

    def __init__(self, processes: int = 2) -> None:
        self.pool = ProcessPoolExecutor(processes)
        list(self.pool.map(_call, range(10)))

    def noops(self, jobs: int) -> float:
        """Jobs a second, one by one."""
        started = time.perf_counter()
        for _ in self.pool.map(_call, range(jobs), chunksize=1):
            pass
        return jobs / (time.perf_counter() - started)


def _call(_: int) -> None:
    nothing()


class Queued:
    """A peer with a queue in Redis: filled first, then drained by a worker of its own."""

    def __init__(self, server: Server, text: str, module: str, words: list[str], key: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="thb-")
        Path(self._folder.name, f"{module}.py").write_text(text.format(socket=str(server.socket)))
        self._server = server
        self._words = words
        self._key = key
        sys.path.insert(0, self._folder.name)
        self._module: Any = importlib.import_module(module)

    def noops(self, jobs: int, send: Callable[[Any], object]) -> float:
        """Jobs a second, from the moment a tenth of them is taken until none is left."""
        for _ in range(jobs):
            send(self._module)
        with self._server.client() as client:
            worker = subprocess.Popen(
                [sys.executable, "-m", *self._words],
                cwd=self._folder.name,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                while client.llen(self._key) > jobs * 0.9:
                    time.sleep(0.001)
                first, started = client.llen(self._key), time.perf_counter()
                while client.llen(self._key):
                    time.sleep(0.001)
                return float(first / (time.perf_counter() - started))
            finally:
                worker.terminate()
                worker.wait()


def huey(server: Server) -> Queued:
    """huey with two worker processes; it acknowledges nothing."""
    words = ["huey.bin.huey_consumer", "bench_huey.huey", "-w", "2", "-k", "process", "-n"]
    return Queued(server, _HUEY, "bench_huey", words, "huey.redis.bench")


def celery(server: Server) -> Queued:
    """Celery prefork with two children."""
    words = ["celery", "-A", "bench_celery", "worker", "-P", "prefork", "-c", "2", "-l", "ERROR"]
    return Queued(server, _CELERY, "bench_celery", words, "celery")
