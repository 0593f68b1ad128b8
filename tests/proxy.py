"""A network that can be told to fail: a TCP proxy before a real server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path


class Fault(StrEnum):
    """What happens to one request that runs a script."""

    LOSE_REQUEST = "the connection ends before the server has it"
    LOSE_REPLY = "the connection ends after the server has acted"
    RESET = "the connection is reset while the server acts"
    HOLD_REPLY = "the reply does not come until `let_go`"
    MIX_REPLY = "the reply of the request before comes once more"


class Proxy:
    """Listens on a port of the loopback, forwards to a unix socket.

    `choose` is asked for the fault of each script call; `plan` is a list of faults to come, taken
    first. Replies are never told apart from their neighbours by reading them: a client has one
    request in flight on a connection.
    """

    def __init__(self, server: Path) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self.plan: deque[Fault | None] = deque()
        self.choose: Callable[[], Fault | None] = lambda: None
        self.happened: Counter[Fault] = Counter()
        self.requests = 0
        self.let_go = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def close(self) -> None:
        self.let_go.set()
        # A blocked accept() does not notice that its socket is closed; a shut down one does.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in list(self._links):
            link.close()

    def fault(self, request: bytes) -> Fault | None:
        """What shall happen to this request."""
        if b"EVAL" not in request[:40]:
            return None
        with self._lock:
            self.requests += 1
            fault = self.plan.popleft() if self.plan else self.choose()
            if fault is not None:
                self.happened[fault] += 1
            return fault

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            try:
                upstream.connect(str(self._server))
            except OSError:  # the server is away, and so is what stands before it
                client.close()
                upstream.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, upstream)
            self._links.add(link)
            link.start()

    def forget(self, link: _Link) -> None:
        self._links.discard(link)


class _Link:
    """One connection through the proxy, with a thread for each direction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._fault: Fault | None = None
        self._last = b"*1\r\n$8\r\nstranger\r\n"

    def start(self) -> None:
        for pump in (self._requests, self._replies):
            threading.Thread(target=self._run, args=(pump,), daemon=True).start()

    def close(self, *, reset: bool = False) -> None:
        if reset:
            with contextlib.suppress(OSError):
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                if not (reset and end is self._client):
                    end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.forget(self)

    def _run(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except OSError:
            pass  # one of the two has gone, or the other pump has closed
        finally:
            self.close()

    def _requests(self) -> None:
        while data := self._client.recv(1 << 20):
            fault = self._proxy.fault(data)
            if fault is Fault.LOSE_REQUEST:
                return
            self._fault = fault or self._fault
            self._server.sendall(data)
            if fault is Fault.RESET:
                self.close(reset=True)
                return

    def _replies(self) -> None:
        while data := self._server.recv(1 << 20):
            match self._fault:
                case Fault.LOSE_REPLY | Fault.RESET:
                    return
                case Fault.HOLD_REPLY:
                    self._proxy.let_go.wait(60)
                case Fault.MIX_REPLY:
                    data = self._last
            self._fault = None
            if data.startswith(b"*"):  # an error belongs to nobody, and cannot be told apart
                self._last = data
            self._client.sendall(data)


@contextlib.contextmanager
def proxied(server: Path) -> Iterator[Proxy]:
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
