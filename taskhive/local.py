"""A worker of a program's own, beside it, for as long as it is wanted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import IO

from taskhive.errors import TaskHiveError
from taskhive.hive import Hive

STOP_WITHIN = 10.0


class BrokenWorker(TaskHiveError, BrokenExecutor):
    """The executor's own worker has ended by itself; the message holds its last words."""


class LocalWorker:
    """Runs the calls of one queue; gone with the program that started it, however that ends."""

    def __init__(
        self, hive: Hive, queue: str, concurrency: int | None, broken: Callable[[Exception], None]
    ) -> None:
        self._hive = hive
        self._queue = queue
        self._concurrency = concurrency
        self._broken = broken
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Start it; it takes calls as soon as it can, and they wait until then."""
        self._hive.ping(wait=10)  # so that the embedded server is there when the worker looks for it
        words = [sys.executable, "-m", "taskhive.beside", "run", "--calls", "--queue", self._queue]
        words += ["--grace", "0"]
        if self._concurrency is not None:
            words += ["--concurrency", str(self._concurrency)]
        # What can be imported here can be imported there.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by the thread that reads it
        self._process = subprocess.Popen(
            words,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the program, which then stops this one
        )
        threading.Thread(target=self._watch, args=(self._process, log), daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        code = process.wait()
        with log:
            if not self._is_stopping:
                log.seek(0)
                said = log.read()[-4000:].decode(errors="replace")
                self._broken(BrokenWorker(f"the executor's worker ended ({code}):\n{said}"))

    def stop(self) -> None:
        """Stop it and drop its queue."""
        process, self._process = self._process, None
        if process is None:
            return
        self._is_stopping = True
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._hive.queue(self._queue).destroy()
