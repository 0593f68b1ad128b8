"""What a black box says in a few words."""

from __future__ import annotations

import pytest

from taskhive.blackbox import NO_STACK, BlackBox

HELPER = 'Thread 0x01 (most recent call first):\n  File "/lib/threading.py", line 327 in wait'
HANDLER = (
    '{} 0x02 (most recent call first):\n  File "/app/handlers.py", line 7 in deep\n'
    '  File "/app/handlers.py", line 9 in work'
)


@pytest.mark.parametrize(
    ("stack", "where"),
    [
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
