"""Private servers to measure against: fresh, without persistence, gone when the measurement is."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from taskhive import embedded
from taskhive.errors import NoServer

_START_WITHIN = 30.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server that answers on a unix socket."""

    socket: Path

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def client(self) -> redis.Redis:
        """A plain client of the library's own."""
        return redis.Redis(unix_socket_path=str(self.socket))

    def info(self, section: str) -> dict[str, Any]:
        with self.client() as client:
            facts: dict[str, Any] = client.info(section)
            return facts

    @contextlib.contextmanager
    def listened(self) -> Iterator[Callable[[], int]]:
        """How many calls clients have made since then.

        The server's own counters add what scripts call inside to what clients ask of it, so the
        lines of MONITOR are counted, which tell the two apart.
        """
        with self.client() as client, self.client() as other:
            other.ping()  # or its greeting would be counted
            with client.monitor() as heard:

                def calls() -> int:
                    other.echo("so far")
                    lines = iter(heard.next_command, None)
                    before = itertools.takewhile(lambda line: line["command"] != "ECHO so far", lines)
                    return sum(line["client_type"] != "lua" for line in before)

                yield calls

    def version(self) -> str:
        facts = self.info("server")
        if "valkey_version" in facts:
            return f"Valkey {facts['valkey_version']}"
        return f"Redis {facts['redis_version']}"

    def memory(self) -> int:
        """Bytes in use, once the buffers of connections that were closed are gone too."""
        with self.client() as client:
            deadline = time.monotonic() + _START_WITHIN
            while len(client.client_list()) > 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            return int(client.info("memory")["used_memory"])


def programs() -> dict[str, Path]:
    """The server programs there are: TaskHive's own Valkey, and a redis-server on PATH."""
    found: dict[str, Path] = {}
    if other := shutil.which("redis-server"):
        found["redis"] = Path(other)
    with contextlib.suppress(NoServer):
        own = embedded.binary().path
        if "valkey" in own.name:  # without one it is the redis-server that was found already
            found["valkey"] = own
    return found


@contextlib.contextmanager
def running(program: Path) -> Iterator[Server]:
    """A server for one measurement: what another one left behind is not measured with it."""
    with tempfile.TemporaryDirectory(prefix="thb-") as name:  # short: it holds a unix socket
        directory = Path(name)
        words = [str(program), "--port", "0", "--unixsocket", str(directory / "s")]
        words += ["--dir", name, "--save", "", "--appendonly", "no"]
        # It would keep the arguments of slow calls, and be measured with the jobs.
        words += ["--slowlog-log-slower-than", "-1"]
        with (directory / "log").open("ab") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            server = Server(directory / "s")
            _await_answer(server, process, directory / "log")
            yield server
        finally:
            process.kill()
            process.wait()


def _await_answer(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_WITHIN
    while True:
        try:
            with server.client() as client:
                client.ping()
                return
        except redis.exceptions.RedisError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {log.read_text()}") from error
        time.sleep(0.01)
