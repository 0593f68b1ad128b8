"""What a black box says in a few words."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from taskhive.blackbox import NO_STACK, BlackBox, stack_size

HELPER = 'Thread 0x01 (most recent call first):\n  File "/lib/threading.py", line 327 in wait'
HANDLER = (
    '{} 0x02 (most recent call first):\n  File "/app/handlers.py", line 7 in deep\n'
    '  File "/app/handlers.py", line 9 in work'
)

LIBRARY = '{} 0x03 (most recent call first):\n  File "{}", line 5 in match'
MAIN = "Thread 0x04 (most recent call first):"
INSIDE = LIBRARY.format("Current thread", re.__file__)


@pytest.mark.parametrize(
    ("stack", "where"),
    [
        (f'{INSIDE}\n  File "/app/handlers.py", line 7 in check', "handlers.py:7"),
        (INSIDE, "__init__.py:5"),
        (f"{HANDLER.format('Thread')}\n\n{MAIN}", "handlers.py:7"),
        (HANDLER.format("Current thread"), "handlers.py:7"),
        (f"{HELPER}\n\n{HANDLER.format('Current thread')}", "handlers.py:7"),
        (f"{HELPER}\n\n{HANDLER.format('Thread')}", "handlers.py:7"),
        (f"{HANDLER.format('Current thread')}\n\n{HELPER}", "handlers.py:7"),
        (NO_STACK, None),
        ("", None),
    ],
)
def test_the_line_of_the_handler_is_named_and_not_that_of_a_helper(
    stack: str, where: str | None
) -> None:
    assert BlackBox("timeout", stack=stack).where() == where


DEEP = """
import faulthandler, sys
def dive(n): dive(n - 1) if n else faulthandler.dump_traceback(sys.stdout, all_threads=True)
dive(int(sys.argv[1]))
"""


@pytest.mark.parametrize("depth", [0, 150])
def test_a_stack_counts_when_its_last_word_is_written(tmp_path: Path, depth: int) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    words = [sys.executable, "-m", "deep", str(depth)]
    written = subprocess.run(words, cwd=tmp_path, capture_output=True, check=True).stdout
    assert written.startswith(b"Current thread")
    with tempfile.TemporaryFile() as memory:
        for byte in range(len(written) - 1):
            memory.write(written[byte : byte + 1])
            memory.flush()
            assert stack_size(memory.fileno()) == 0
        memory.write(written[-1:])
        memory.flush()
        assert stack_size(memory.fileno()) == len(written)
