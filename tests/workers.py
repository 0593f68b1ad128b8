"""Real workers for tests: a process of their own, stopped when the test is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.servers import DEADLINE, until

ROOT = Path(__file__).resolve().parents[1]


class Worker:
    """One `python -m taskhive`; what it says is kept in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        """Drain it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.process.wait()


@contextlib.contextmanager
def working(
    url: str,
    prefix: str,
    log: Path,
    *words: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """A worker with these words on its command line, ready to take jobs."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("TASKHIVE_")}
    given |= {"PYTHONPATH": str(ROOT), "TASKHIVE_URL": url, "TASKHIVE_PREFIX": prefix}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "taskhive.beside", "run", *words],
            env={**given, **(environment or {})},
            stdin=subprocess.PIPE,  # it ends with the test run, however that ends
            stdout=out,
            stderr=out,
        )
    worker = Worker(process, log)
    try:
        until(
            lambda: "worker.started" in worker.said() or process.poll() is not None,
            "the worker has started",
        )
        assert process.poll() is None, worker.said()
        yield worker
    finally:
        worker.stop()
