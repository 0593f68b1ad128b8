"""Real workers for tests: `python -m taskhive` on a private server, and a look at its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from taskhive import Hive, Job
from tests.servers import DEADLINE, until

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """One worker process, its log as events."""

    def __init__(self, folder: Path, url: str, *words: str, prefix: str = "th", **env: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_URL": url, **env}
        environment["TASKHIVE_PREFIX"] = prefix
        self.folder = folder.resolve()
        command = [sys.executable, "-m", "taskhive", "run", *words, "--log-format", "json"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.noise.append(line)

    @property
    def pid(self) -> int:
        return self.process.pid

    def of(self, name: str, **facts: Any) -> list[dict[str, Any]]:
        """The events of a name, with these facts."""
        found = [event for event in list(self.events) if event["event"] == name]
        return [event for event in found if all(event.get(k) == v for k, v in facts.items())]

    def until(self, name: str, count: int = 1, **facts: Any) -> dict[str, Any]:
        """Wait for an event."""

        def there() -> bool:
            assert self.process.poll() is None or len(self.of(name, **facts)) >= count, self.story()
            return len(self.of(name, **facts)) >= count

        until(there, f"{name} {facts} in {self.story()}")
        return self.of(name, **facts)[count - 1]

    def ready(self) -> Worker:
        self.until("worker.started")
        return self

    def story(self) -> str:
        return "\n".join([*map(str, self.events), *self.noise])

    def zygote(self) -> psutil.Process:
        """The process that forks."""
        found: list[psutil.Process] = []

        def there() -> bool:
            found[:] = psutil.Process(self.pid).children()
            return len(found) == 1

        until(there, "there is one zygote")
        return found[0]

    def family(self) -> list[psutil.Process]:
        """Everything below the supervisor."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Drain; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    def clean_up(self) -> None:
        family = self.family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        until(lambda: not living(family), f"nothing is left of the worker: {living(family)}")
        self._reader.join(DEADLINE)
        assert self.process.stderr is not None
        self.process.stderr.close()


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a zombie nobody has reaped yet does not."""
    alive = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


def over(hive: Hive, *jobs: Job[Any]) -> list[str]:
    """Wait until jobs have ended; their states."""
    until(
        lambda: all(job.state() in ("succeeded", "failed", "cancelled") for job in jobs),
        f"jobs end: {[(job.queue, job.state(), job.info()) for job in jobs]}",
    )
    return [str(job.state()) for job in jobs]


def box(job: Job[Any]) -> dict[str, Any]:
    """The black box of the last attempt of a job that failed."""
    found = job._hive._run(job._hive._core.commands.attempts(job.queue, job.id, job._generation))[
        -1
    ].black_box
    assert found is not None
    return dict(found)
