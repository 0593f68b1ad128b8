"""The promises the project makes about itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install -q tox && .venv/bin/tox"


def test_ci_runs_the_test_command_of_the_readme_and_nothing_weaker() -> None:
    assert TEST_COMMAND in (ROOT / "README.md").read_text()
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-1] == TEST_COMMAND


def test_every_python_of_the_test_matrix_is_named_where_it_must_be() -> None:
    wanted = ["3.11", "3.12", "3.13"]
    assert (ROOT / ".python-version").read_text().split() == wanted
    environments = re.findall(r"py3(\d+)", (ROOT / "tox.ini").read_text())
    assert [f"3.{minor}" for minor in environments] == wanted
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [line for line in project["classifiers"] if "Python :: 3." in line]
    assert [line.rsplit(" ", 1)[1] for line in listed] == wanted


def test_the_tree_has_no_path_of_one_machine() -> None:
    own = Path(__file__).resolve()
    suffixes = {".py", ".lua", ".md", ".toml", ".ini", ""}
    folders = ("taskhive", "lua", "tests", "benchmarks", "docs", "examples", ".ci")
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.is_file() and p.suffix in suffixes]
    found = [p for p in files if p != own and re.search(rb"(^|[^\w])/(work|root)/", p.read_bytes())]
    assert not found
