"""Fixtures of the whole suite: a server of each kind, and a hive with keys of its own."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from taskhive import Hive
from tests.servers import Server, programs, running

_numbers = itertools.count()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and whatever is started from here would inherit it:
    # tests that send Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same cases in every run, no timings, and no directory of examples left behind.
settings.register_profile("taskhive", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("taskhive")


def pytest_report_header() -> list[str]:
    return [f"server: {name} ({path.name})" for name, path in programs().items()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What suites say of themselves: a walk that met nothing proves nothing, so its figures show."""
    for outcome in ("passed", "failed"):
        for test in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(test, "user_properties", ()):
                if name == "report":
                    title = test.nodeid.rpartition("::")[2]
                    lines = "\n" in str(value)
                    terminalreporter.write_line(f"{title}:{chr(10) if lines else ' '}{value}")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's own changes what a test does."""
    for name in [name for name in os.environ if name.startswith("TASKHIVE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", params=sorted(programs()))
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each kind, shared by the tests of one process."""
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,  # short: it holds a unix socket
        running(programs()[request.param], Path(directory)) as started,
    ):
        yield started


@pytest.fixture
def prefix() -> str:
    """Keys of this test alone."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def hive(server: Server, prefix: str) -> Iterator[Hive]:
    with Hive(server.url, prefix=prefix) as hive:
        yield hive
