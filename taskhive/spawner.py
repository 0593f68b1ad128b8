"""The supervisor's hold on a zygote: orders go down the control socket, reports come up."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from taskhive.errors import HandlerError
from taskhive.wire import BadFrame, Kind, Reader, json_frame, read_json

# A child must not find the way to the server in its environment.
_SECRETS = ("TASKHIVE_URL", "TASKHIVE_SECRET")
# One thread per library while importing: a fork does not survive pools of them.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Zygote:
    """One zygote process; its reports are handed to `report`."""

    def __init__(
        self,
        words: Sequence[str],
        settings: dict[str, Any],
        report: Callable[[Zygote, Kind, Any], None],
        lost: Callable[[Zygote], None],
    ) -> None:
        self._words = list(words)
        self._settings = settings
        self._report = report
        self._lost = lost
        self._reader = Reader()
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._catalog: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.pid = 0

    async def start(self) -> dict[str, Any]:
        """Start it and wait for its catalog; HandlerError with the user's own traceback otherwise."""
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

    def fork(self, slot: int) -> tuple[socket.socket, int, int]:
        """Order a child; its socket, its output, its memory file."""
        ours, theirs = socket.socketpair()
        output, writes = os.pipe()
        memory = os.memfd_create("taskhive-stack") if hasattr(os, "memfd_create") else _plain_file()
        assert self._socket is not None
        try:
            # Small, and the zygote reads all the time: it does not fill the buffer.
            socket.send_fds(
                self._socket, [json_frame(Kind.FORK, slot)], [theirs.fileno(), writes, memory]
            )
        finally:
            theirs.close()
            os.close(writes)
        return ours, output, memory

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a child, unless it has ended."""
        self._order(Kind.SIGNAL, [pid, number])

    def kill(self, pid: int) -> None:
        """Kill a child and all below it."""
        self._order(Kind.KILL, pid)

    def pulse(self, trusted_until: float) -> None:
        """Say that we live, and until when our leases are good."""
        self._order(Kind.PULSE, trusted_until)

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
                value, _ = read_json(body)
                if kind is Kind.CATALOG:
                    self._catalog.set_result(value)
                elif kind is Kind.BROKEN:
                    self._catalog.set_exception(HandlerError(value))
                else:
                    self._report(self, kind, value)
        except BadFrame:
            self._gone()

    def _gone(self) -> None:
        if self._socket is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self._socket = None
        if not self._catalog.done():
            self._catalog.set_exception(
                HandlerError("the process that imports the handlers died while importing them")
            )
        self._lost(self)

    async def stop(self) -> None:
        """Close the control socket: it kills its children and ends."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            await self._process.wait()


def _plain_file() -> int:
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="taskhive-stack-")
    os.unlink(path)
    return descriptor
