"""What `from taskhive import ...` finds."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import taskhive

SOURCE = Path(taskhive.__file__)


def for_type_checkers() -> dict[str, str]:
    """Each name that a type checker sees, and its module."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("taskhive."):
            found |= {alias.name: node.module for alias in node.names}
    return found


def test_what_is_found_is_what_type_checkers_see() -> None:
    assert sorted(for_type_checkers()) == sorted(taskhive.__all__)
    for name, module in for_type_checkers().items():
        assert getattr(taskhive, name) is getattr(sys.modules[module], name)
    assert set(taskhive.__all__) <= set(dir(taskhive))


def test_a_name_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'taskhive' has no attribute 'Beehive'"):
        taskhive.Beehive  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(ImportError, match="Beehive"):
        from taskhive import Beehive  # type: ignore[attr-defined] # noqa: F401


def test_the_package_waits_for_no_library_until_something_of_it_is_used() -> None:
    """Or Ctrl-C in that time would show a traceback of it."""
    libraries = {"redis", "asyncio", "click", "typing"}
    program = f"import sys, taskhive.interrupts; print({libraries} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
