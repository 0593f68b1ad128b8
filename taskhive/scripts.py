"""The Lua scripts as the server gets them: includes pulled in, keys named.

A script says `--- keys a b c` once and gets a table `K` with those names; the client builds KEYS from
the same line, so that the two cannot disagree. `--- include noun` is replaced by `include/noun.lua`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r"^--- include (\w+)$", re.MULTILINE)
_KEYS = re.compile(r"^--- keys (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ScriptText:
    """One script, ready to be sent."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]


def lua_directory() -> Path:
    """Where the scripts are: inside an installed wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "lua", here.parent / "lua"):
        if (candidate / "exchange.lua").is_file():
            return candidate
    raise FileNotFoundError(
        f"TaskHive's Lua scripts are neither in {here / 'lua'} nor in {here.parent / 'lua'}: "
        "the installation is incomplete, install it again"
    )


def names() -> list[str]:
    """Every script there is, in order."""
    return sorted(path.stem for path in lua_directory().glob("*.lua"))


def source(name: str, directory: Path | None = None) -> str:
    """The script with its includes in place and its keys named."""
    directory = directory or lua_directory()
    text = (directory / f"{name}.lua").read_text(encoding="utf-8")
    text = _INCLUDE.sub(
        lambda m: (directory / "include" / f"{m[1]}.lua").read_text(encoding="utf-8").rstrip("\n"),
        text,
    )
    declared = key_names(text)
    table = ", ".join(f"{key} = KEYS[{i}]" for i, key in enumerate(declared, 1))
    return _KEYS.sub(f"local K = {{{table}}}", text)


def key_names(text: str) -> tuple[str, ...]:
    """The names on a script's `--- keys` line."""
    found = _KEYS.search(text)
    if found is None:
        raise ValueError("a script without a '--- keys' line")
    return tuple(found[1].split())


@cache
def script(name: str) -> ScriptText:
    """The shipped script of this name, read once per process."""
    raw = (lua_directory() / f"{name}.lua").read_text(encoding="utf-8")
    text = source(name)
    return ScriptText(name, text, hashlib.sha1(text.encode()).hexdigest(), key_names(raw))
