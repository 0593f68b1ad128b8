"""A bare connection and the scripts under test, with their clock in the test's hand."""

from __future__ import annotations

import hashlib
import re
import socket
from pathlib import Path
from typing import Any

import hiredis

from taskhive import scripts
from taskhive.resp import pack

_WALL = re.compile(
    r"^local function wall\(\)\n"
    r"  local t = redis\.call\('TIME'\)\n"
    r"  return t\[1\] \* 1000 \+ math\.floor\(t\[2\] / 1000\)\nend$",
    re.MULTILINE,
)


def with_clock(text: str) -> str:
    """The script with `wall()` answering its last argument, which the script itself never sees.

    The substitution must fit exactly once, or the walk would test a clock that is not the shipped one.
    """
    shebang, _, body = text.partition("\n")
    body, replaced = _WALL.subn("local function wall() return CLOCK end", body)
    assert shebang.startswith("#!lua"), f"a script without its first line: {shebang}"
    assert replaced == 1, "the clock is not read where it should be"
    return f"{shebang}\nlocal CLOCK = tonumber(table.remove(ARGV))\n{body}"


class Scripts:
    """Every script of a directory, prepared for a walk."""

    def __init__(self, directory: Path | None = None) -> None:
        self.texts = {
            name: with_clock(scripts.source(name, directory)).encode() for name in scripts.names()
        }
        self.digests = {name: hashlib.sha1(text).hexdigest() for name, text in self.texts.items()}


class Wire:
    """One connection to a server's unix socket; several commands per round trip."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._reader = hiredis.Reader()
        self._ears: list[Ear] = []

    def close(self) -> None:
        for ear in self._ears:
            ear.close()
        self._socket.close()

    def ear(self, *channels: str) -> Ear:
        """A second connection that listens, closed with this one."""
        self._ears.append(Ear(self._path, channels))
        return self._ears[-1]

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, *commands: list[bytes]) -> list[Any]:
        """The replies, errors among them as values."""
        self._socket.sendall(b"".join([pack(*words) for words in commands]))
        return [self.next() for _ in commands]

    def next(self) -> Any:
        """The next reply or message."""
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 16))
        return reply


class Ear(Wire):
    """A connection that hears what is published."""

    def __init__(self, path: Path, channels: tuple[str, ...]) -> None:
        super().__init__(path)
        self._fence = f"{channels[0]}:fence".encode()
        for _ in self.call([b"SUBSCRIBE", self._fence, *(one.encode() for one in channels)]):
            for _ in channels:
                self.next()

    @property
    def fence(self) -> list[bytes]:
        """To be sent behind what may publish; what came before it has been heard."""
        return [b"PUBLISH", self._fence, b""]

    def heard(self) -> list[tuple[str, str]]:
        """Channel and message of all that was published before the fence."""
        found = []
        while (message := self.next())[1] != self._fence:
            found.append((message[1].decode(), message[2].decode()))
        return found
