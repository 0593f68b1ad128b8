"""The tables of lua/README.md, held against the scripts."""

from __future__ import annotations

import re

import pytest

from taskhive import scripts

TEXT = (scripts.lua_directory() / "README.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, list[str]]:
    """The rows of the first table below a heading, by each name in their first cell."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    table = section[section.index("| --- |") :].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    return {name: row for row in cells for name in re.findall(r"`(\w+)`", row[0])}


def test_every_script_is_listed() -> None:
    assert set(rows("Scripts")) == set(scripts.names())


def test_every_part_is_listed_and_used() -> None:
    directory = scripts.lua_directory()
    assert set(rows("Parts")) == {path.stem for path in (directory / "include").glob("*.lua")}
    used = {
        name
        for path in directory.glob("*.lua")
        for name in re.findall(r"^--- include (\w+)$", path.read_text(encoding="utf-8"), re.M)
    }
    assert used == set(rows("Parts"))


def test_every_key_is_listed() -> None:
    used = {key.removeprefix("fail_") for name in scripts.names() for key in scripts.script(name).keys}
    assert set(rows("Keys of a queue")) == used - {"set"}


@pytest.mark.parametrize("name", scripts.names())
def test_what_is_said_of_a_script_is_what_its_first_line_says(name: str) -> None:
    _, _, writes, under_oom = rows("Scripts")[name]
    shebang = scripts.script(name).text.partition("\n")[0]
    assert (writes == "no") == ("no-writes" in shebang)
    assert (under_oom == "refused") == (shebang == "#!lua")


def test_a_queue_that_is_destroyed_leaves_no_key_that_is_not_told() -> None:
    dropped = set(scripts.script("destroy").keys)
    queue = {key for name in scripts.names() for key in scripts.script(name).keys}
    lane = {f"fail_{key}" for key in queue if not key.startswith("fail_")}
    apart = {"set", "request", "lock"}
    left = {"destroyed"}
    assert dropped - left == {
        key for key in queue | lane if key.removeprefix("fail_") not in apart | left
    }
