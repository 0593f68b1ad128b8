"""The table of layers in docs/design.md, held against what modules import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "taskhive"
MODULES = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
WITHOUT_REDIS = ("words, no I/O", "user code runs here")


def layers() -> dict[str, list[str]]:
    """The modules of each layer, in the order of the table."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("| Layer | Module |")[2].partition("\n\n")[0]
    found: dict[str, list[str]] = {}
    layer = ""
    for line in table.splitlines()[2:]:
        _, name, modules, *_ = (cell.strip() for cell in line.split("|"))
        layer = name or layer
        found.setdefault(layer, []).extend(re.findall(r"`(\w+)`", modules))
    return found


def imports(module: str) -> tuple[set[str], set[str]]:
    """The modules of ours that one imports, anywhere in it, and the foreign packages."""
    ours: set[str] = set()
    foreign: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "taskhive":
                names = [f"taskhive.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "taskhive":
                ours.add(rest.partition(".")[0])
            else:
                foreign.add(package)
    return ours, foreign


def test_the_table_lists_every_module_once() -> None:
    listed = [module for modules in layers().values() for module in modules]
    assert sorted(listed) == sorted(set(listed))
    assert sorted(listed) == sorted(MODULES), "a new module wants a row in docs/design.md"


@pytest.mark.parametrize("module", [module for modules in layers().values() for module in modules])
def test_a_module_imports_from_its_own_layer_or_from_one_above_it_in_the_table(module: str) -> None:
    level = {name: n for n, modules in enumerate(layers().values()) for name in modules}
    names = list(layers())
    ours, _ = imports(module)
    upward = {name: names[level[name]] for name in ours if level.get(name, 0) > level[module]}
    assert upward == {}, f"{module} is in {names[level[module]]!r}"


@pytest.mark.parametrize("layer", WITHOUT_REDIS)
def test_neither_words_nor_what_runs_user_code_import_the_client_library(layer: str) -> None:
    reach = {"broker", "aio_broker", "session"}
    for module in layers()[layer]:
        ours, foreign = imports(module)
        assert "redis" not in foreign, module
        assert not ours & reach, module


def test_an_import_that_goes_the_wrong_way_is_noticed() -> None:
    ours, foreign = imports("broker")
    assert {"effects", "resp", "embedded"} <= ours
    assert "redis" in foreign
    assert next(iter(layers())) == "words, no I/O"
    assert len(layers()) == 6
