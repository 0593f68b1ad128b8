"""What makes children for a worker: a protocol, and the zygote process behind it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from taskhive import outbox
from taskhive.errors import HandlerError
from taskhive.link import Link, SocketLink
from taskhive.signing import KeyRing
from taskhive.wire import BadFrame, Kind, Reader, json_frame, read_json

# A child must not find the way to the server in its environment.
_SECRETS = ("TASKHIVE_URL", "TASKHIVE_SECRET", "TASKHIVE_SECRET_FILE")
# One thread per library while importing: a fork does not survive pools of them.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
STOP_WITHIN = 8.0
"""How long a zygote may take to kill its children; one that hangs in the user's import is killed."""


class Reports(Protocol):
    """Whoever is told what becomes of children."""

    def forked(self, slot: int, pid: int, problem: str) -> None:
        """A child was made; or not, with pid 0 and the problem."""
        ...

    def exited(self, slot: int, code: int, cpu: float, peak: int, let_go: bool) -> None:
        """A child is dead and reaped: exit code or minus its signal, what it used.

        `let_go`: the zygote killed it because it did not hear from us in time.
        """
        ...

    def lost(self, spawner: Spawner) -> None:
        """The maker of children itself is gone, and with it all it made."""
        ...


class Spawner(Protocol):
    """Makes, signals and kills children."""

    pid: int

    async def start(self) -> dict[str, Any]:
        """Import the handlers; their catalog, or HandlerError with the user's own traceback."""
        ...

    def fork(self, slot: int) -> Link:
        """Order a child."""
        ...

    def signal(self, pid: int, number: int, group: bool = False) -> None:
        """Send a signal to a child, or to its process group, unless it has ended."""
        ...

    def kill(self, pid: int) -> None:
        """Kill a child and all below it."""
        ...

    def pulse(self, trusted_until: float) -> None:
        """Say that we live, and until when our leases are good."""
        ...

    async def stop(self) -> None:
        """Kill what is left and end."""
        ...


class Zygote:
    """The process that imported the handlers and forks; orders go down, reports come up."""

    def __init__(
        self,
        words: Sequence[str],
        settings: dict[str, Any],
        reports: Reports,
        keys: Callable[[], KeyRing | None] = lambda: None,
    ) -> None:
        self._words = list(words)
        self._keys = keys
        self._is_entrusted = False
        self._settings = settings
        self._reports = reports
        self._reader = Reader()
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._catalog: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.pid = 0

    async def start(self) -> dict[str, Any]:
        """Start it and wait for its catalog."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        environment = {k: v for k, v in os.environ.items() if k not in _SECRETS}
        for name in _ONE_THREAD:
            environment.setdefault(name, "1")
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "taskhive.zygote",
                str(theirs.fileno()),
                json.dumps(self._settings),
                *self._words,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours, self._read)
        return await self._catalog

    def fork(self, slot: int) -> Link:
        """Order a child; with the order go its ends of socket, output pipe and shared memory."""
        if self._socket is None:
            raise ConnectionError("the zygote is gone")
        if not self._is_entrusted:
            self._entrust()
        ours, theirs = socket.socketpair()
        output, writes = os.pipe()
        memory = os.memfd_create("taskhive-stack") if hasattr(os, "memfd_create") else _plain_file()
        box = outbox.make()
        try:
            # Small, and the zygote reads all the time: it does not fill the buffer.
            socket.send_fds(
                self._socket, [json_frame(Kind.FORK, slot)], [theirs.fileno(), writes, memory, box]
            )
        except OSError:
            ours.close()
            for descriptor in (output, memory, box):
                os.close(descriptor)
            raise
        finally:
            theirs.close()
            os.close(writes)
        return SocketLink(ours, output, memory, box)

    def signal(self, pid: int, number: int, group: bool = False) -> None:
        """Send a signal to a child, or to its process group, unless it has ended."""
        self._order(Kind.SIGNAL, [pid, number, group])

    def kill(self, pid: int) -> None:
        """Kill a child and all below it."""
        self._order(Kind.KILL, pid)

    def pulse(self, trusted_until: float) -> None:
        """Say that we live, and until when our leases are good."""
        self._order(Kind.PULSE, trusted_until)

    def _entrust(self) -> None:
        """Before its first child: the keys of signed pickles, over this socket and nowhere else."""
        self._is_entrusted = True
        ring = self._keys()
        self._order(Kind.ENTRUST, None if ring is None else ring.portable())

    def _order(self, kind: Kind, value: Any) -> None:
        if self._socket is not None:
            try:
                self._socket.send(json_frame(kind, value))
            except OSError:
                self._gone()

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone()
            return
        try:
            for kind, body in self._reader.feed(data):
                self._told(kind, read_json(body)[0])
        except BadFrame:
            self._gone()

    def _told(self, kind: Kind, value: Any) -> None:
        match kind:
            case Kind.CATALOG:
                self._catalog.set_result(value)
            case Kind.BROKEN:
                self._catalog.set_exception(HandlerError(value))
            case Kind.FORKED:
                self._reports.forked(*value)
            case Kind.EXITED:
                self._reports.exited(*value)
            case _:
                raise BadFrame(f"the zygote sent {kind.name}")

    def _gone(self) -> None:
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        if not self._catalog.done():
            self._catalog.set_exception(
                HandlerError(
                    "the process that imports the handlers died while importing them. Import them by "
                    "hand, with `python -X faulthandler`, to see where"
                )
            )
        else:
            self._reports.lost(self)

    async def stop(self) -> None:
        """Close the control socket: it kills its children and ends."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            if not self._catalog.done() or self._catalog.cancelled():
                self._process.kill()  # it would not listen before the user's import is done
            try:
                await asyncio.wait_for(self._process.wait(), STOP_WITHIN)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def _plain_file() -> int:
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="taskhive-stack-")
    os.unlink(path)
    return descriptor
