"""The descriptors of one child on the supervisor's loop: frames and output come in, frames go out."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Protocol

from taskhive import blackbox, outbox
from taskhive.wire import BadFrame, Kind, Reader

MAX_LINE = 8192
"""What one line of output may hold; the rest of it is another line."""

Frames = list[tuple[Kind, bytes]]


class Receiver(Protocol):
    """Whoever listens to a child."""

    def received(self, came: Frames) -> None:
        """Whole frames, in order; raises what a frame that is none deserves."""
        ...

    def printed(self, lines: list[str]) -> None:
        """Lines that went past Python: of C code, of processes below the child."""
        ...

    def broken(self, why: str) -> None:
        """What came was no frame, or the stream ended while the child lives."""
        ...


class Link(Protocol):
    """The supervisor's end of one child."""

    def listen(self, receiver: Receiver) -> None:
        """Hand what comes to `receiver` from now on."""
        ...

    def send(self, data: bytes) -> None:
        """Send frames; never waits, and a dead child is told nothing."""
        ...

    def shut(self) -> None:
        """Tell the child that there is nothing more."""
        ...

    def drain(self) -> None:
        """Hand on the last words of a child that is dead."""
        ...

    def left_unread(self) -> bool:
        """Whether a dead child had something in its socket that it never read."""
        ...

    def unsent(self) -> Frames:
        """Ends of attempts that the child has told and not sent."""
        ...

    def stack_size(self) -> int:
        """How much of its stack a condemned child has written down; 0 until it is whole."""
        ...

    def stack(self) -> str:
        """Where it was, or why that is not known."""
        ...

    def close(self) -> None:
        """Let go of the descriptors."""
        ...


class SocketLink:
    """A socket for frames, a pipe for raw output, memory for stacks and for ends that are not sent."""

    def __init__(self, sock: socket.socket, output: int, memory: int, box: int) -> None:
        self._sock = sock
        self._output = output
        self._memory = memory
        self._box = box
        self._frames = Reader()
        self._unsent = bytearray()
        self._unread = False
        self._part = b""
        self._receiver: Receiver | None = None
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        os.set_blocking(output, False)

    def listen(self, receiver: Receiver) -> None:
        """Hand what comes to `receiver` from now on."""
        self._receiver = receiver
        self._loop.add_reader(self._sock, self._readable)
        self._loop.add_reader(self._output, self._printed)

    def send(self, data: bytes) -> None:
        """Send frames; what does not fit now follows when it does."""
        if not self._unsent:
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._unread = True
                return  # it is dead; its exit is on the way
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._sock, self._writable)
        self._unsent += data

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> bool:
        """Read what there is; False when nothing more will come."""
        assert self._receiver is not None
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            # So the kernel says that the other end was closed with bytes in it.
            self._unread, data = True, b""
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._sock)
            self._receiver.broken("closed its socket")
            return False
        # What was printed before an attempt's end belongs to that attempt.
        self._printed()
        frames: Frames = []
        try:
            # One by one: what came whole before the first bad frame counts.
            frames.extend(self._frames.feed(data))
        except BadFrame as error:
            self._give_up(frames, f"sent what is no frame: {error}")
            return False
        return self._hand_on(frames)

    def _hand_on(self, frames: Frames) -> bool:
        assert self._receiver is not None
        try:
            self._receiver.received(frames)
        except BadFrame as error:
            self._give_up([], f"sent what is no frame: {error}")
            return False
        return True

    def _give_up(self, frames: Frames, why: str) -> None:
        assert self._receiver is not None
        self._loop.remove_reader(self._sock)
        if not frames or self._hand_on(frames):
            self._receiver.broken(why)

    def _printed(self) -> None:
        assert self._receiver is not None
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._output)
            return
        *lines, self._part = (self._part + data).split(b"\n")
        while len(self._part) > MAX_LINE:
            lines.append(self._part[:MAX_LINE])
            self._part = self._part[MAX_LINE:]
        if lines:
            self._receiver.printed([line[:MAX_LINE].decode(errors="backslashreplace") for line in lines])

    def shut(self) -> None:
        """Tell the child that there is nothing more."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is dead already

    def drain(self) -> None:
        """Hand on the last words of a child that is dead."""
        if self._loop.remove_reader(self._sock):
            while self._readable():
                pass
        if self._loop.remove_reader(self._output):
            self._printed()
            if self._part and self._receiver is not None:
                self._receiver.printed([self._part.decode(errors="backslashreplace")])

    def left_unread(self) -> bool:
        """As the kernel said when the last words were read."""
        return self._unread or bool(self._unsent)

    def unsent(self) -> Frames:
        """What lies in the memory shared with the child."""
        return outbox.read(self._box)

    def stack_size(self) -> int:
        """How much faulthandler has written, once it is done."""
        return blackbox.stack_size(self._memory)

    def stack(self) -> str:
        """What faulthandler has written, or why there is nothing."""
        return blackbox.read_stack(self._memory)

    def close(self) -> None:
        """Let go of the descriptors."""
        for descriptor in (self._sock, self._output):
            self._loop.remove_reader(descriptor)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        os.close(self._output)
        os.close(self._memory)
        os.close(self._box)
