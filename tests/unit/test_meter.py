"""Real processes, measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from taskhive import meter
from tests.servers import until

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@contextlib.contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that says a line when it is where the test wants it, and ends with its input."""
    words = [sys.executable, "-S", "-c", code]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_memory_of_a_process_is_what_it_touched() -> None:
    with running(
        "import sys; b = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"
    ) as p:
        tree = meter.measure(p.pid)
        assert tree.processes == 1
        assert 64 * MIB < tree.anonymous <= tree.resident < 96 * MIB
        assert tree.largest == tree.anonymous
        assert 64 * MIB < meter.shares(p.pid).private < 96 * MIB


FORKED = """
import os, sys
b = bytearray(64 << 20)
r, w = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.close(w)
        os.read(r, 1)
        os._exit(0)
print('ready', flush=True)
sys.stdin.read()
"""


def test_a_forked_tree_is_counted_once_page_by_page() -> None:
    with running(FORKED) as process:
        until(lambda: meter.measure(process.pid).processes == 4, "all are there")
        until(lambda: meter.measure(process.pid).anonymous > 4 * 64 * MIB, "all are counted")
        tree, shares = meter.measure(process.pid), meter.shares(process.pid)
        assert shares.processes == 4
        assert 64 * MIB < shares.proportional < 112 * MIB
        assert tree.largest < 96 * MIB


BURNING = """
import os, sys, threading
def burn():
    while True: pass
for _ in range(2):
    threading.Thread(target=burn, daemon=True).start()
print('ready', flush=True)
sys.stdin.read()
"""


def test_threads_that_want_one_core_wait_for_it() -> None:
    with running(BURNING) as process:
        until(lambda: meter.measure(process.pid).cpu > 0.1, "it burns")
        before = meter.measure(process.pid)
        until(lambda: meter.measure(process.pid).cpu > before.cpu, "it goes on")
        assert meter.measure(process.pid).wait >= before.wait > 0


REAPED = """
import os, sys, time
if os.fork() == 0:
    while time.process_time() < 0.3: pass
    os._exit(0)
os.wait()
print('ready', flush=True)
sys.stdin.read()
"""


TWO_THREADS = """
import threading, time
def burn():
    while True: pass
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print('ready', flush=True)
burn()
"""


def test_a_thread_that_computes_is_runnable_and_one_that_sleeps_is_not() -> None:
    with running(TWO_THREADS) as busy:
        until(lambda: meter.measure(busy.pid).runnable == 1, "it computes")
    with running("import sys; print('ready', flush=True); sys.stdin.read()") as idle:
        until(lambda: meter.measure(idle.pid).runnable == 0, "it waits for input")


def test_the_cpu_time_of_the_reaped_still_counts() -> None:
    with running(REAPED) as process:
        tree = meter.measure(process.pid)
        assert tree.processes == 1
        assert tree.cpu >= 0.25


GRANDCHILD = """
import os, subprocess, sys
code = "import time; exec('while time.process_time() < 0.2: pass'); print('ready', flush=True); input()"
subprocess.run([sys.executable, '-S', '-c', code])
"""


def test_the_cpu_time_of_the_living_below_counts() -> None:
    with running(GRANDCHILD) as process:
        tree = meter.measure(process.pid)
        assert tree.processes == 2
        assert tree.cpu >= 0.15


def test_who_is_gone_counts_for_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    assert meter.measure(process.pid) == meter.NOTHING
    assert meter.shares(process.pid).processes == 0


def test_processes_that_come_and_go_do_not_disturb() -> None:
    code = """
import os, sys
print('ready', flush=True)
while True:
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
"""
    with running(code) as process:
        for _ in range(300):
            assert meter.measure(process.pid).processes >= 1
            meter.shares(process.pid)


def test_without_proc_psutil_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_PROC", False)
    tree = meter.measure(os.getpid())
    assert tree.processes >= 1
    assert tree.resident > MIB
    assert meter.shares(os.getpid()).private > MIB
    assert meter.measure(2**22 + 1) == meter.NOTHING
