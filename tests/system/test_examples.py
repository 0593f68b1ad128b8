"""The examples as a newcomer runs them: real programs, on an embedded server of their own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.by_hand import primes_below
from taskhive import Hive, embedded
from tests.servers import DEADLINE, until
from tests.workers import working

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private embedded server, stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="th-") as made:  # short: it holds a unix socket
        directory = Path(made, "d")
        monkeypatch.setenv("TASKHIVE_DIR", str(directory))
        yield directory
        embedded.stop(directory)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Programs of a test; none outlives it."""
    programs: list[subprocess.Popen[str]] = []
    yield programs
    for program in programs:
        if program.poll() is None:
            program.kill()
        program.communicate()


def start(started: list[subprocess.Popen[str]], *words: str) -> subprocess.Popen[str]:
    program = subprocess.Popen(
        [sys.executable, str(EXAMPLES / words[0]), *words[1:]],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(program)
    return program


def said(program: subprocess.Popen[str], code: int = 0) -> str:
    """Its whole output; it ended well, and complained of nothing."""
    out, err = program.communicate(timeout=DEADLINE)
    assert (program.returncode, err) == (code, "")
    return out


def line_from(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline()


def test_the_first_example_shows_every_state_and_leaves_nothing_behind(
    home: Path, started: list[subprocess.Popen[str]]
) -> None:
    out = said(start(started, "first_job.py"))
    for word in ("ready", "delayed", "active", "succeeded", "dead", "cancelled"):
        assert word in out
    assert "Still listed: False" in out
    assert [line for line in out.splitlines() if len(line) >= 80] == []
    with Hive() as hive:
        assert hive.queues() == []


def test_two_first_examples_at_once_do_not_disturb_each_other(
    home: Path, started: list[subprocess.Popen[str]]
) -> None:
    both = [start(started, "first_job.py") for _ in range(2)]
    for program in both:
        assert "4 ready, 1 delayed, 0 active, 0 dead" in said(program)
    with Hive() as hive:
        assert hive.queues() == []


def test_what_one_terminal_sends_a_worker_in_another_one_does(
    home: Path, started: list[subprocess.Popen[str]]
) -> None:
    worker = start(started, "by_hand.py", "work")
    assert "waiting for jobs" in line_from(worker)
    assert "sent 5 jobs" in said(start(started, "by_hand.py", "send", "5"))
    done = [line_from(worker) for _ in range(5)]
    assert all("primes below" in line and "(try 1)" in line for line in done)
    with Hive() as hive:
        until(lambda: hive.queue("by-hand").stats().succeeded == 5, "five jobs are settled")


def test_ctrl_c_ends_the_worker_by_hand_without_a_traceback(
    home: Path, started: list[subprocess.Popen[str]]
) -> None:
    worker = start(started, "by_hand.py", "work")
    assert "waiting for jobs" in line_from(worker)
    worker.send_signal(signal.SIGINT)
    assert said(worker) == "stopped\n"


def test_the_primes_of_the_example_are_right() -> None:
    assert [primes_below(n) for n in (2, 3, 10, 100, 10_000)] == [0, 1, 4, 25, 1229]


@pytest.mark.parametrize("words", [[], ["send"], ["send", "0"], ["send", "-1"], ["play"]])
def test_a_wrong_command_line_is_answered_with_the_usage(
    words: list[str], started: list[subprocess.Popen[str]]
) -> None:
    program = start(started, "by_hand.py", *words)
    out, err = program.communicate(timeout=DEADLINE)
    assert (program.returncode, out) == (2, "")
    assert err.startswith("usage:")


# Examples that are the file of a worker and the program that dispatches to it


@pytest.fixture
def beside(home: Path, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Starts the worker of an example, as its first lines say."""
    with contextlib.ExitStack() as workers:

        def start_worker(name: str) -> None:
            given = {"TASKHIVE_DIR": str(home), "TASKHIVE_CONCURRENCY": "2"}
            words = (str(EXAMPLES / name),)
            workers.enter_context(working("", "", tmp_path / "log", *words, environment=given))

        yield start_worker


def test_the_mandelbrot_set_comes_band_by_band_with_progress(
    beside: Callable[[str], None], started: list[subprocess.Popen[str]]
) -> None:
    beside("crunching.py")
    lines = said(start(started, "crunching.py")).splitlines()
    assert sum("6 of 6 rows" in line for line in lines) == 4
    picture = lines[4:]
    assert len(picture) == 24
    assert max(map(len, picture)) <= 78
    assert picture[1:12] == picture[:12:-1]  # it is its own mirror image


def test_a_failure_handler_sends_back_what_could_not_be_delivered(
    beside: Callable[[str], None], started: list[subprocess.Popen[str]]
) -> None:
    beside("failures.py")
    assert said(start(started, "failures.py")).splitlines() == [
        "plain: plain delivered at attempt 1",
        "deaf: deaf delivered at attempt 3",
        "nowhere: failed, PermanentError",
        "nowhere: nowhere goes back (permanent: no such address)",
    ]


def test_a_runaway_is_killed_and_its_black_box_names_the_line(
    beside: Callable[[str], None], started: list[subprocess.Popen[str]]
) -> None:
    beside("runaway.py")
    out = said(start(started, "runaway.py"))
    text = (EXAMPLES / "runaway.py").read_text().splitlines()
    line = next(n for n, code in enumerate(text, 1) if "re.fullmatch" in code)
    assert f'runaway.py", line {line} in is_valid' in out
    assert "verdict timeout by SIGKILL" in out
    assert "['looking at 40 letters']" in out
    assert "a short text: True" in out
    assert "the next one: True" in out


def test_the_list_of_examples_names_every_one() -> None:
    listed = set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in EXAMPLES.glob("*.py")} - {"__init__.py"}
    assert {name.removesuffix(".py") for name in listed} & sys.stdlib_module_names == set()
