"""The demo as a newcomer runs it: on an embedded server of its own, and gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from taskhive import embedded
from tests.servers import DEADLINE, until

ROOT = Path(__file__).resolve().parents[2]
EXPIRES = (":destroyed", ":events", ":request:")
"""Keys that the server itself drops after a minute or two."""


@pytest.fixture
def home() -> Iterator[Path]:
    """Where the demo has its server; stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="th-") as made:  # short: it holds a unix socket
        directory = Path(made, "d")
        yield directory
        embedded.stop(directory)


def demo(home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "taskhive", "demo"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TASKHIVE_DIR": str(home), "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left(home: Path) -> list[str]:
    """Processes that the demo made, without the server and its warden, which stop by themselves."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            is_its_own = process.environ().get("TASKHIVE_DIR") == str(home)
        except psutil.Error:
            continue
        if is_its_own and "warden" not in words and "valkey" not in words and "redis" not in words:
            found.append(words)
    return found


def keys(home: Path) -> list[str]:
    """What is in the server and would stay there."""
    with redis.Redis(unix_socket_path=str(embedded.ensure(home))) as client:
        names = [key.decode() for key in client.keys("*")]
    return [name for name in names if not any(part in name for part in EXPIRES)]


def test_the_demo_shows_a_table_and_a_black_box_and_leaves_nothing_behind(home: Path) -> None:
    program = demo(home)
    out, err = program.communicate(timeout=2 * DEADLINE)
    assert (program.returncode, err) == (0, "")
    lines = out.splitlines()
    states = {line[:26].strip(): line[28:].split()[0] for line in lines if "primes below" in line[:26]}
    assert set(states.values()) == {"succeeded"}
    assert len(states) == 4
    for title, outcome in {
        "runaway regular expression": "failed         1  timeout",
        "segfault in C code": "failed         1  crash",
        "flaky service": "succeeded      3",
    }.items():
        assert [line for line in lines if line.startswith(title) and outcome in line], out
    assert "black box of the runaway" in out
    assert "demo_handlers.py" in out
    assert [line for line in lines if len(line) > 80] == []
    assert left(home) == []
    assert keys(home) == []


def test_ctrl_c_during_the_demo_is_quiet_and_leaves_nothing_behind(home: Path) -> None:
    program = demo(home)
    assert program.stdout is not None
    assert "TaskHive demo" in program.stdout.readline()
    until(lambda: any("demo_handlers" in words for words in left(home)), "its worker is there")
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=DEADLINE)
    assert (program.returncode, err) == (130, "")
    assert left(home) == []
    assert keys(home) == []
