"""The server's clock as TaskHive sees it, in the test's hand: it stands still until it is moved."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from functools import cache

import pytest
from redis import Redis

from taskhive import Queue, keys, scripts
from tests.servers import Server

_WALL = re.compile(r"^local function wall\(\)\n.*?\nend$", re.MULTILINE | re.DOTALL)
# One text for all tests, so that the server compiles it once: the prefix is read off the first key.
_HELD = """local function wall()
  return tonumber(redis.call('GET', string.match(KEYS[1], '^[^{]*') .. 'clock'))
end"""
_shipped = scripts.script


@cache
def script(name: str) -> scripts.ScriptText:
    """The shipped script with nothing replaced but where it reads the time."""
    real = _shipped(name)
    text, replaced = _WALL.subn(lambda _: _HELD, real.text)
    assert replaced == 1
    assert "'TIME'" in real.text
    assert "'TIME'" not in text
    return scripts.ScriptText(name, text, hashlib.sha1(text.encode()).hexdigest(), real.keys)


class Clock:
    """Now, in milliseconds of the server's wall clock."""

    def __init__(self, client: Redis, prefix: str) -> None:
        self._client = client
        self._key = f"{prefix}:clock"
        seconds, micros = client.time()
        self.ms = seconds * 1000 + micros // 1000
        self.jump(0)

    @property
    def now(self) -> float:
        return self.ms / 1000

    def jump(self, seconds: float) -> None:
        """Move it, forwards or back, with nobody calling meanwhile."""
        self.ms += round(seconds * 1000)
        self._client.set(self._key, self.ms)

    def run(self, *queues: Queue, seconds: float, step: float = 5.0) -> None:
        """Let time pass on queues that are called all the while, so that no gap is seen in it.

        The last step is not followed by a call: what it makes lapse is found by the test's own.
        """
        end = self.now + seconds
        for left in range(math.ceil(seconds / step) - 1, 0, -1):
            self.jump((end - self.now) / (left + 1))
            for queue in queues:
                queue.sweep()
        self.jump(end - self.now)


@pytest.fixture(name="clock")
def clock_fixture(server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """For tests that import it; a hive packs its scripts at first use, so its order is no matter."""
    monkeypatch.setattr(keys, "script", script)
    with server.client() as client:
        yield Clock(client, prefix)
