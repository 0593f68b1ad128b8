"""Real servers for tests: private, without persistence, gone when the test run is."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from taskhive import embedded

DEADLINE = 30.0


def until(condition: Callable[[], object], what: str, seconds: float = DEADLINE) -> None:
    """Wait for a condition that some other process brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        time.sleep(0.01)


def programs() -> dict[str, Path]:
    """The server programs there are: TaskHive's own, and a redis-server on PATH."""
    found = {"valkey": embedded.binary().path}
    if other := shutil.which("redis-server"):
        found["redis"] = Path(other)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """One server process; on a unix socket, or on a port of the loopback if asked."""

    program: Path
    directory: Path
    port: int = 0
    extra: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return self.directory / "s"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}"

    def start(self) -> Server:
        self.launch()
        until(self.answers, f"{self.program} answers")
        return self

    def launch(self) -> None:
        """Start it without waiting for its first answer."""
        words = [str(self.program), "--port", str(self.port), "--unixsocket", str(self.socket)]
        words += ["--bind", "127.0.0.1", "--dir", str(self.directory), "--save", "", *self.extra]
        if "--appendonly" not in self.extra:
            words += ["--appendonly", "no"]
        log = (self.directory / "log").open("ab")
        with log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=log, preexec_fn=_die_with_parent, start_new_session=True
            )

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.ConnectionError:
            return False

    def client(self) -> redis.Redis:
        """A plain client, to look under the hood and to do harm."""
        # Without the library's own repetitions: they wait, and hide what is looked for.
        return redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.kill()


def _die_with_parent() -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)


@contextlib.contextmanager
def running(program: Path, directory: Path, port: int = 0, *extra: str) -> Iterator[Server]:
    server = Server(program, directory, port, extra)
    try:
        yield server.start()
    finally:
        server.stop()
