"""Ctrl-C at the first moments of every command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskhive.embedded import binary
from tests.servers import DEADLINE, Server, running

ROOT = Path(__file__).resolve().parents[2]
# Whatever an interpreter does (imports, opens, connects, starts) is told to its audit hooks: so a moment
# is a number or a name, and the same in every run. Only the command itself is told, nobody below it.
PRESSES = """
import atexit, os, signal, sys
at = os.environ.pop("PRESS_AT", "")
seen = 0
def press(event, args):
    global seen
    if seen or (event == "import" and args[0] == "taskhive.cli"):
        seen += 1
        if at in (str(seen), event):
            os.kill(os.getpid(), signal.SIGINT)
if at:
    sys.addaudithook(press)
if at == "never":
    atexit.register(lambda: print(seen, file=sys.stderr))
"""
HANDLERS = "from taskhive import Hive\nhive = Hive()\n@hive.handler\ndef f(): pass\n"
CONSOLE = "from taskhive.__main__ import main; main()"


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(prefix="th-") as directory,
        running(binary().path, Path(directory)) as started,
    ):
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(PRESSES)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


def pressed(folder: Path, url: str, moment: object, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PRESS_AT": str(moment)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment, "TASKHIVE_URL": url},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        # A test run in the background of a shell hands down that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    "words", [("-m", "taskhive", "handlers.py"), ("-c", CONSOLE, "status")], ids=["module", "console"]
)
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_word(
    words: tuple[str, ...], folder: Path, valkey: Server
) -> None:
    counted = pressed(folder, valkey.url, "never", "-m", "taskhive", "--version")
    moments = int(counted.stderr)
    assert moments > 500  # from the import of the command line to the end
    for moment in (1, 2, 3, *range(10, moments, moments // 12)):
        done = pressed(folder, valkey.url, moment, *words)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), moment


@pytest.mark.parametrize(
    ("words", "event", "code"),
    [
        ("status", "socket.connect", 130),
        ("demo", "socket.connect", 130),
        ("demo", "subprocess.Popen", 130),
        ("handlers.py", "socket.__new__", 130),
        ("handlers.py", "subprocess.Popen", 0),  # a worker: it drains
    ],
)
def test_ctrl_c_at_the_first_steps_of_a_command_shows_no_traceback(
    words: str, event: str, code: int, folder: Path, valkey: Server
) -> None:
    done = pressed(folder, valkey.url, event, "-m", "taskhive", words)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
